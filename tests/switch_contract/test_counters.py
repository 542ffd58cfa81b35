"""Direct counters and the counter of reasons: packets and bytes, as a controller reads them."""

from __future__ import annotations

from controlplane.entities import TableEntry
from controlplane.snapshot import Count
from p4src.constants import NotReplicated
from p4src.names import MatchField, Table
from tests.switch_contract.frames import (
    NO_GROUP,
    ONE_SHADOW,
    QP,
    S1,
    S2,
    STATE,
    UNKNOWN_MAC,
    UNKNOWN_RID,
    VLAN_TAG,
    A,
    B,
    rdma,
    segment,
    syn,
    tagged,
    with_entries,
)
from tests.switch_contract.rig import Rig

COUNTING = {Table.REPLICATE, Table.REPLICATE_RDMA_IPV4, Table.REPLICATE_RDMA_IPV6, Table.SHADOW}


def entry(table: str, **fields: int) -> TableEntry:
    """Return the entry of `STATE` that has these fields in its key."""
    [found] = [item for item in STATE.table(table) if fields.items() <= dict(item.match).items()]
    return found


def counts(switch: Rig) -> dict[TableEntry, Count]:
    """Return the direct counters that are not 0."""
    found = switch.counters().entries
    state = {item.key: item for table in COUNTING for item in STATE.table(table)}
    assert set(found) == set(state)
    return {state[key]: count for key, count in found.items() if count != Count(0, 0)}


def total(*frames: bytes) -> Count:
    return Count(len(frames), sum(len(frame) for frame in frames))


def test_everything_is_zero_in_the_beginning(switch: Rig) -> None:
    assert counts(switch) == {}
    assert set(switch.counters().not_replicated.values()) == {Count(0, 0)}


def test_a_flow_and_its_shadows_count_packets_and_bytes(switch: Rig) -> None:
    frames = [syn(1), segment(2, b"x" * 50), tagged(segment(52, b"x" * 1000), VLAN_TAG), segment(1052, bytes(8900))]
    for frame in frames:
        switch.send(A.port, frame)
    one = [syn(1, dport=ONE_SHADOW), segment(2, bytes(100), dport=ONE_SHADOW)]
    for frame in one:
        switch.send(A.port, frame)
    assert counts(switch) == {
        entry(Table.REPLICATE, src_addr=int(A.ip), dst_port=ONE_SHADOW - 1): total(*frames),
        entry(Table.REPLICATE, src_addr=int(A.ip), dst_port=ONE_SHADOW): total(*one),
        entry(Table.SHADOW, rid=S1.rid): total(*frames, *one),
        entry(Table.SHADOW, rid=S2.rid): total(*frames),
    }


def test_an_entry_counts_what_it_matches_and_not_what_is_replicated(switch: Rig) -> None:
    frames = [segment(2, b"unknown isn"), segment(1, flags="SA")]
    for frame in frames:
        switch.send(A.port, frame)
    without_group, unknown_rid = syn(1, dport=NO_GROUP), syn(1, dport=UNKNOWN_RID)
    switch.send(A.port, without_group)
    switch.send(A.port, unknown_rid)
    assert counts(switch) == {
        entry(Table.REPLICATE, src_addr=int(A.ip), dst_port=ONE_SHADOW - 1): total(*frames),
        entry(Table.REPLICATE, src_addr=int(A.ip), dst_port=NO_GROUP): total(without_group),
        entry(Table.REPLICATE, src_addr=int(A.ip), dst_port=UNKNOWN_RID): total(unknown_rid),
    }
    assert switch.reasons() == {NotReplicated.UNKNOWN_ISN: 2, NotReplicated.NO_GROUP: 1, NotReplicated.NONE: 1}


def test_queue_pairs_count(switch: Rig) -> None:
    frames = {Table.REPLICATE_RDMA_IPV4: rdma(4), Table.REPLICATE_RDMA_IPV6: rdma(6, bytes(2000))}
    for frame in frames.values():
        switch.send(A.port, frame)
    queue_pair = {MatchField.DESTINATION_QP.value: QP}
    expected = {entry(table, **queue_pair): total(frame) for table, frame in frames.items()}
    assert counts(switch) == {**expected, entry(Table.SHADOW, rid=S1.rid): total(*frames.values())}


def test_every_reason_counts_packets_and_bytes(switch: Rig) -> None:
    fragment = bytearray(segment(1, b"x" * 99))
    fragment[14 + 6] = 0x20
    frames = {
        NotReplicated.UNTAGGED: segment(1, b"a" * 10, dscp=0),
        NotReplicated.UNKNOWN_ISN: segment(1, b"b" * 20),
        NotReplicated.NO_GROUP: segment(1, b"c" * 30, dport=NO_GROUP),
        NotReplicated.UNSUPPORTED_HEADER: bytes(fragment),
        NotReplicated.UNKNOWN_DESTINATION: bytes.fromhex(UNKNOWN_MAC.replace(":", "")) + segment(1, b"d" * 40)[6:],
        NotReplicated.NONE: syn(1),
    }
    for frame in frames.values():
        switch.send(A.port, frame)
    late = segment(1, b"e" * 50, sport=1)
    switch.send(A.port, late)
    shadows = bytes(60)
    switch.send(S1.port, shadows)
    expected = {reason: total(frame) for reason, frame in frames.items()}
    expected |= {NotReplicated.LATE_CONNECTION: total(late), NotReplicated.FROM_SHADOW: total(shadows)}
    assert switch.counters().not_replicated == expected
    assert set(expected) == set(NotReplicated)


def test_counters_of_entries_that_stay_go_on_when_others_change(switch: Rig) -> None:
    switch.send(A.port, syn(1))
    gone = entry(Table.REPLICATE, src_addr=int(A.ip), dst_port=NO_GROUP)
    switch.change(type(STATE).of(item for item in STATE.entities if item != gone))
    switch.change(with_entries())
    frame = segment(2, b"x")
    assert B.port in switch.send(A.port, frame).packets
    both = total(syn(1), frame)
    assert counts(switch) == {
        entry(Table.REPLICATE, src_addr=int(A.ip), dst_port=ONE_SHADOW - 1): both,
        entry(Table.SHADOW, rid=S1.rid): both,
        entry(Table.SHADOW, rid=S2.rid): both,
    }
