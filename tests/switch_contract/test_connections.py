"""Connections of a flow: which segments are replicated, and at which position."""

from __future__ import annotations

from p4src.constants import NotReplicated
from tests.switch_contract.checks import assert_forwarded, assert_replicated, open_flow, start_of
from tests.switch_contract.frames import (
    DPORT,
    FLOW,
    FLOW_IDS,
    HIGHEST,
    MISSING_GROUP,
    NO_GROUP,
    ONE_SHADOW,
    S1,
    S_HIGHEST,
    SPORT,
    UNKNOWN_RID,
    A,
    B,
    flow_base_entry,
    flow_entry,
    segment,
    syn,
    with_entries,
)
from tests.switch_contract.oracle import replica
from tests.switch_contract.rig import Rig


def test_a_tagged_syn_starts_a_flow_and_tells_the_controller(switch: Rig) -> None:
    for isn in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        frame = segment(isn, flags="S", options=[("MSS", 1460), ("WScale", 7)])
        outcome = switch.send(A.port, frame)
        assert_replicated(outcome, frame, 0)
        assert outcome.digests == [start_of(isn)]


def test_a_repeated_syn_is_told_again_and_changes_nothing(switch: Rig) -> None:
    for _ in range(3):
        open_flow(switch, 1000)
    frame = segment(1001, b"data")
    assert_replicated(switch.send(A.port, frame), frame, 1)


def test_a_syn_with_other_flags_starts_a_flow_unless_it_acknowledges(switch: Rig) -> None:
    for flags in ("SEC", "SU", "SP", "SF", "SR"):
        frame = segment(77, flags=flags)
        outcome = switch.send(A.port, frame)
        assert_replicated(outcome, frame, 0)
        assert outcome.digests == [start_of(77)]


def test_other_flags_do_not_start_a_flow(switch: Rig) -> None:
    flags = ("SA", "R", "F", "RA", "FA", "A", "PA", "", "UFP")
    for words in flags:
        frame = segment(5000, b"x", flags=words)
        assert_forwarded(switch.send(A.port, frame), frame)
    assert switch.reasons() == {NotReplicated.UNKNOWN_ISN: len(flags)}


def test_a_connection_from_its_begin_to_its_end(switch: Rig) -> None:
    isn = 0xFFFFFF00
    open_flow(switch, isn)
    for position, length, flags in ((1, 0, "A"), (1, 100, "PA"), (101, 200, "A"), (301, 0, "FA"), (302, 0, "RA")):
        frame = segment(isn + position, bytes(length), flags=flags)
        outcome = switch.send(A.port, frame)
        assert_replicated(outcome, frame, position)
        assert outcome.digests == []


def test_an_acknowledging_syn_of_a_known_connection_is_a_segment_as_any_other(switch: Rig) -> None:
    open_flow(switch, 500)
    frame = segment(500, flags="SA")
    outcome = switch.send(A.port, frame)
    assert_replicated(outcome, frame, 0)
    assert outcome.digests == []


def test_positions_survive_the_wrap_of_sequence_numbers(switch: Rig) -> None:
    for isn in (0xFFFFFFFF, 0xFFFFFFF0, 0x80000000, 0):
        open_flow(switch, isn)
        for position in (1, 0x0F, 0x10, 0x11, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
            frame = segment(isn + position, b"wrap")
            assert_replicated(switch.send(A.port, frame), frame, position)


def test_lost_reordered_duplicated_and_repeated_segments_keep_their_positions(switch: Rig) -> None:
    open_flow(switch, 9000)
    for position in (1, 101, 401, 301, 201, 201, 1, 601, 50, 150):
        # Two in 50 and 150: sent again, cut at other places.
        frame = segment(9000 + position, position.to_bytes(2, "big") * 50)
        assert_replicated(switch.send(A.port, frame), frame, position)


def test_late_segments_of_an_old_connection_are_not_replicated(switch: Rig) -> None:
    open_flow(switch, 1000)
    open_flow(switch, 77000, sport=SPORT + 1)
    for flags in ("A", "FA", "R", "SA"):
        late = segment(1001, b"old", flags=flags)
        assert_forwarded(switch.send(A.port, late), late)
    assert switch.reasons()[NotReplicated.LATE_CONNECTION] == 4
    fresh = segment(77001, b"new", sport=SPORT + 1)
    assert_replicated(switch.send(A.port, fresh), fresh, 1)


def test_a_late_syn_makes_positions_absent_and_never_wrong(switch: Rig) -> None:
    """The price of taking the newest SYN for the newest connection: later segments of the real one are lost."""
    open_flow(switch, 1000)
    open_flow(switch, 77000, sport=SPORT + 1)
    open_flow(switch, 1000)
    fresh = segment(77001, b"new", sport=SPORT + 1)
    assert_forwarded(switch.send(A.port, fresh), fresh)
    late = segment(1001, b"old")
    assert_replicated(switch.send(A.port, late), late, 1)


def test_a_connection_from_source_port_zero_is_none(switch: Rig) -> None:
    """Port 0 stands for "no connection" in the registers, and no TCP sends from it."""
    frame = syn(10, sport=0)
    assert_replicated(switch.send(A.port, frame), frame, 0)
    late = segment(11, b"x", sport=0)
    assert_forwarded(switch.send(A.port, late), late)
    assert switch.reasons()[NotReplicated.UNKNOWN_ISN] == 1


def test_an_unknown_isn_is_not_replicated_until_flow_base_knows_it(switch: Rig) -> None:
    frame = segment(5001, b"data")
    assert_forwarded(switch.send(A.port, frame), frame)
    assert switch.reasons() == {NotReplicated.UNKNOWN_ISN: 1}
    switch.change(with_entries(flow_base_entry(5000)))
    outcome = switch.send(A.port, frame)
    assert_replicated(outcome, frame, 1)
    assert outcome.digests == []
    other = segment(5001, b"data", sport=SPORT + 1)
    assert_forwarded(switch.send(A.port, other), other)
    assert switch.reasons()[NotReplicated.UNKNOWN_ISN] == 2, "the entry must not fit another connection"


def test_flow_base_does_not_revive_a_connection_that_a_newer_one_replaced(switch: Rig) -> None:
    switch.change(with_entries(flow_base_entry(5000)))
    open_flow(switch, 9000, sport=SPORT + 1)
    late = segment(5001, b"old")
    assert_forwarded(switch.send(A.port, late), late)
    assert switch.reasons()[NotReplicated.LATE_CONNECTION] == 1


def test_the_registers_know_better_than_flow_base(switch: Rig) -> None:
    switch.change(with_entries(flow_base_entry(5000)))
    open_flow(switch, 6000)
    frame = segment(6001, b"data")
    assert_replicated(switch.send(A.port, frame), frame, 1)


def test_flows_do_not_share_what_they_remember(switch: Rig) -> None:
    open_flow(switch, 1000)
    frame = segment(1001, b"data", dport=ONE_SHADOW)
    assert_forwarded(switch.send(A.port, frame), frame)
    switch.send(A.port, syn(2000, dport=ONE_SHADOW))
    own = [replica(frame, S1, FLOW_IDS[ONE_SHADOW], 1001 - 2000 + 2**32)]
    assert switch.send(A.port, frame).packets == {B.port: [frame], S1.port: own}
    first = segment(1001, b"data")
    assert_replicated(switch.send(A.port, first), first, 1)


def test_the_highest_flow_id_and_a_port_beyond_65535(switch: Rig) -> None:
    """The destination port of a replica is a 16-bit sum; job files keep it below 65536."""
    for frame, position in ((syn(5, dport=HIGHEST), 0), (segment(6, b"x", dport=HIGHEST), 1)):
        expected = [replica(frame, S_HIGHEST, FLOW_IDS[HIGHEST], position)]
        assert switch.send(A.port, frame).packets == {B.port: [frame], S_HIGHEST.port: expected}


def test_a_flow_without_a_group_is_forwarded(switch: Rig) -> None:
    frame = syn(1, dport=NO_GROUP)
    assert_forwarded(switch.send(A.port, frame), frame)
    assert switch.reasons() == {NotReplicated.NO_GROUP: 1}


def test_a_group_that_does_not_exist_swallows_the_original_too(switch: Rig) -> None:
    """Why the control plane writes a group before the entry that names it, and deletes it after."""
    outcome = switch.send(A.port, syn(1, dport=MISSING_GROUP))
    assert outcome.packets == {}
    assert outcome.digests == [start_of(1, dport=MISSING_GROUP)]


def test_an_unknown_replica_id_is_dropped_and_the_original_is_not(switch: Rig) -> None:
    frame = syn(1, dport=UNKNOWN_RID)
    outcome = switch.send(A.port, frame)
    assert outcome.packets == {B.port: [frame]}
    assert outcome.digests == [start_of(1, dport=UNKNOWN_RID)]


def test_untagged_traffic_is_forwarded_and_not_replicated(switch: Rig) -> None:
    open_flow(switch, 1000)
    others = [segment(1001, b"x" * 100, dscp=dscp) for dscp in (0, 1, 2, 7, 63)]
    others += [segment(1001, b"x", dport=DPORT - 1), segment(1001, flags="S", dscp=0)]
    for frame in others:
        assert_forwarded(switch.send(A.port, frame), frame)
    assert switch.reasons() == {NotReplicated.NONE: 1, NotReplicated.UNTAGGED: len(others)}


def test_the_way_back_is_not_the_flow(switch: Rig) -> None:
    frame = bytearray(segment(1, flags="SA"))
    frame[:12] = frame[6:12] + frame[:6]
    frame[26:34] = frame[30:34] + frame[26:30]
    assert switch.send(B.port, bytes(frame)).packets == {A.port: [bytes(frame)]}
    assert switch.reasons() == {NotReplicated.UNTAGGED: 1}


def test_a_flow_that_is_bound_anew_keeps_its_memory(switch: Rig) -> None:
    """Registers belong to the flow id: why a flow that changes its hosts has to open its connections anew."""
    open_flow(switch, 1000)
    switch.change(with_entries(flow_entry(DPORT + 100, FLOW.multicast_group, flow_id=FLOW.id)))
    frame = segment(1001, b"data", dport=DPORT + 100)
    assert_replicated(switch.send(A.port, frame), frame, 1)
