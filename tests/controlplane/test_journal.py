"""The journal of connections: newest per flow, and what a switch without memory needs."""

from __future__ import annotations

from ipaddress import IPv4Address

from hypothesis import given
from hypothesis import strategies as st

from controlplane.digests import ConnectionJournal, FlowStart, flow_base_entry

STARTS = st.builds(
    FlowStart,
    flow_id=st.integers(0, 4),
    isn=st.integers(0, 2**32 - 1),
    src_addr=st.just(IPv4Address("10.0.0.1")),
    dst_addr=st.just(IPv4Address("10.0.0.2")),
    src_port=st.integers(1, 65535),
    dst_port=st.just(4000),
)


@given(st.lists(STARTS, max_size=30))
def test_the_newest_connection_of_each_flow_counts(starts: list[FlowStart]) -> None:
    journal = ConnectionJournal()
    for start in starts:
        known = journal.newest(start.flow_id)
        assert journal.record(start) == (known != start)
    newest = {start.flow_id: start for start in starts}
    assert len(journal) == len(newest)
    assert all(journal.newest(flow) == start for flow, start in newest.items())
    assert journal.flow_base_entries() == tuple(flow_base_entry(newest[flow]) for flow in sorted(newest))


@given(st.lists(STARTS, max_size=10), st.sets(st.integers(0, 6)))
def test_forgotten_flows_are_gone(starts: list[FlowStart], gone: set[int]) -> None:
    journal = ConnectionJournal(starts)
    journal.forget(gone)
    assert {flow for flow in range(7) if journal.newest(flow)} == {s.flow_id for s in starts} - gone


def test_a_repeated_syn_is_no_news() -> None:
    start = FlowStart(1, 5, IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2"), 40000, 4000)
    journal = ConnectionJournal()
    assert journal.record(start)
    assert not journal.record(start)
