"""The same command line, P4Runtime requests and frames for this switch and for upstream BMv2: equal answers.

Only what the specification and BMv2 agree on is compared. Where BMv2 is laxer or answers UNKNOWN (full
tables, constant entries, wildcard counter writes, registers, packet length of clone sessions), the other
tests hold us to the specification.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from finsy.proto import p4r

from tests.softswitch.netns import Star, why_not
from tests.softswitch.p4rt_client import (
    CPU_PORT,
    DELETE,
    IDS,
    INSERT,
    MODIFY,
    TIMEOUT_S,
    Call,
    Controller,
    codes,
    dmac,
    ether,
    exact,
    group,
    in_range,
    ipv4,
    load_config,
    lpm,
    mac,
    optional,
    session,
    ternary,
    update,
)
from tests.softswitch.switch_process import SwitchProcess
from topology.processes.bmv2 import own_channels

pytestmark = pytest.mark.skipif(
    shutil.which("simple_switch_grpc") is None, reason="simple_switch_grpc (BMv2) is not installed"
)
MISSING = why_not()
TARGETS = ("softswitch", "bmv2")
NO_ACTION = IDS.action("NoAction")


@contextmanager
def switch(target: str, directory: Path, star: Star | None = None) -> Iterator[Controller]:
    """Run the target with one command line; yield a primary that has pushed the sample program."""
    address = f"unix:{directory}/{target}.sock"
    arguments = ["--no-p4", "--device-id", "1", *(own_channels(directory) if target == "bmv2" else [])]
    for number, name in star.interfaces.items() if star is not None else ():
        arguments += ["-i", f"{number}@{name}"]
    arguments += ["--", "--grpc-server-addr", address, "--cpu-port", str(CPU_PORT)]
    with ExitStack() as stack:
        namespace = star.switch if star is not None else None
        if target == "softswitch":
            stack.enter_context(SwitchProcess(*arguments, namespace=namespace))
        else:
            inside = ["ip", "netns", "exec", namespace] if namespace is not None else []
            process = subprocess.Popen(
                [*inside, "simple_switch_grpc", *arguments],
                cwd=directory,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait, TIMEOUT_S)
            stack.callback(process.kill)
        controller = stack.enter_context(Controller(address))
        grpc.channel_ready_future(controller.channel).result(TIMEOUT_S)
        assert controller.arbitrate(1) == 0
        controller.set_pipeline(Call.VERIFY_AND_COMMIT, load_config())
        yield controller


def answer(call: Callable[[], Any]) -> Any:
    """What a call comes to: OK, the codes of its updates, or entities in an order of their own."""
    try:
        result = call()
    except grpc.RpcError as error:
        return codes(error)
    return "OK" if result is None else sorted(map(normal, result))


def normal(entity: p4r.Entity) -> str:
    copy = p4r.Entity()
    copy.CopyFrom(entity)
    if entity.HasField("table_entry"):
        copy.table_entry.is_const = False  # BMv2 has a version of P4Runtime that does not know it
    elif entity.HasField("packet_replication_engine_entry"):
        replicas = copy.packet_replication_engine_entry.multicast_group_entry.replicas
        replicas.sort(key=lambda replica: (replica.egress_port, replica.instance))
    return str(copy)


def table(name: str, *match: p4r.FieldMatch, **fields: Any) -> p4r.Entity:
    return p4r.Entity(table_entry=IDS.entry(name, *match, **fields))


def counter(**fields: Any) -> p4r.Entity:
    return p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=IDS("counter", "kinds"), **fields))


ENTRIES = [
    dmac(1, 1, metadata=b"note"),
    dmac(2, 2, controller_metadata=5),
    table("dmac", exact(1, mac(3)), action=IDS.action("flood", b"\x01")),
    table("dmac", exact(1, mac(4)), action=IDS.action("to_cpu", b"\x09")),
    table("routes", lpm(1, b"\x0a\x00\x00\x00", 8), action=IDS.action("forward", b"\x02")),
    table("routes", lpm(1, b"\x0a\x01\x00\x00", 16), action=IDS.action("forward", b"\x03")),
    table("routes", lpm(1, b"\x0a\x01\x02\x03", 32), action=IDS.action("drop")),
    table("acl", optional(2, b"\x06"), priority=10, action=IDS.action("drop")),
    table("acl", in_range(3, b"\x02", b"\x05"), priority=5, action=IDS.action("drop")),
    table("acl", ternary(1, b"\x07", b"\xff"), priority=20, action=IDS.action("mirror", b"\x07")),
]
WRONG = [
    table("dmac", action=IDS.action("drop")),
    table("dmac", exact(2, b"\x01"), action=IDS.action("drop")),
    table("dmac", exact(1, b"\x01" + mac(9)), action=IDS.action("drop")),
    table("dmac", lpm(1, b"\x01", 48), action=IDS.action("drop")),
    table("dmac", exact(1, mac(9))),
    table("dmac", exact(1, mac(9)), action=NO_ACTION),
    table("dmac", exact(1, mac(9)), action=IDS.action("mirror", b"\x01")),
    table("dmac", exact(1, mac(9)), action=IDS.action("forward")),
    table("dmac", exact(1, mac(9)), action=IDS.action("forward", b"\x02\x00")),
    table("dmac", exact(1, mac(9)), priority=1, action=IDS.action("drop")),
    table("dmac", exact(1, mac(9)), idle_timeout_ns=1, action=IDS.action("drop")),
    table("routes", lpm(1, b"\x0a\x00\x00\x01", 31), action=NO_ACTION),
    table("routes", lpm(1, b"\x00", 0), action=NO_ACTION),
    table("acl", action=NO_ACTION),
    table("acl", ternary(1, b"\x02", b"\x01"), priority=1, action=NO_ACTION),
    table("acl", in_range(3, b"\x02", b"\x01"), priority=1, action=NO_ACTION),
    group(0, (1, 0)),
    group(3, (1, 0), (1, 0)),
    session(0),
    session(40000, (1, 0)),
    session(8, class_of_service=1),
]


def control_scenario(c: Controller) -> Iterator[tuple[str, Any]]:
    """Yield (step, answer) of a conversation about every kind of entity."""

    def write(kind: p4r.Update.Type.ValueType, *entities: p4r.Entity) -> Any:
        return answer(lambda: c.write(*(update(kind, entity) for entity in entities)))

    def read(*entities: p4r.Entity) -> Any:
        return answer(lambda: c.read(*entities))

    digest = p4r.DigestEntry(digest_id=IDS("digest", "learn_t"), config={"max_list_size": 1})
    groups = [group(1, (1, 0), (2, 0), (2, 9)), group(2)]
    other = table("routes", lpm(1, b"\x0c\x00\x00\x00", 8), action=NO_ACTION)
    yield "insert", [write(INSERT, *ENTRIES), write(INSERT, *groups, session(7, (3, 1)))]
    yield "digest", [write(INSERT, p4r.Entity(digest_entry=digest)), read(p4r.Entity(digest_entry=digest))]
    for name in ("dmac", "routes", "acl", "kind", "smac"):
        yield f"entries of {name}", read(table(name, counter_data={}))
        yield f"default of {name}", read(table(name, is_default_action=True))
    yield "all entries", read(p4r.Entity(table_entry=p4r.TableEntry()))
    yield "one entry", read(dmac(1, 1))
    yield "groups and sessions", read(group(0), group(1), session(0))
    yield "again", [write(INSERT, ENTRIES[0], other), write(INSERT, *groups)]
    yield "missing", [write(kind, dmac(8, 1), group(9), session(9)) for kind in (MODIFY, DELETE)]
    for number, wrong in enumerate(WRONG):
        yield f"wrong {number}", write(INSERT, wrong)
    yield (
        "default",
        [
            write(MODIFY, table("dmac", is_default_action=True, action=IDS.action("forward", b"\x01"))),
            write(MODIFY, table("smac", is_default_action=True, action=NO_ACTION)),
            write(MODIFY, table("routes", is_default_action=True, action=IDS.action("forward", b"\x01"))),
            write(INSERT, table("dmac", is_default_action=True, action=IDS.action("drop"))),
            read(table("dmac", is_default_action=True)),
            write(MODIFY, table("dmac", is_default_action=True)),
            read(table("dmac", is_default_action=True)),
        ],
    )
    yield (
        "counters",
        [
            write(MODIFY, counter(index={"index": 2}, data={"packet_count": 4, "byte_count": 5})),
            write(INSERT, counter(index={})),
            write(MODIFY, counter(index={"index": -1})),
            read(counter()),
        ],
    )
    yield "modify", [write(MODIFY, dmac(1, 4), group(1, (4, 4)), session(7)), read(dmac(1, 1), group(1))]
    yield "delete", [write(DELETE, *ENTRIES, *groups, session(7)), write(DELETE, other)]
    yield "what is left", read(p4r.Entity(table_entry=p4r.TableEntry()), group(0), session(0))


def test_requests_get_the_same_answers(tmp_path: Path) -> None:
    transcripts = []
    for target in TARGETS:
        with switch(target, tmp_path) as controller:
            transcripts.append(dict(control_scenario(controller)))
    ours, theirs = transcripts
    for step, expected in theirs.items():
        assert ours[step] == expected, step
    assert ours.keys() == theirs.keys()


def packet(dst: int, *, src: bytes = b"\x01\x02\x03\x04", to: bytes = b"\x0b\0\0\1", **fields: int) -> bytes:
    return ether(mac(dst), mac(50), ipv4(src, to, **fields) + bytes(range(100)), 0x0800)


FRAMES = [
    ether(mac(1), mac(50)),
    ether(mac(2), mac(51), b"q" * 1500),
    ether(mac(3), mac(52)),
    ether(mac(4), mac(53)),
    ether(mac(77), mac(54)),
    ether(mac(2), mac(55), ether_type=0x86DD),
    packet(1),
    packet(1, to=b"\x0a\x02\x00\x01"),
    packet(1, to=b"\x0a\x01\x00\x01"),
    packet(1, to=b"\x0a\x01\x02\x03"),
    packet(2, protocol=6),
    packet(2, protocol=6, src=b"\x01\x02\x03\x07"),
    packet(2, src=b"\x01\x02\x03\x07"),
    *(packet(2, ttl=ttl) for ttl in (1, 2, 5, 6)),
]


def frame_scenario(star: Star, c: Controller) -> list[Any]:
    """Send every frame from host 1; return what came out of each port and to the client, and the counters."""
    digest = p4r.DigestEntry(digest_id=IDS("digest", "learn_t"), config={"max_list_size": 1})
    c.insert(*ENTRIES, group(1, (2, 0), (3, 5)), session(7, (3, 1)), p4r.Entity(digest_entry=digest))
    # A frame that comes out of every port marks the end of what each frame has caused.
    mark = ether(mac(6), mac(60))
    c.insert(group(9, (1, 0), (2, 0), (3, 0)))
    c.modify(table("dmac", is_default_action=True, action=IDS.action("flood", b"\x09")))
    result: list[Any] = []
    for frame in FRAMES:
        star.hosts[1].send(frame)
        star.hosts[1].send(mark)
        for number, host in star.hosts.items():
            seen: list[bytes | None] = []
            while (received := host.receive()) != mark:
                assert received is not None, f"no mark at host {number}"
                seen.append(received)
            result.append((number, sorted(data for data in seen if data is not None)))
    for port in (1, 2, 3):
        out = p4r.PacketOut(payload=FRAMES[0])
        out.metadata.add(metadata_id=1, value=bytes([port]))
        out.metadata.add(metadata_id=2, value=b"\x00")
        c.send(packet=out)
        result.append(star.hosts[port].receive())
    # How often a digest is repeated depends on the time that BMv2 takes to handle it; which there are does not.
    digests: set[bytes] = set()
    packets: list[bytes] = []
    while len(digests) < len({frame[6:12] for frame in (*FRAMES, mark)}) or not packets:
        form, message = c.receive_any("digest", "packet")
        if form == "packet":
            packets.append(message.SerializeToString(deterministic=True))
        else:
            digests.update(data.SerializeToString(deterministic=True) for data in message.data)
    result += [digests, packets]
    counters = c.read(table("dmac", counter_data={}), table("acl", counter_data={}), counter())
    result.append(sorted(map(normal, counters)))
    return result


@pytest.mark.netns
@pytest.mark.skipif(MISSING is not None, reason=f"real frames need namespaces: {MISSING}")
def test_frames_come_out_the_same(tmp_path: Path) -> None:
    results = []
    for target in TARGETS:
        with Star(3) as star, switch(target, tmp_path, star) as controller:
            results.append(frame_scenario(star, controller))
    ours, theirs = results
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine == expected
