"""The stream: packet-in, packet-out, digests, arbitration and roles, over gRPC."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from finsy.proto import U128, p4r, stratum

from softswitch.p4rt import Code
from tests.softswitch.p4rt_client import (
    CPU_PORT,
    IDS,
    TIMEOUT_S,
    Call,
    Controller,
    codes,
    dmac,
    ether,
    exact,
    group,
    load_config,
    mac,
    status_of,
)
from tests.softswitch.p4rt_rig import Rig

DIGEST = IDS("digest", "learn_t")
MS = 1_000_000


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        yield rig


def to_cpu(rig: Rig, reason: int = 5) -> bytes:
    """Let frames for `mac(1)` go to the CPU; return such a frame."""
    action = IDS.action("to_cpu", bytes([reason]))
    rig.controller.insert(p4r.Entity(table_entry=IDS.entry("dmac", exact(1, mac(1)), action=action)))
    return ether(mac(1), mac(9))


def packet_out(port: int, payload: bytes, **extra: Any) -> p4r.PacketOut:
    metadata = [p4r.PacketMetadata(metadata_id=1, value=port.to_bytes(2, "big"))]
    return p4r.PacketOut(payload=payload, metadata=metadata, **extra)


def poll(rig: Rig, now_us: int = 0) -> list[tuple[int, bytes]]:
    """Poll the device once the server has handed it something."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (frames := rig.device.poll(now_us)):
        assert time.monotonic() < deadline, "the device had nothing to do"
    return frames


def enable_digest(rig: Rig, **settings: int) -> None:
    entry = p4r.DigestEntry(digest_id=DIGEST, config=settings)
    rig.controller.insert(p4r.Entity(digest_entry=entry))


def learned(message: p4r.DigestList) -> list[tuple[int, int]]:
    return [tuple(int.from_bytes(member.bitstring, "big") for member in data.struct.members) for data in message.data]


def source(last: int) -> int:
    return int.from_bytes(mac(last), "big")


def test_packet_in(rig: Rig) -> None:
    frame = to_cpu(rig, reason=77)
    assert rig.device.inject(300, frame, 0) == []
    assert rig.controller.receive("packet") == p4r.PacketIn(
        payload=frame,
        metadata=[
            p4r.PacketMetadata(metadata_id=1, value=b"\x01\x2c"),
            p4r.PacketMetadata(metadata_id=2, value=b"\x4d"),
        ],
    )


def test_packet_in_goes_to_the_primary_only_and_is_counted_when_nobody_is(rig: Rig) -> None:
    frame = to_cpu(rig)
    backup = rig.connect()
    assert backup.arbitrate(0) == Code.ALREADY_EXISTS
    rig.device.inject(1, frame, 0)
    assert rig.controller.receive("packet").payload == frame
    assert backup.nothing_received()
    rig.controller.close()
    assert backup.receive("arbitration").status.code == Code.NOT_FOUND
    rig.device.inject(1, frame, 0)
    assert rig.device.stats.packet_ins_dropped == 1
    assert backup.arbitrate(1) == Code.OK
    rig.device.inject(1, frame, 0)
    assert backup.receive("packet").payload == frame


def test_clone_and_multicast_to_the_cpu(rig: Rig) -> None:
    action = IDS.action("flood", b"\x01")
    rig.controller.insert(
        p4r.Entity(table_entry=IDS.entry("dmac", exact(1, mac(1)), action=action)),
        group(1, (2, 0), (CPU_PORT, 1)),
    )
    frame = ether(mac(1), mac(9))
    assert rig.device.inject(4, frame, 0) == [(2, frame)]
    packet = rig.controller.receive("packet")
    assert (packet.payload, packet.metadata[0].value) == (frame, b"\x04")


def test_packet_out_passes_through_the_program(rig: Rig) -> None:
    frame = ether(mac(1), mac(2), b"payload" * 9)
    rig.controller.send(packet=packet_out(301, frame))
    assert poll(rig) == [(301, frame)]
    assert rig.wakes > 0
    assert rig.device.poll(0) == []


def test_packet_out_to_the_cpu_port_comes_back_as_packet_in(rig: Rig) -> None:
    frame = ether(mac(1), mac(2))
    rig.controller.send(packet=packet_out(CPU_PORT, frame))
    deadline = time.monotonic() + TIMEOUT_S
    while rig.controller.nothing_received() and time.monotonic() < deadline:
        assert rig.device.poll(0) == []
    packet = rig.controller.receive("packet")
    assert (packet.payload, packet.metadata[0].value) == (frame, CPU_PORT.to_bytes(2, "big"))


def test_malformed_packet_out_is_answered_with_the_packet(rig: Rig) -> None:
    wrong = p4r.PacketOut(payload=b"p", metadata=[p4r.PacketMetadata(metadata_id=7, value=b"\x01")])
    rig.controller.send(packet=wrong)
    error = rig.controller.receive("error")
    assert (error.canonical_code, error.packet_out.packet_out) == (Code.INVALID_ARGUMENT, wrong)
    assert "7" in error.message
    rig.controller.send(packet=p4r.PacketOut(payload=b"p"))
    assert "egress_port" in rig.controller.receive("error").message
    assert rig.device.poll(0) == []


def test_stream_messages_that_are_refused(rig: Rig) -> None:
    backup = rig.connect()
    frame = packet_out(1, ether(mac(1), mac(2)))
    backup.send(packet=frame)
    assert backup.receive("error").canonical_code == Code.PERMISSION_DENIED
    backup.arbitrate(0)
    backup.send(packet=frame)
    assert backup.receive("error").canonical_code == Code.PERMISSION_DENIED
    backup.send(digest_ack=p4r.DigestListAck(digest_id=DIGEST, list_id=1))
    error = backup.receive("error")
    assert (error.canonical_code, error.digest_list_ack.digest_list_ack.list_id) == (
        Code.PERMISSION_DENIED,
        1,
    )
    rig.controller.send(digest_ack=p4r.DigestListAck(digest_id=5))
    assert rig.controller.receive("error").canonical_code == Code.INVALID_ARGUMENT
    other = p4r.StreamMessageRequest()
    other.other.Pack(p4r.Error())
    rig.controller.send(other=other.other)
    error = rig.controller.receive("error")
    assert (error.canonical_code, error.other.other) == (Code.UNIMPLEMENTED, other.other)
    rig.controller.send()
    assert rig.controller.receive("error").canonical_code == Code.UNIMPLEMENTED
    assert rig.device.poll(0) == []


def test_packet_out_needs_a_pipeline_and_a_cpu_port() -> None:
    with Rig(pipeline=False) as rig:
        rig.controller.send(packet=packet_out(1, b"p"))
        assert rig.controller.receive("error").canonical_code == Code.FAILED_PRECONDITION
    with Rig(cpu_port=None) as rig:
        rig.controller.send(packet=packet_out(1, b"p"))
        error = rig.controller.receive("error")
        assert error.canonical_code == Code.FAILED_PRECONDITION
        assert "CPU port" in error.message


def test_digests_are_bundled_by_size_and_time(rig: Rig) -> None:
    enable_digest(rig, max_list_size=2, max_timeout_ns=3 * MS)
    assert rig.device.next_deadline_us() is None
    rig.device.inject(1, ether(mac(1), mac(10)), 1000)
    rig.device.inject(1, ether(mac(1), mac(10)), 1500)
    assert rig.device.next_deadline_us() == 4000
    rig.device.inject(2, ether(mac(1), mac(11)), 2000)
    first = rig.controller.receive("digest")
    assert (first.digest_id, first.list_id, first.timestamp) == (DIGEST, 1, 2000 * 1000)
    assert learned(first) == [(source(10), 1), (source(11), 2)]
    rig.device.inject(1, ether(mac(1), mac(12)), 5000)
    rig.device.poll(7999)
    assert rig.controller.nothing_received()
    rig.device.poll(8000)
    second = rig.controller.receive("digest")
    assert (second.list_id, learned(second)) == (2, [(source(12), 1)])
    assert rig.device.next_deadline_us() is None


def test_digest_is_repeated_only_after_ack_or_timeout(rig: Rig) -> None:
    enable_digest(rig, max_list_size=1, ack_timeout_ns=1000 * MS)
    frame = ether(mac(1), mac(10))
    rig.device.inject(1, frame, 0)
    first = rig.controller.receive("digest")
    rig.device.inject(1, frame, 10)
    rig.device.inject(1, frame, 999_999)
    rig.device.inject(1, frame, 1_000_000)
    second = rig.controller.receive("digest")
    assert (first.list_id, second.list_id) == (1, 2)
    rig.controller.send(digest_ack=p4r.DigestListAck(digest_id=DIGEST, list_id=second.list_id))
    # The answer to a message that is wrong on purpose proves that the acknowledgement has been handled.
    rig.controller.send(digest_ack=p4r.DigestListAck(digest_id=5))
    rig.controller.receive("error")
    rig.device.inject(1, frame, 1_000_001)
    assert rig.controller.receive("digest").list_id == 3
    assert rig.controller.nothing_received()


def test_digests_wait_for_a_controller_that_is_away(rig: Rig) -> None:
    enable_digest(rig, max_list_size=1, ack_timeout_ns=1000 * MS)
    rig.device.inject(1, ether(mac(1), mac(9)), 0)
    rig.controller.receive("digest")
    watcher = rig.connect()
    watcher.arbitrate(None)
    rig.controller.close()
    assert watcher.receive("arbitration").status.code == Code.NOT_FOUND
    rig.device.inject(1, ether(mac(1), mac(10)), 10)
    rig.device.inject(2, ether(mac(1), mac(11)), 20)
    assert rig.device.next_deadline_us() is None
    wakes = rig.wakes
    successor = rig.connect()
    assert successor.arbitrate(2) == Code.OK
    assert rig.wakes > wakes
    rig.device.poll(30)
    assert learned(successor.receive("digest")) == [(source(10), 1)]
    assert learned(successor.receive("digest")) == [(source(11), 2)]
    # What the last primary was told and did not acknowledge is new to its successor.
    rig.device.inject(1, ether(mac(1), mac(9)), 40)
    assert learned(successor.receive("digest")) == [(source(9), 1)]


def test_arbitration_over_grpc(rig: Rig) -> None:
    backup = rig.connect()
    assert backup.arbitrate(0) == Code.ALREADY_EXISTS
    with pytest.raises(grpc.RpcError) as caught:
        backup.insert(dmac(1, 1))
    assert status_of(caught.value)[0] == "PERMISSION_DENIED"
    assert backup.arbitrate(9) == Code.OK
    told = rig.controller.receive("arbitration")
    assert (told.status.code, U128.decode(told.election_id)) == (Code.ALREADY_EXISTS, 9)
    with pytest.raises(grpc.RpcError) as caught:
        rig.controller.insert(dmac(1, 1))
    assert status_of(caught.value)[0] == "PERMISSION_DENIED"
    backup.insert(dmac(1, 1))
    backup.close()
    told = rig.controller.receive("arbitration")
    assert (told.status.code, U128.decode(told.election_id)) == (Code.NOT_FOUND, 9)
    assert rig.controller.arbitrate(9) == Code.OK
    rig.controller.delete(dmac(1, 1))


def test_bad_arbitration_ends_the_stream_with_its_code(rig: Rig) -> None:
    duplicate = rig.connect()
    duplicate.send(arbitration=duplicate.arbitration(1))
    code, text = duplicate.stream_error()
    assert code == "INVALID_ARGUMENT"
    assert "already used" in text
    stranger = rig.connect(device_id=4)
    stranger.send(arbitration=stranger.arbitration(5))
    assert stranger.stream_error()[0] == "NOT_FOUND"
    watcher = rig.connect()
    assert watcher.arbitrate(0) == Code.ALREADY_EXISTS
    wrong = rig.controller.arbitration(1)
    wrong.device_id = 4
    rig.controller.send(arbitration=wrong)
    assert rig.controller.stream_error()[0] == "FAILED_PRECONDITION"
    assert watcher.receive("arbitration").status.code == Code.NOT_FOUND


def test_client_that_ends_its_stream_properly_is_forgotten(rig: Rig) -> None:
    watcher = rig.connect()
    watcher.arbitrate(None)
    rig.controller.close()
    assert watcher.receive("arbitration").status.code == Code.NOT_FOUND


def test_unary_requests_for_the_wrong_device_or_role(rig: Rig) -> None:
    other = rig.connect(device_id=4)
    other.election_id = 1
    for call in (lambda: other.insert(dmac(1, 1)), lambda: other.read(dmac(1, 1))):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert status_of(caught.value)[0] == "NOT_FOUND"
    stranger = rig.connect(role="nobody")
    stranger.election_id = 1
    for call in (lambda: stranger.insert(dmac(1, 1)), lambda: stranger.read(dmac(1, 1), role="nobody")):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert status_of(caught.value)[0] == "NOT_FOUND"


def role_client(rig: Rig, name: str, config: Any) -> Controller:
    client = rig.connect(role=name)
    assert client.arbitrate(1, config) == Code.OK
    return client


def test_role_restricts_writes_reads_and_the_pipeline(rig: Rig) -> None:
    rig.controller.insert(dmac(1, 1))
    route = p4r.Entity(table_entry=IDS.entry("routes", action=IDS.action("NoAction")))
    client = role_client(rig, "routing", stratum.P4RoleConfig(exclusive_p4_ids=[IDS("table", "routes")]))
    client.insert(route)
    with pytest.raises(grpc.RpcError) as caught:
        client.insert(dmac(2, 1), route)
    assert codes(caught.value) == [Code.PERMISSION_DENIED, Code.ALREADY_EXISTS]
    with pytest.raises(grpc.RpcError) as caught:
        client.set_pipeline(Call.VERIFY, load_config())
    assert status_of(caught.value)[0] == "PERMISSION_DENIED"
    everything = p4r.Entity(table_entry=p4r.TableEntry())
    counters = p4r.Entity(counter_entry=p4r.CounterEntry())
    assert client.read(everything, counters, role="routing") == [route]
    assert len(client.read(everything, counters)) == 4 + 8


def test_role_decides_about_packet_ins_and_digests(rig: Rig) -> None:
    enable_digest(rig)
    quiet = role_client(rig, "quiet", stratum.P4RoleConfig(shared_p4_ids=[IDS("table", "dmac")]))
    picky_config = stratum.P4RoleConfig(receives_packet_ins=True, shared_p4_ids=[DIGEST])
    picky_config.packet_in_filter.metadata_id = 1
    picky_config.packet_in_filter.value = b"\x02"
    picky = role_client(rig, "picky", picky_config)
    frame = to_cpu(rig)
    rig.device.inject(1, frame, 0)
    rig.device.inject(2, frame, 0)
    for form in ("digest", "packet", "digest", "packet"):
        rig.controller.receive(form)
    assert [picky.receive("digest").list_id for _ in range(2)] == [1, 2]
    assert picky.receive("packet").metadata[0].value == b"\x02"
    assert picky.nothing_received()
    assert quiet.nothing_received()
