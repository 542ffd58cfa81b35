"""Table entries over gRPC: what is written comes back, every rule of the specification has its error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from finsy.proto import p4r

from softswitch.p4rt import Code
from tests.softswitch.p4rt_client import (
    DELETE,
    IDS,
    INSERT,
    MODIFY,
    codes,
    dmac,
    ether,
    exact,
    in_range,
    ipv4,
    lpm,
    mac,
    optional,
    status_of,
    ternary,
    update,
    update_errors,
)
from tests.softswitch.p4rt_rig import Rig

NO_ACTION = IDS.action("NoAction")
HOST = b"\x0a\x00\x00\x01"


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        yield rig


def entity(table: str, *match: p4r.FieldMatch, **fields: Any) -> p4r.Entity:
    return p4r.Entity(table_entry=IDS.entry(table, *match, **fields))


def read(rig: Rig, table: str = "", **fields: Any) -> list[p4r.TableEntry]:
    table_id = IDS("table", table) if table else 0
    request = p4r.Entity(table_entry=p4r.TableEntry(table_id=table_id, **fields))
    return [item.table_entry for item in rig.controller.read(request)]


def refusal(rig: Rig, kind: p4r.Update.Type.ValueType, wanted: p4r.Entity) -> tuple[Code, str]:
    """The per-update error of a batch of one."""
    with pytest.raises(grpc.RpcError) as caught:
        rig.controller.write(update(kind, wanted))
    [error] = update_errors(caught.value)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert error.space == "softswitch"
    return Code(error.canonical_code), error.message


SYMMETRIC = [
    entity("dmac", exact(1, mac(1)), action=IDS.action("forward", b"\x01\xff")),
    entity("dmac", exact(1, b"\x00"), action=IDS.action("to_cpu", b"\x7f"), metadata=b"\x00\xff note"),
    entity("routes", action=NO_ACTION),
    entity("routes", lpm(1, b"\x0a\x00\x00\x00", 8), action=IDS.action("forward", b"\x03")),
    entity("routes", lpm(1, HOST, 32), action=IDS.action("drop"), controller_metadata=1 << 63),
    entity("acl", priority=1, action=NO_ACTION),
    entity("acl", ternary(1, b"\x00", b"\x01"), priority=2, action=IDS.action("drop")),
    entity(
        "acl",
        ternary(1, HOST, b"\xff\xff\xff\xff"),
        optional(2, b"\x11"),
        in_range(3, b"\x00", b"\x3f"),
        priority=(1 << 31) - 1,
        action=IDS.action("mirror", b"\x07"),
    ),
]


def test_everything_written_is_read_back_unchanged(rig: Rig) -> None:
    rig.controller.insert(*SYMMETRIC)
    assert [p4r.Entity(table_entry=e) for name in ("dmac", "routes", "acl") for e in read(rig, name)] == SYMMETRIC
    rig.controller.delete(*SYMMETRIC)
    assert all(read(rig, name) == [] for name in ("dmac", "routes", "acl"))


def test_byte_strings_come_back_canonical(rig: Rig) -> None:
    rig.controller.insert(
        entity("dmac", exact(1, b"\x00\x00" + mac(1)), action=IDS.action("forward", b"\x00\x00\x02")),
        entity(
            "acl",
            ternary(1, b"\x00\x00\x00\x00\x01", b"\x00\x00\x00\x0f"),
            in_range(3, b"\x00\x00", b"\x00\x10"),
            priority=1,
            action=NO_ACTION,
        ),
    )
    [first] = read(rig, "dmac")
    assert (first.match[0].exact.value, first.action.action.params[0].value) == (mac(1), b"\x02")
    [second] = read(rig, "acl")
    assert list(second.match) == [ternary(1, b"\x01", b"\x0f"), in_range(3, b"\x00", b"\x10")]
    # The same key in another spelling is the same entry.
    assert refusal(rig, INSERT, dmac(1, 9))[0] is Code.ALREADY_EXISTS


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (entity("dmac", action=NO_ACTION), "dst: an exact field must be given"),
        (entity("dmac", exact(2, b"\x01"), action=NO_ACTION), "field id 2"),
        (entity("dmac", exact(1, b"\x01"), exact(1, b"\x01"), action=NO_ACTION), "twice"),
        (entity("dmac", exact(1, b""), action=NO_ACTION), "empty"),
        (entity("dmac", exact(1, b"\x01" + mac(1)), action=NO_ACTION), "48 bits"),
        (entity("dmac", lpm(1, b"\x01", 48), action=NO_ACTION), "expected exact, not lpm"),
        (entity("dmac", p4r.FieldMatch(field_id=1), action=NO_ACTION), "unset match"),
        (entity("dmac", exact(1, b"\x01")), "needs an action"),
        (entity("dmac", exact(1, b"\x01"), action=p4r.TableAction()), "not nothing"),
        (
            entity("dmac", exact(1, b"\x01"), action=p4r.TableAction(action_profile_member_id=1)),
            "not action_profile_member_id",
        ),
        (entity("dmac", exact(1, b"\x01"), priority=1, action=IDS.action("drop")), "priority must be 0"),
        (
            entity("dmac", exact(1, b"\x01"), action=IDS.action("mirror", b"\x01")),
            "not an action of the table",
        ),
        (entity("dmac", exact(1, b"\x01"), action=IDS.action("forward")), "missing: port"),
        (entity("dmac", exact(1, b"\x01"), action=IDS.action("forward", b"\x01", b"\x01")), "parameter id 2"),
        (entity("dmac", exact(1, b"\x01"), action=IDS.action("forward", b"\x02\x00")), "port.*9 bits"),
        (entity("dmac", exact(1, b"\x01"), action=IDS.action("forward", b"")), "port.*empty"),
        (entity("dmac", exact(1, b"\x01"), action=IDS.action("drop"), is_const=True), "is_const"),
        (entity("dmac", exact(1, b"\x01"), action=IDS.action("drop"), idle_timeout_ns=1), "idle timeout"),
        (
            entity("dmac", exact(1, b"\x01"), action=IDS.action("drop"), meter_config={"cir": 1}),
            "direct meter",
        ),
        (
            entity("dmac", exact(1, b"\x01"), action=IDS.action("drop"), counter_data={"packet_count": -1}),
            "negative",
        ),
        (entity("routes", action=NO_ACTION, counter_data={}), "no direct counter"),
        (entity("routes", lpm(1, b"\x00", 0), action=NO_ACTION), "prefix_len 0"),
        (entity("routes", lpm(1, HOST, 33), action=NO_ACTION), "prefix_len 33"),
        (entity("routes", lpm(1, HOST, 31), action=NO_ACTION), "below the prefix"),
        (entity("acl", action=NO_ACTION), "priority must be > 0"),
        (entity("acl", action=NO_ACTION, priority=-1), "priority must be > 0"),
        (entity("acl", ternary(1, b"\x00", b"\x00"), priority=1, action=NO_ACTION), "mask is 0"),
        (entity("acl", ternary(1, b"\x02", b"\x01"), priority=1, action=NO_ACTION), "outside mask"),
        (entity("acl", ternary(1, b"\x00", b""), priority=1, action=NO_ACTION), "mask.*empty"),
        (entity("acl", in_range(3, b"\x02", b"\x01"), priority=1, action=NO_ACTION), "above high"),
        (entity("acl", in_range(3, b"\x00", b"\xff"), priority=1, action=NO_ACTION), "every value"),
        (entity("acl", optional(2, b"\x01\x00"), priority=1, action=NO_ACTION), "8 bits"),
        (p4r.Entity(table_entry=p4r.TableEntry(table_id=0)), "table_id 0"),
        (p4r.Entity(table_entry=p4r.TableEntry(table_id=IDS("action", "drop"))), "table_id"),
    ],
)
def test_malformed_insert_is_an_invalid_argument(rig: Rig, wanted: p4r.Entity, text: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        rig.controller.insert(wanted)
    [error] = update_errors(caught.value)
    assert Code(error.canonical_code) is Code.INVALID_ARGUMENT
    assert re.search(text, error.message), error.message
    assert [e for e in read(rig) if e.table_id != IDS("table", "kind")] == []


def test_life_cycle_errors(rig: Rig) -> None:
    assert refusal(rig, MODIFY, dmac(1, 2))[0] is Code.NOT_FOUND
    assert refusal(rig, DELETE, dmac(1, 2))[0] is Code.NOT_FOUND
    rig.controller.insert(dmac(1, 2))
    assert refusal(rig, INSERT, dmac(1, 3))[0] is Code.ALREADY_EXISTS
    assert read(rig, "dmac")[0].action == IDS.action("forward", b"\x02")
    rig.controller.insert(*(dmac(last, 1) for last in (2, 3, 4)))
    code, text = refusal(rig, INSERT, dmac(5, 1))
    assert code is Code.RESOURCE_EXHAUSTED
    assert "SampleIngress.dmac" in text
    rig.controller.modify(dmac(1, 4))
    assert read(rig, "dmac", match=[exact(1, mac(1))])[0].action == IDS.action("forward", b"\x04")
    # Only the key counts when deleting.
    nonsense = entity("dmac", exact(1, mac(1)), action=IDS.action("mirror"), idle_timeout_ns=5, metadata=b"x")
    rig.controller.delete(nonsense)
    rig.controller.insert(dmac(5, 1))


def test_priority_is_part_of_the_key(rig: Rig) -> None:
    low = entity("acl", priority=1, action=NO_ACTION)
    high = entity("acl", priority=2, action=NO_ACTION)
    rig.controller.insert(low, high)
    assert refusal(rig, DELETE, entity("acl", priority=3))[0] is Code.NOT_FOUND
    assert refusal(rig, DELETE, entity("acl"))[0] is Code.INVALID_ARGUMENT
    rig.controller.delete(low)
    assert [e.priority for e in read(rig, "acl")] == [2]


def test_modify_without_action_touches_the_counter_only(rig: Rig) -> None:
    rig.controller.insert(dmac(1, 2, metadata=b"m", counter_data={"packet_count": 5, "byte_count": 6}))
    rig.controller.modify(entity("dmac", exact(1, mac(1)), metadata=b"ignored"))
    [entry] = read(rig, "dmac", counter_data={})
    assert (entry.metadata, entry.counter_data.packet_count, entry.counter_data.byte_count) == (b"m", 5, 6)
    rig.controller.modify(entity("dmac", exact(1, mac(1)), counter_data={"packet_count": 9}))
    [entry] = read(rig, "dmac", counter_data={})
    assert (entry.action, entry.counter_data.packet_count) == (IDS.action("forward", b"\x02"), 9)
    # With an action the whole entry is replaced, the counter excepted.
    rig.controller.modify(dmac(1, 3))
    [entry] = read(rig, "dmac", counter_data={})
    assert (entry.metadata, entry.counter_data.packet_count) == (b"", 9)


def test_counters_count_and_appear_only_when_asked_for(rig: Rig) -> None:
    rig.controller.insert(dmac(1, 2))
    frame = ether(mac(1), mac(9))
    for _ in range(3):
        assert rig.device.inject(1, frame, 0) == [(2, frame)]
    assert not read(rig, "dmac")[0].HasField("counter_data")
    [entry] = read(rig, "dmac", counter_data={})
    assert (entry.counter_data.packet_count, entry.counter_data.byte_count) == (3, 3 * len(frame))
    rig.controller.insert(entity("routes", action=NO_ACTION))
    assert not read(rig, "routes", counter_data={})[0].HasField("counter_data")


def test_default_entry(rig: Rig) -> None:
    def default(table: str, **fields: Any) -> p4r.Entity:
        return entity(table, is_default_action=True, **fields)

    drop = IDS.action("drop")
    [entry] = read(rig, "dmac", is_default_action=True, counter_data={})
    assert entry.action == drop
    assert entry.HasField("counter_data")
    rig.device.inject(1, ether(mac(7), mac(9)), 0)
    rig.controller.modify(default("dmac", action=IDS.action("forward", b"\x05"), metadata=b"m"))
    frame = ether(mac(7), mac(9))
    assert rig.device.inject(1, frame, 0) == [(5, frame)]
    [entry] = read(rig, "dmac", is_default_action=True, counter_data={})
    assert (entry.action, entry.metadata) == (IDS.action("forward", b"\x05"), b"m")
    assert (entry.counter_data.packet_count, entry.is_default_action) == (2, True)
    assert read(rig, "dmac") == []
    # Without an action the program's own default comes back, and everything attached is reset.
    rig.controller.modify(default("dmac"))
    [entry] = read(rig, "dmac", is_default_action=True, counter_data={})
    assert (entry.action, entry.metadata, entry.counter_data.packet_count) == (drop, b"", 0)

    for kind in (INSERT, DELETE):
        assert refusal(rig, kind, default("dmac", action=drop))[0] is Code.INVALID_ARGUMENT
    for wrong in (
        entity("dmac", exact(1, b"\x01"), is_default_action=True, action=drop),
        default("dmac", action=drop, priority=1),
        default("dmac", action=drop, idle_timeout_ns=1),
        default("routes", action=drop, counter_data={}),
    ):
        assert refusal(rig, MODIFY, wrong)[0] is Code.INVALID_ARGUMENT
    assert refusal(rig, MODIFY, default("smac", action=NO_ACTION))[0] is Code.PERMISSION_DENIED
    assert refusal(rig, MODIFY, default("smac"))[0] is Code.PERMISSION_DENIED


def test_actions_outside_their_scope(rig: Rig) -> None:
    only_default = entity("dmac", exact(1, b"\x01"), action=NO_ACTION)
    only_entries = entity("routes", is_default_action=True, action=IDS.action("forward", b"\x01"))
    assert refusal(rig, INSERT, only_default)[0] is Code.PERMISSION_DENIED
    assert refusal(rig, MODIFY, only_entries)[0] is Code.PERMISSION_DENIED
    rig.controller.modify(entity("dmac", is_default_action=True, action=NO_ACTION))


def test_constant_entries(rig: Rig) -> None:
    found = read(rig, "kind")
    assert [(e.match[0].exact.value, e.action.action.params[0].value, e.is_const) for e in found] == [
        (b"\x08\x00", b"\x04", True),
        (b"\x86\xdd", b"\x06", True),
    ]
    action = IDS.action("set_kind", b"\x04")
    for kind, wanted in (
        (INSERT, entity("kind", exact(1, b"\x12\x34"), action=action)),
        (MODIFY, entity("kind", exact(1, b"\x08\x00"), action=action)),
        (DELETE, entity("kind", exact(1, b"\x08\x00"))),
    ):
        assert refusal(rig, kind, wanted)[0] is Code.PERMISSION_DENIED
    rig.controller.modify(entity("kind", exact(1, b"\x08\x00")))
    rig.controller.modify(entity("kind", is_default_action=True, action=action))
    assert read(rig, "kind") == found


def test_wildcards_and_filters(rig: Rig) -> None:
    rig.controller.insert(*SYMMETRIC)
    assert len(read(rig)) == len(SYMMETRIC) + 2
    assert len(read(rig, is_default_action=True)) == 5
    assert [e.priority for e in read(rig, "acl", priority=2)] == [2]
    assert len(read(rig, "acl", action=IDS.action("drop"))) == 1
    assert len(read(rig, "acl", action=IDS.action("mirror"))) == 1
    assert len(read(rig, "dmac", metadata=b"\x00\xff note")) == 1
    assert len(read(rig, "routes", controller_metadata=1 << 63)) == 1
    assert read(rig, "routes", metadata=b"none") == []
    assert len(read(rig, "routes", match=[lpm(1, HOST, 32)])) == 1
    assert read(rig, "routes", match=[lpm(1, HOST, 31 + 1)], action=NO_ACTION) == []
    assert read(rig, "dmac", match=[exact(1, mac(77))]) == []
    wanted = [ternary(1, b"\x00", b"\x01")]
    assert len(read(rig, "acl", match=wanted)) == len(read(rig, "acl", match=wanted, priority=2)) == 1
    assert read(rig, "acl", match=wanted, priority=3) == []


def test_reads_that_are_refused(rig: Rig) -> None:
    good = p4r.Entity(table_entry=p4r.TableEntry(table_id=IDS("table", "kind")))
    bad = (
        p4r.Entity(),
        p4r.Entity(table_entry=p4r.TableEntry(table_id=5)),
        p4r.Entity(table_entry=p4r.TableEntry(priority=1)),
        p4r.Entity(table_entry=p4r.TableEntry(time_since_last_hit={})),
        entity("dmac", exact(1, b"")),
        entity("dmac", exact(1, b"\x01"), is_default_action=True),
    )
    for request in bad:
        stream = rig.controller.read_stream(good, request, good)
        received = []
        with pytest.raises(grpc.RpcError) as caught:
            received.extend(stream)
        # The valid requests are answered, and the status tells them apart.
        assert len(received) == 4
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        assert codes(caught.value) == [Code.OK, Code.INVALID_ARGUMENT, Code.OK]


def test_batch_reports_every_update_and_does_the_good_ones(rig: Rig) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        rig.controller.write(
            update(INSERT, dmac(1, 2)),
            update(INSERT, dmac(1, 3)),
            p4r.Update(type=INSERT),
            update(p4r.Update.UNSPECIFIED, dmac(2, 2)),
            update(DELETE, dmac(3, 2)),
            update(INSERT, dmac(4, 2)),
        )
    assert codes(caught.value) == [
        Code.OK,
        Code.ALREADY_EXISTS,
        Code.INVALID_ARGUMENT,
        Code.INVALID_ARGUMENT,
        Code.NOT_FOUND,
        Code.OK,
    ]
    assert update_errors(caught.value)[0] == p4r.Error()
    assert [e.match[0].exact.value for e in read(rig, "dmac")] == [mac(1), mac(4)]


def test_details_of_a_large_batch_stay_within_default_limits_of_clients(rig: Rig) -> None:
    updates = [update(DELETE, dmac(1, 2))] * 60
    with pytest.raises(grpc.RpcError) as caught:
        rig.controller.write(*updates)
    details = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    assert codes(caught.value) == [Code.NOT_FOUND] * 60
    assert len(details) * 4 / 3 < 8192


@pytest.mark.parametrize("atomicity", [p4r.WriteRequest.ROLLBACK_ON_ERROR, p4r.WriteRequest.DATAPLANE_ATOMIC])
def test_atomic_batch_is_all_or_nothing(rig: Rig, atomicity: int) -> None:
    c = rig.controller
    c.insert(dmac(1, 2, metadata=b"old", counter_data={"packet_count": 4}), dmac(2, 2, metadata=b"gone"))
    c.modify(entity("dmac", is_default_action=True, action=IDS.action("forward", b"\x05"), metadata=b"d"))
    requests = [
        p4r.Entity(table_entry=p4r.TableEntry(counter_data={})),
        p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True, counter_data={})),
    ]
    before = c.read(*requests)
    changes = [
        update(INSERT, dmac(3, 2, metadata=b"new")),
        update(MODIFY, dmac(1, 3, counter_data={"packet_count": 7})),
        update(DELETE, dmac(2, 2)),
        update(MODIFY, entity("dmac", is_default_action=True)),
        update(MODIFY, entity("acl", is_default_action=True, action=IDS.action("drop"))),
        update(INSERT, entity("acl", priority=1, action=NO_ACTION)),
    ]
    with pytest.raises(grpc.RpcError) as caught:
        c.write(*changes, update(DELETE, dmac(9, 1)), update(INSERT, dmac(4, 4)), atomicity=atomicity)
    assert codes(caught.value) == [Code.ABORTED] * 6 + [Code.NOT_FOUND, Code.ABORTED]
    assert sorted(map(str, c.read(*requests))) == sorted(map(str, before))
    frame = ether(mac(2), mac(9))
    assert rig.device.inject(1, frame, 0) == [(2, frame)]
    c.write(*changes, atomicity=atomicity)
    assert {e.match[0].exact.value for e in read(rig, "dmac")} == {mac(1), mac(3)}


def test_unknown_atomicity_is_refused_before_anything_is_done(rig: Rig) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        rig.controller.write(update(INSERT, dmac(1, 2)), atomicity=9)
    assert status_of(caught.value)[0] == "INVALID_ARGUMENT"
    assert read(rig, "dmac") == []


def test_kinds_of_entries_decide_about_packets(rig: Rig) -> None:
    """LPM prefers the longest prefix, ternary the highest priority, optional and range match as written."""
    rig.controller.insert(
        dmac(1, 1),
        entity("routes", lpm(1, b"\x0a\x00\x00\x00", 8), action=IDS.action("forward", b"\x02")),
        entity("routes", lpm(1, b"\x0a\x01\x00\x00", 16), action=IDS.action("forward", b"\x03")),
        entity("acl", optional(2, b"\x06"), priority=10, action=IDS.action("drop")),
        entity("acl", in_range(3, b"\x02", b"\x05"), priority=5, action=IDS.action("drop")),
        entity("acl", ternary(1, b"\x07", b"\xff"), priority=20, action=NO_ACTION),
    )

    def ports(dst: bytes, src: bytes = HOST, protocol: int = 17, ttl: int = 64) -> list[int]:
        frame = ether(mac(1), mac(9), ipv4(src, dst, protocol=protocol, ttl=ttl), 0x0800)
        return [port for port, _ in rig.device.inject(1, frame, 0)]

    assert ports(b"\x0b\x00\x00\x01") == [1]
    assert ports(b"\x0a\x02\x00\x01") == [2]
    assert ports(b"\x0a\x01\x00\x01") == [3]
    assert ports(b"\x0a\x01\x00\x01", protocol=6) == []
    assert ports(b"\x0a\x01\x00\x01", protocol=6, src=b"\x01\x02\x03\x07") == [3]
    assert [ports(b"\x0a\x01\x00\x01", ttl=ttl) for ttl in (1, 2, 5, 6)] == [[3], [], [], [3]]
