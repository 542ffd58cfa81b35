"""Counters, registers, direct counters, multicast groups, clone sessions and digest settings over gRPC."""

from __future__ import annotations

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
    group,
    ipv4,
    mac,
    session,
    update,
    update_errors,
)
from tests.softswitch.p4rt_rig import Rig

KINDS, LENGTHS = IDS("counter", "kinds"), IDS("register", "lengths")


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        yield rig


def counter(counter_id: int = KINDS, **fields: Any) -> p4r.Entity:
    return p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=counter_id, **fields))


def register(register_id: int = LENGTHS, **fields: Any) -> p4r.Entity:
    return p4r.Entity(register_entry=p4r.RegisterEntry(register_id=register_id, **fields))


def direct(table: str, *match: p4r.FieldMatch, data: Any = None, **fields: Any) -> p4r.Entity:
    entry = p4r.DirectCounterEntry(table_entry=IDS.entry(table, *match, **fields), data=data)
    return p4r.Entity(direct_counter_entry=entry)


def write_error(rig: Rig, kind: p4r.Update.Type.ValueType, wanted: p4r.Entity) -> Code:
    with pytest.raises(grpc.RpcError) as caught:
        rig.controller.write(update(kind, wanted))
    [error] = update_errors(caught.value)
    assert error.message
    return Code(error.canonical_code)


def read_error(rig: Rig, wanted: p4r.Entity) -> Code:
    with pytest.raises(grpc.RpcError) as caught:
        rig.controller.read(wanted)
    [code] = codes(caught.value)
    return Code(code)


def test_counters(rig: Rig) -> None:
    frame = ether(mac(1), mac(2), ether_type=0x86DD)
    rig.device.inject(1, frame, 0)
    rig.device.inject(1, frame, 0)
    expected = counter(index={"index": 6}, data={"packet_count": 2, "byte_count": 2 * len(frame)})
    assert rig.controller.read(counter(index={"index": 6})) == [expected]
    whole = rig.controller.read(counter())
    assert [item.counter_entry.index.index for item in whole] == list(range(8))
    assert whole[6] == expected
    assert rig.controller.read(counter(0)) == whole
    # Index 0 is written as an empty message; unset means every index.
    rig.controller.modify(counter(index={}, data={"packet_count": 5}))
    assert rig.controller.read(counter(index={}))[0].counter_entry.data == p4r.CounterData(packet_count=5)
    rig.controller.modify(counter(index={"index": 6}))
    assert rig.controller.read(counter(index={"index": 6})) == [expected]
    rig.controller.modify(counter(data={"byte_count": 1}))
    assert {str(item.counter_entry.data) for item in rig.controller.read(counter())} == {"byte_count: 1\n"}


def test_counter_errors(rig: Rig) -> None:
    for kind in (INSERT, DELETE):
        assert write_error(rig, kind, counter(index={})) is Code.INVALID_ARGUMENT
    for wanted, code in (
        (counter(5, index={}), Code.INVALID_ARGUMENT),
        (counter(index={"index": -1}), Code.INVALID_ARGUMENT),
        (counter(index={"index": 8}), Code.OUT_OF_RANGE),
    ):
        assert write_error(rig, MODIFY, wanted) is code
        assert read_error(rig, wanted) is code
    assert write_error(rig, MODIFY, counter(0)) is Code.INVALID_ARGUMENT
    assert write_error(rig, MODIFY, counter(index={}, data={"byte_count": -1})) is Code.INVALID_ARGUMENT


def test_registers(rig: Rig) -> None:
    frame = ether(mac(1), mac(2), b"x" * 300)
    rig.device.inject(3, frame, 0)
    [cell] = rig.controller.read(register(index={"index": 3}))
    assert cell == register(index={"index": 3}, data={"bitstring": len(frame).to_bytes(2, "big")})
    assert len(rig.controller.read(register())) == len(rig.controller.read(register(0))) == 4
    rig.controller.modify(register(index={"index": 1}, data={"bitstring": b"\x00\x00\x07"}))
    assert rig.controller.read(register(index={"index": 1}))[0].register_entry.data.bitstring == b"\x07"
    rig.controller.modify(register(data={"bitstring": b"\x09"}))
    assert {item.register_entry.data.bitstring for item in rig.controller.read(register())} == {b"\x09"}


def test_register_errors(rig: Rig) -> None:
    data = {"bitstring": b"\x01"}
    for kind in (INSERT, DELETE):
        assert write_error(rig, kind, register(data=data)) is Code.INVALID_ARGUMENT
    for wanted, code in (
        (register(5, data=data), Code.INVALID_ARGUMENT),
        (register(0, data=data), Code.INVALID_ARGUMENT),
        (register(index={"index": -1}, data=data), Code.INVALID_ARGUMENT),
        (register(index={"index": 4}, data=data), Code.OUT_OF_RANGE),
        (register(data={"bitstring": b"\x01\x00\x00"}), Code.OUT_OF_RANGE),
        (register(data={"bool": True}), Code.INVALID_ARGUMENT),
        (register(), Code.INVALID_ARGUMENT),
    ):
        assert write_error(rig, MODIFY, wanted) is code


def test_direct_counters(rig: Rig) -> None:
    rig.controller.insert(dmac(1, 2), dmac(2, 3))
    frame = ether(mac(1), mac(9))
    rig.device.inject(1, frame, 0)
    rig.device.inject(1, ether(mac(7), mac(9)), 0)
    hit = p4r.CounterData(packet_count=1, byte_count=len(frame))
    assert rig.controller.read(direct("dmac", exact(1, mac(1)))) == [direct("dmac", exact(1, mac(1)), data=hit)]
    assert len(rig.controller.read(direct("dmac"))) == 2
    assert rig.controller.read(direct("dmac", is_default_action=True)) == [
        direct("dmac", is_default_action=True, data=hit)
    ]
    rig.controller.insert(p4r.Entity(table_entry=IDS.entry("acl", priority=4, action=IDS.action("NoAction"))))
    everything = rig.controller.read(p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry={})))
    assert [item.direct_counter_entry.table_entry.table_id for item in everything] == [
        IDS("table", "dmac"),
        IDS("table", "dmac"),
        IDS("table", "acl"),
    ]
    rig.controller.modify(
        direct("dmac", exact(1, mac(1)), data={"packet_count": 7}),
        direct("dmac", is_default_action=True, data={"byte_count": 8}),
    )
    rig.controller.modify(direct("dmac", exact(1, mac(1))))
    [first, default] = rig.controller.read(direct("dmac", exact(1, mac(1))), direct("dmac", is_default_action=True))
    assert first.direct_counter_entry.data == p4r.CounterData(packet_count=7)
    assert default.direct_counter_entry.data == p4r.CounterData(byte_count=8)


def test_direct_counter_errors(rig: Rig) -> None:
    rig.controller.insert(dmac(1, 2))
    for kind in (INSERT, DELETE):
        assert write_error(rig, kind, direct("dmac", exact(1, mac(1)))) is Code.INVALID_ARGUMENT
    nowhere = p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry())
    for wanted, code in (
        (direct("dmac", exact(1, mac(2))), Code.NOT_FOUND),
        (direct("routes"), Code.INVALID_ARGUMENT),
        (direct("dmac", exact(1, b"")), Code.INVALID_ARGUMENT),
    ):
        assert write_error(rig, MODIFY, wanted) is code
        assert read_error(rig, wanted) is code
    assert write_error(rig, MODIFY, nowhere) is Code.INVALID_ARGUMENT
    filtered = p4r.TableEntry(match=[exact(1, mac(1))])
    everywhere = p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=filtered))
    assert read_error(rig, everywhere) is Code.INVALID_ARGUMENT


def flood(rig: Rig, group_id: int) -> None:
    action = IDS.action("flood", group_id.to_bytes(2, "big").lstrip(b"\0"))
    rig.controller.insert(p4r.Entity(table_entry=IDS.entry("dmac", exact(1, mac(1)), action=action)))


def test_multicast_groups(rig: Rig) -> None:
    flood(rig, 300)
    frame = ether(mac(1), mac(9))
    assert rig.device.inject(1, frame, 0) == []  # a group that does not exist drops
    wanted = group(300, (1, 0), (2, 0), (2, 9), (0, 65535))
    wanted.packet_replication_engine_entry.multicast_group_entry.metadata = b"note"
    rig.controller.insert(wanted, group(1))
    assert rig.controller.read(group(0)) == [wanted, group(1)]
    assert rig.controller.read(group(300)) == [wanted]
    assert sorted(rig.device.inject(1, frame, 0)) == sorted((port, frame) for port in (0, 1, 2, 2))
    rig.controller.modify(group(300, (3, 1)))
    assert rig.controller.read(group(300)) == [group(300, (3, 1))]
    assert rig.device.inject(1, frame, 0) == [(3, frame)]
    rig.controller.delete(group(300))
    assert rig.device.inject(1, frame, 0) == []
    assert rig.controller.read(group(0)) == [group(1)]


def test_replica_port_as_bytes_is_kept_as_bytes(rig: Rig) -> None:
    def with_port(data: bytes) -> p4r.Entity:
        entry = p4r.MulticastGroupEntry(multicast_group_id=2, replicas=[p4r.Replica(port=data, instance=1)])
        pre = p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)
        return p4r.Entity(packet_replication_engine_entry=pre)

    flood(rig, 2)
    rig.controller.insert(with_port(b"\x00\x00\x00\x05"))
    assert rig.controller.read(group(2)) == [with_port(b"\x05")]
    frame = ether(mac(1), mac(9))
    assert rig.device.inject(1, frame, 0) == [(5, frame)]
    assert write_error(rig, MODIFY, with_port(b"")) is Code.INVALID_ARGUMENT
    assert write_error(rig, MODIFY, with_port(b"\x02\x00")) is Code.INVALID_ARGUMENT


def test_multicast_group_errors(rig: Rig) -> None:
    rig.controller.insert(group(1, (1, 0)))
    backup = group(2, (1, 0))
    backup.packet_replication_engine_entry.multicast_group_entry.replicas[0].backup_replicas.add(port=b"\1")
    no_port = group(2)
    no_port.packet_replication_engine_entry.multicast_group_entry.replicas.add(instance=1)
    for kind, wanted, code in (
        (INSERT, group(1, (2, 0)), Code.ALREADY_EXISTS),
        (MODIFY, group(2, (2, 0)), Code.NOT_FOUND),
        (DELETE, group(2), Code.NOT_FOUND),
        (INSERT, group(0, (1, 0)), Code.INVALID_ARGUMENT),
        (INSERT, group(65536, (1, 0)), Code.OUT_OF_RANGE),
        (INSERT, group(2, (1, 0), (1, 0)), Code.INVALID_ARGUMENT),
        (INSERT, group(2, (1, 65536)), Code.INVALID_ARGUMENT),
        (INSERT, group(2, (512, 0)), Code.INVALID_ARGUMENT),
        (INSERT, no_port, Code.INVALID_ARGUMENT),
        (INSERT, backup, Code.UNIMPLEMENTED),
        (INSERT, p4r.Entity(packet_replication_engine_entry={}), Code.INVALID_ARGUMENT),
    ):
        assert write_error(rig, kind, wanted) is code
    assert rig.controller.read(group(0)) == [group(1, (1, 0))]
    assert read_error(rig, group(2)) is Code.NOT_FOUND
    assert read_error(rig, p4r.Entity(packet_replication_engine_entry={})) is Code.INVALID_ARGUMENT


def mirror(rig: Rig, session_id: int) -> None:
    entry = IDS.entry("acl", priority=1, action=IDS.action("mirror", bytes([session_id])))
    rig.controller.insert(dmac(1, 2), p4r.Entity(table_entry=entry))


def test_clone_sessions(rig: Rig) -> None:
    mirror(rig, 7)
    frame = ether(mac(1), mac(9), ipv4(b"\1\2\3\4", b"\5\6\7\x08") + b"y" * 60, 0x0800)
    assert rig.device.inject(1, frame, 0) == [(2, frame)]
    wanted = session(7, (3, 1), (4, 2), packet_length_bytes=40)
    rig.controller.insert(wanted)
    assert rig.controller.read(session(0)) == rig.controller.read(session(7)) == [wanted]
    assert sorted(rig.device.inject(1, frame, 0)) == [(2, frame), (3, frame[:40]), (4, frame[:40])]
    rig.controller.modify(session(7, (3, 1)))
    assert sorted(rig.device.inject(1, frame, 0)) == [(2, frame), (3, frame)]
    rig.controller.delete(session(7))
    assert rig.controller.read(session(0)) == []
    assert rig.device.inject(1, frame, 0) == [(2, frame)]


def test_clone_session_errors(rig: Rig) -> None:
    rig.controller.insert(session(1, (1, 0)))
    for kind, wanted, code in (
        (INSERT, session(1, (2, 0)), Code.ALREADY_EXISTS),
        (MODIFY, session(2, (2, 0)), Code.NOT_FOUND),
        (DELETE, session(2), Code.NOT_FOUND),
        (INSERT, session(0), Code.INVALID_ARGUMENT),
        (INSERT, session(32768), Code.INVALID_ARGUMENT),
        (INSERT, session(2, packet_length_bytes=-1), Code.INVALID_ARGUMENT),
        (INSERT, session(2, class_of_service=1), Code.UNIMPLEMENTED),
        (INSERT, session(2, (1, 0), (1, 0)), Code.INVALID_ARGUMENT),
    ):
        assert write_error(rig, kind, wanted) is code
    assert rig.controller.read(session(0)) == [session(1, (1, 0))]
    assert read_error(rig, session(2)) is Code.NOT_FOUND


def test_digest_settings(rig: Rig) -> None:
    settings = p4r.DigestEntry(
        digest_id=IDS("digest", "learn_t"),
        config={"max_timeout_ns": 1, "max_list_size": 2, "ack_timeout_ns": 3},
    )
    wanted = p4r.Entity(digest_entry=settings)
    rig.controller.insert(wanted)
    assert rig.controller.read(p4r.Entity(digest_entry=p4r.DigestEntry())) == [wanted]
    assert rig.controller.read(wanted) == [wanted]
    rig.controller.delete(wanted)
    assert rig.controller.read(p4r.Entity(digest_entry=p4r.DigestEntry())) == []
    assert read_error(rig, wanted) is Code.NOT_FOUND
    assert write_error(rig, MODIFY, wanted) is Code.NOT_FOUND


def test_rollback_covers_every_kind_of_entity(rig: Rig) -> None:
    c = rig.controller
    digest = p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=IDS("digest", "learn_t")))
    c.insert(group(1, (1, 0)), group(2, (1, 0)), session(1, (1, 0)), dmac(1, 2))
    rig.device.inject(1, ether(mac(1), mac(9)), 0)

    def state() -> list[p4r.Entity]:
        digests = p4r.Entity(digest_entry=p4r.DigestEntry())
        return c.read(group(0), session(0), counter(), register(), direct("dmac"), digests)

    before = state()
    changes = [
        update(MODIFY, group(1, (3, 0))),
        update(DELETE, group(2)),
        update(INSERT, group(3, (3, 0))),
        update(MODIFY, session(1, (3, 0))),
        update(INSERT, session(2, (3, 0))),
        update(MODIFY, counter(data={"packet_count": 9})),
        update(MODIFY, register(data={"bitstring": b"\x09"})),
        update(MODIFY, direct("dmac", exact(1, mac(1)), data={"packet_count": 9})),
        update(INSERT, digest),
    ]
    with pytest.raises(grpc.RpcError):
        c.write(*changes, update(DELETE, group(9)), atomicity=p4r.WriteRequest.ROLLBACK_ON_ERROR)
    assert sorted(map(str, state())) == sorted(map(str, before))
    c.write(*changes, atomicity=p4r.WriteRequest.ROLLBACK_ON_ERROR)
    assert len(state()) == len(before) + 2  # a group less, a group, a session and a digest more


@pytest.mark.parametrize(
    "wanted",
    [
        p4r.Entity(action_profile_member={}),
        p4r.Entity(action_profile_group={}),
        p4r.Entity(meter_entry={}),
        p4r.Entity(direct_meter_entry={}),
        p4r.Entity(value_set_entry={}),
        p4r.Entity(extern_entry={}),
    ],
)
def test_entities_that_no_program_has(rig: Rig, wanted: p4r.Entity) -> None:
    assert rig.controller.read(wanted) == []
    assert write_error(rig, INSERT, wanted) is Code.UNIMPLEMENTED
    form = wanted.WhichOneof("entity")
    assert form is not None
    named = p4r.Entity()
    named.CopyFrom(wanted)
    target = getattr(named, form)
    if form == "direct_meter_entry":
        target.table_entry.table_id = IDS("table", "dmac")
    elif form == "extern_entry":
        target.extern_type_id = 1
    else:
        setattr(
            target,
            {"meter_entry": "meter_id", "value_set_entry": "value_set_id"}.get(form, "action_profile_id"),
            1,
        )
    assert read_error(rig, named) is Code.UNIMPLEMENTED
