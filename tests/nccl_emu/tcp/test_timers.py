"""Round-trip estimation (RFC 6298) and congestion window (RFC 5681, 6582) as numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_emu.tcp import TcpConfig
from nccl_emu.tcp.congestion import NewReno
from nccl_emu.tcp.rtt import RtoEstimator

WIDE = TcpConfig(rto_min=0.001, rto_max=1000.0)


def test_the_first_sample_and_the_next() -> None:
    rtt = RtoEstimator(WIDE)
    assert (rtt.rto, rtt.srtt) == (1.0, None)
    rtt.sample(0.1)
    assert (rtt.srtt, rtt.rttvar) == (0.1, 0.05)
    assert rtt.rto == pytest.approx(0.3)
    rtt.sample(0.2)  # rttvar = 3/4 * 0.05 + 1/4 * |0.1 - 0.2|, srtt = 7/8 * 0.1 + 1/8 * 0.2
    assert rtt.rttvar == pytest.approx(0.0625)
    assert rtt.srtt == pytest.approx(0.1125)
    assert rtt.rto == pytest.approx(0.3625)


def test_backoff_doubles_up_to_the_maximum_and_ends_with_a_sample() -> None:
    rtt = RtoEstimator(TcpConfig(rto_max=5.0))
    seen = []
    for _ in range(4):
        rtt.backoff()
        seen.append(rtt.rto)
    assert seen == [2.0, 4.0, 5.0, 5.0]
    rtt.sample(0.4)
    assert rtt.rto == pytest.approx(1.2)


@given(st.lists(st.floats(0, 100), min_size=1))
def test_the_timeout_covers_the_mean_and_keeps_its_bounds(samples: list[float]) -> None:
    rtt = RtoEstimator(TcpConfig(rto_min=0.2, rto_max=60.0))
    for sample in samples:
        rtt.sample(sample)
        assert rtt.srtt is not None
        assert min(samples) - 1e-9 <= rtt.srtt <= max(samples) + 1e-9
        assert 0.2 <= rtt.rto <= 60.0
        assert rtt.rto >= min(rtt.srtt, 60.0)


def test_slow_start_then_congestion_avoidance() -> None:
    reno = NewReno(1000, 2)
    reno.ssthresh = 4000
    assert not reno.on_new_ack(1000, 1000, 3000)
    assert reno.cwnd == 3000
    reno.on_new_ack(2500, 3500, 6000)  # a stretch ACK opens by one segment only (RFC 5681 equation 2)
    assert reno.cwnd == 4000
    for acked in range(4):
        assert reno.cwnd == 4000
        reno.on_new_ack(1000, 4500 + 1000 * acked, 9000)
    assert reno.cwnd == 5000  # one segment for each window


def test_fast_recovery_with_two_losses() -> None:
    reno = NewReno(1000, 10)
    una, top = 1, 10_001
    assert [reno.on_dup_ack(una, top) for _ in range(3)] == [False, False, True]
    assert (reno.ssthresh, reno.cwnd, reno.in_recovery) == (5000, 8000, True)
    assert not reno.on_dup_ack(una, top)
    assert reno.cwnd == 9000
    assert reno.on_new_ack(4000, 4001, top)  # partial: the next segment is lost too
    assert (reno.cwnd, reno.in_recovery, reno.partial_acks) == (6000, True, 1)
    assert not reno.on_new_ack(6000, 10_001, top)  # full
    assert (reno.cwnd, reno.in_recovery) == (2000, False)  # nothing in flight: one segment plus one


def test_limited_transmit_allows_two_segments_more() -> None:
    reno = NewReno(1000, 3)
    seen = [reno.window()]
    for _ in range(2):
        reno.on_dup_ack(1, 3001)
        seen.append(reno.window())
    assert seen == [3000, 4000, 5000]
    assert reno.cwnd == 3000


def test_a_timeout_halves_once_and_bars_fast_retransmit_of_its_echoes() -> None:
    reno = NewReno(1000, 10)
    reno.on_timeout(1, 10_001)
    assert (reno.ssthresh, reno.cwnd) == (5000, 1000)
    reno.on_timeout(1, 10_001)
    assert (reno.ssthresh, reno.cwnd) == (5000, 1000)
    assert not any(reno.on_dup_ack(10_001, 12_001) for _ in range(5))
    reno.on_new_ack(1000, 11_001, 14_001)
    assert [reno.on_dup_ack(11_001, 14_001) for _ in range(3)] == [False, False, True]


@given(st.lists(st.tuples(st.sampled_from(["ack", "dup", "timeout"]), st.integers(1, 5000)), max_size=200))
def test_the_window_never_falls_below_a_segment(events: list[tuple[str, int]]) -> None:
    reno = NewReno(1000, 10)
    una, top = 1, 1
    for kind, size in events:
        top = max(top, una + reno.window())
        if kind == "ack":
            acked = min(size, top - una)
            una += acked
            reno.on_new_ack(acked, una, top)
        elif kind == "dup":
            reno.on_dup_ack(una, top)
        else:
            reno.on_timeout(una, top)
        assert reno.cwnd >= 1000
