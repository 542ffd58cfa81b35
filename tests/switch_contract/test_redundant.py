"""A flow's redundant hop: another codepoint, the same flow, the same positions."""

from __future__ import annotations

from p4src.constants import NotReplicated
from tests.switch_contract.checks import assert_forwarded, assert_replicated, open_flow
from tests.switch_contract.frames import DPORT, FLOW, JOB, SPORT, A, flow_entry, segment, with_entries
from tests.switch_contract.rig import Rig

REDUNDANT = JOB.dscp.redundant


def test_segments_of_both_codepoints_have_positions_of_one_stream(switch: Rig) -> None:
    switch.change(with_entries(flow_entry(DPORT, FLOW.multicast_group, dscp=REDUNDANT)))
    isn = 2**32 - 50
    open_flow(switch, isn)
    for offset, dscp in ((1, JOB.dscp.primary), (101, REDUNDANT), (201, JOB.dscp.primary), (301, REDUNDANT)):
        frame = segment(isn + offset, b"x" * 100, dscp=dscp)
        outcome = switch.send(A.port, frame)
        assert_replicated(outcome, frame, offset)
        assert outcome.digests == []
    between = segment(isn + 401, b"reduce-scatter", dscp=0)
    assert_forwarded(switch.send(A.port, between), between)


def test_a_redundant_segment_of_an_unknown_or_an_earlier_connection_is_not_replicated(switch: Rig) -> None:
    switch.change(with_entries(flow_entry(DPORT, FLOW.multicast_group, dscp=REDUNDANT)))
    late = segment(7, b"late", sport=SPORT + 1, dscp=REDUNDANT)
    open_flow(switch, 5)
    before = switch.counters().not_replicated[NotReplicated.LATE_CONNECTION].packets
    assert_forwarded(switch.send(A.port, late), late)
    assert switch.counters().not_replicated[NotReplicated.LATE_CONNECTION].packets == before + 1


def test_without_its_entry_the_codepoint_means_nothing(switch: Rig) -> None:
    open_flow(switch, 5)
    frame = segment(6, b"payload", dscp=REDUNDANT)
    assert_forwarded(switch.send(A.port, frame), frame)
