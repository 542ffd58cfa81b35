"""Loss repair, timers, windows and acknowledgments, event by event."""

from __future__ import annotations

import pytest

from nccl_emu.tcp import TcpConfig, TcpErrorKind, TcpFlags, TcpState
from tests.nccl_emu.tcp.tcp_peer import ACK, FIN, PSH, Peer


def connected(window: int = 60_000, **config: object) -> Peer:
    settings = {"mss": 1000, "rto_min": 0.2} | config
    peer = Peer(TcpConfig(**settings))  # type: ignore[arg-type]
    peer.window = window
    peer.connect()
    return peer


def data(*positions: int, size: int = 1000) -> list[tuple[str, int, int, int]]:
    return [("A", position, size, 1) for position in positions]


def test_initial_window_then_slow_start() -> None:
    peer = connected(initial_cwnd=2)
    peer.endpoint.write(bytes(20_000))
    assert peer.take(0.1) == data(1, 1001)
    assert (peer.endpoint.unsent, peer.endpoint.unacked) == (18_000, 2000)
    peer.ack(1001, now=0.2)
    peer.ack(2001, now=0.2)
    assert peer.take(0.2) == data(2001, 3001, 4001, 5001)
    assert peer.endpoint.congestion_window == 4000


def test_tags_split_segments_and_go_with_their_bytes_when_sent_again() -> None:
    peer = connected()
    for size, dscp in ((1500, 0), (300, 11), (200, 11), (100, 3), (100, 0)):
        peer.endpoint.write(bytes([dscp]) * size, dscp)
    expected = [(1000, 0), (500, 0), (500, 11), (100, 3), (100, 0)]

    def shape(now: float) -> list[tuple[int, int]]:
        segments = peer.endpoint.take_output(now)
        assert all(set(segment.payload) == {segment.dscp} for segment in segments)
        return [(len(segment.payload), segment.dscp) for segment in segments]

    assert shape(0.1) == expected
    peer.endpoint.on_timer(1.2)
    peer.ack(801, now=1.2)  # the receiver has part of the first segment: boundaries move, tags do not
    assert shape(1.2) == [(700, 0), (500, 11), (100, 3), (100, 0)]


def test_push_marks_the_end_of_what_was_written() -> None:
    peer = connected()
    peer.endpoint.write(bytes(2500))
    pushed = [PSH in segment.flags for segment in peer.endpoint.take_output(0.1)]
    assert pushed == [False, False, True]


def test_third_duplicate_ack_resends_at_once() -> None:
    peer = connected()
    peer.endpoint.write(bytes(10_000))
    peer.take(0.1)
    outputs = []
    for _ in range(3):
        peer.ack(1, now=0.15)
        outputs.append(peer.take(0.15))
    assert outputs == [[], [], data(1)]
    stats = peer.endpoint.stats
    assert (stats.dup_acks, stats.fast_retransmits, stats.retransmits, stats.timeouts) == (3, 1, 1, 0)


def test_an_ack_that_overtakes_the_fast_retransmit_cancels_it() -> None:
    peer = connected()
    peer.endpoint.write(bytes(5000))
    peer.take(0.1)
    for _ in range(3):
        peer.ack(1, now=0.15)
    peer.ack(5001, now=0.15)  # the segment was late, not lost, and all this arrived together
    assert peer.take(0.15) == []
    assert peer.endpoint.next_timer() is None


def test_an_ack_that_overtakes_a_probe_cancels_it() -> None:
    peer = connected()
    peer.endpoint.write(bytes(500))
    peer.take(0.0)
    peer.ack(1, now=0.1, window=0)
    peer.endpoint.on_timer(0.2)
    peer.ack(501, now=0.2, window=0)
    assert peer.take(0.2) == []
    assert peer.endpoint.next_timer() is None


def test_what_does_not_count_as_a_duplicate_ack() -> None:
    peer = connected()
    peer.endpoint.write(bytes(5000))
    peer.take(0.1)
    for count in range(5):
        peer.ack(1, now=0.11, window=50_000 + count)  # window updates
        peer.send(ACK, 1 + count, 1, b"x", now=0.11)  # carries data
    assert peer.endpoint.stats.dup_acks == 0
    peer.ack(5001, now=0.12)
    for _ in range(5):
        peer.ack(5001, now=0.13)  # nothing is in flight
    assert peer.endpoint.stats.dup_acks == 0


def test_partial_ack_resends_the_next_hole_and_recovery_ends_with_the_full_ack() -> None:
    peer = connected()
    peer.endpoint.write(bytes(12_000))
    peer.take(0.1)  # 1..10001 in flight; 1 and 3001 are lost
    for _ in range(7):
        peer.ack(1, now=0.12)
    assert peer.take(0.12) == [*data(1), *data(10_001, 11_001)]  # inflated window lets new data out
    peer.ack(3001, now=0.14)
    assert peer.take(0.14) == data(3001)
    peer.ack(12_001, now=0.16)
    assert peer.take(0.16) == []
    assert peer.endpoint.congestion_window == 2000
    assert peer.endpoint.stats.fast_retransmits == 1
    assert peer.endpoint.next_timer() is None


def test_only_the_first_partial_ack_of_a_recovery_restarts_the_timer() -> None:
    peer = connected()
    peer.endpoint.write(bytes(10_000))
    peer.take(0.1)
    for _ in range(3):
        peer.ack(1, now=0.12)
    peer.take(0.12)
    timers = []
    for ack, now in ((2001, 0.14), (4001, 0.16), (6001, 0.18)):
        peer.ack(ack, now=now)
        assert peer.take(now)[0] == data(ack)[0]
        timers.append(peer.endpoint.next_timer())
    assert timers == [pytest.approx(0.14 + 0.2)] * 3


def test_fast_retransmit_gives_no_sample_either() -> None:
    peer = connected()
    peer.endpoint.write(bytes(5000))
    peer.take(0.1)
    for _ in range(3):
        peer.ack(1, now=0.12)
    peer.take(0.12)
    peer.ack(5001, now=0.9)
    assert peer.endpoint.smoothed_rtt == 0.0


def test_timeouts_back_off_and_karn_takes_no_sample_of_a_retransmission() -> None:
    peer = connected()
    assert peer.endpoint.smoothed_rtt == 0.0  # the handshake took no time here
    peer.endpoint.write(bytes(3000))
    peer.take(1.0)
    expiries = []
    for _ in range(4):
        timer = peer.endpoint.next_timer()
        assert timer is not None
        expiries.append(round(timer - 1.0, 6))
        peer.endpoint.on_timer(timer)
        assert peer.take(timer) == data(1)  # the window is one segment
    assert expiries == [0.2, 0.6, 1.4, 3.0]
    assert peer.endpoint.stats.timeouts == 4
    peer.ack(1001, now=10.0)  # of which of the five copies? no sample
    assert (peer.endpoint.smoothed_rtt, peer.endpoint.rto) == (0.0, 3.2)
    assert peer.take(10.0) == data(1001, 2001)  # go-back-N, slow start from one segment
    peer.ack(3001, now=10.5)
    assert peer.endpoint.rto == 3.2  # these were sent twice as well
    peer.endpoint.write(bytes(1000))
    peer.take(11.0)
    peer.ack(4001, now=11.8)  # srtt = 0.8 / 8, rttvar = 0.8 / 4
    assert peer.endpoint.rto == pytest.approx(0.1 + 4 * 0.2)


def test_an_ack_of_everything_after_a_timeout_stops_the_retransmission() -> None:
    peer = connected()
    peer.endpoint.write(bytes(5000))
    peer.take(0.1)
    peer.endpoint.on_timer(2.0)
    peer.take(2.0)
    peer.ack(5001, now=2.1)
    assert peer.take(2.1) == []
    assert peer.endpoint.next_timer() is None


def test_lost_syn_shrinks_the_initial_window_and_slows_the_timer() -> None:
    peer = Peer(TcpConfig(mss=1000))
    peer.endpoint.open(0.0)
    peer.take(0.0)
    peer.endpoint.on_timer(1.0)
    assert peer.take(1.0) == [("S", 0, 0, 0)]
    peer.send(TcpFlags.SYN | ACK, 0, 1, now=1.1, mss=1000)
    peer.endpoint.write(bytes(5000))
    assert peer.take(1.1) == [("A", 1, 1000, 1)]
    assert peer.endpoint.next_timer() == pytest.approx(1.1 + 3.0)  # RFC 6298 rule 5.7


def test_lost_syn_ack_is_sent_again() -> None:
    peer = Peer()
    peer.endpoint.listen()
    peer.send(TcpFlags.SYN, 0, 0, now=0.0, mss=1000)
    assert peer.take(0.0) == [("SA", 0, 0, 1)]
    peer.send(TcpFlags.SYN, 0, 0, now=0.5, mss=1000)  # the peer repeats itself: an ACK, nothing else
    assert peer.take(0.5) == [("A", 1, 0, 1)]
    peer.endpoint.on_timer(1.0)
    assert peer.take(1.0) == [("SA", 0, 0, 1)]


def test_lost_fin_is_sent_again() -> None:
    peer = connected()
    peer.endpoint.close(0.0)
    assert peer.take(0.0) == [("FA", 1, 0, 1)]
    peer.endpoint.on_timer(0.2)
    assert peer.take(0.2) == [("FA", 1, 0, 1)]


@pytest.mark.parametrize("phase", ["handshake", "data", "probe"])
def test_too_many_timeouts_fail_the_connection(phase: str) -> None:
    config = TcpConfig(mss=1000, max_retransmissions=3)
    peer = Peer(config)
    if phase == "handshake":
        peer.endpoint.open(0.0)
    else:
        peer.window = 0 if phase == "probe" else 5000
        peer.connect()
        peer.endpoint.write(bytes(10))
    sent = len(peer.take(0.0))
    while (timer := peer.endpoint.next_timer()) is not None:
        peer.endpoint.on_timer(timer)
        sent += len(peer.take(timer))
    assert sent == (3 if phase == "probe" else 4)
    assert peer.endpoint.state is TcpState.CLOSED
    assert peer.endpoint.error is not None
    assert peer.endpoint.error.kind is TcpErrorKind.RETRANSMISSION_LIMIT
    assert not peer.endpoint.writable


def test_zero_window_is_probed_with_one_tagged_byte_for_ever_while_the_peer_answers() -> None:
    peer = connected(window=0, max_retransmissions=3, rto_max=10.0)
    peer.endpoint.write(b"tagged", 11)
    assert peer.take(0.0) == []
    gaps, last = [], 0.0
    for _ in range(12):
        now = peer.endpoint.next_timer()
        assert now is not None
        gaps.append(round(now - last, 6))
        last = now
        peer.endpoint.on_timer(now)
        (probe,) = peer.endpoint.take_output(now)
        assert (probe.payload, probe.dscp) == (b"t", 11)
        peer.ack(1, now=now)
        assert peer.take(now) == []
    assert gaps[:7] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert (peer.endpoint.error, peer.endpoint.stats.zero_window_probes) == (None, 12)
    assert (peer.endpoint.stats.dup_acks, peer.endpoint.stats.timeouts) == (0, 0)
    peer.ack(1, now=last + 1, window=5000)
    assert peer.take(last + 1) == data(1, size=6)
    assert peer.endpoint.next_timer() == pytest.approx(last + 1 + 0.2)  # the backoff of the probes is over


def test_a_probe_that_the_peer_takes_advances() -> None:
    peer = connected(window=0)
    peer.endpoint.write(b"abc")
    peer.take(0.0)
    peer.endpoint.on_timer(0.2)
    peer.take(0.2)
    peer.ack(2, now=0.3)
    assert peer.endpoint.unacked == 0
    peer.endpoint.close(0.3)
    peer.ack(2, now=0.4, window=100)
    assert peer.take(0.4) == [("A", 2, 2, 1), ("FA", 4, 0, 1)]


def test_a_fin_alone_is_probed_too() -> None:
    peer = connected(window=0)
    peer.endpoint.close(0.0)
    assert peer.take(0.0) == []
    peer.endpoint.on_timer(0.2)
    assert peer.take(0.2) == [("FA", 1, 0, 1)]


def test_window_that_closes_over_data_in_flight_resends_it_as_the_probe() -> None:
    peer = connected()
    peer.endpoint.write(bytes(500))
    peer.take(0.0)
    peer.ack(1, now=0.1, window=0)
    peer.endpoint.on_timer(0.2)
    assert peer.take(0.2) == data(1, size=500)
    peer.ack(501, now=0.3, window=0)
    assert peer.endpoint.next_timer() is None


def test_data_in_flight_when_the_window_closed_follows_when_it_reopens() -> None:
    peer = connected()
    peer.endpoint.write(bytes(3000))
    peer.take(0.0)
    peer.ack(1, now=0.1, window=0)
    peer.endpoint.on_timer(0.2)
    assert peer.take(0.2) == data(1)
    peer.ack(1001, now=0.3, window=5000)
    assert peer.take(0.3) == data(1001, 2001)
    assert peer.endpoint.next_timer() is not None


def test_half_of_the_largest_window_is_worth_a_short_segment() -> None:
    peer = connected(window=1500)
    peer.endpoint.write(bytes(700))
    assert peer.take(0.0) == data(1, size=700)
    peer.endpoint.write(bytes(2000))
    assert peer.take(0.0) == data(701, size=800)


def test_bare_acks_stay_inside_the_peers_window_during_probes() -> None:
    peer = connected(window=0)
    peer.endpoint.write(b"abc")
    peer.take(0.0)
    peer.endpoint.on_timer(0.2)
    peer.take(0.2)
    peer.send(ACK, 1, 1, b"x", now=0.3)
    peer.send(ACK, 2, 1, b"y", now=0.3)
    assert peer.take(0.3) == [("A", 1, 0, 3)]  # not from 2, where the probe ended


def test_sender_waits_for_a_worthwhile_window() -> None:
    peer = connected(window=4000)
    peer.endpoint.write(bytes(6000))
    assert peer.take(0.0) == data(1, 1001, 2001, 3001)
    peer.ack(1001, now=0.1, window=3300)  # 300 bytes of room: less than a segment, less than half the window
    assert peer.take(0.1) == []
    peer.ack(4001, now=0.2, window=300)  # nothing in flight: waiting would wait for ever
    assert peer.take(0.2) == data(4001, size=300)


def test_idle_connection_restarts_from_the_initial_window() -> None:
    peer = connected(initial_cwnd=2)
    peer.endpoint.write(bytes(4000))
    peer.take(0.0)
    peer.ack(1001, now=0.01)
    peer.ack(2001, now=0.01)
    peer.take(0.01)
    peer.ack(4001, now=0.02)
    assert peer.endpoint.congestion_window == 5000
    peer.endpoint.write(bytes(5000))
    assert peer.take(9.0) == data(4001, 5001)


def test_every_second_segment_is_acknowledged_and_a_lone_one_after_the_delay() -> None:
    peer = connected(delayed_ack=0.04)
    peer.send(ACK, 1, 1, bytes(1000), now=1.0)
    assert peer.take(1.0) == []
    assert peer.endpoint.next_timer() == pytest.approx(1.04)
    peer.send(ACK, 1001, 1, bytes(1000), now=1.01)
    assert peer.take(1.01) == [("A", 1, 0, 2001)]
    assert peer.endpoint.next_timer() is None
    peer.send(ACK, 2001, 1, bytes(1000), now=2.0)
    assert peer.take(2.0) == []
    peer.endpoint.on_timer(2.04)
    assert peer.take(2.04) == [("A", 1, 0, 3001)]


def test_no_delay_acknowledges_each_segment() -> None:
    peer = connected(delayed_ack=0)
    peer.send(ACK, 1, 1, b"x", now=1.0)
    assert peer.take(1.0) == [("A", 1, 0, 2)]


def test_data_carries_the_acknowledgment_that_was_delayed() -> None:
    peer = connected()
    peer.send(ACK, 1, 1, b"request", now=1.0)
    peer.endpoint.write(b"answer")
    assert peer.take(1.0) == [("A", 1, 6, 8)]
    assert peer.endpoint.next_timer() == pytest.approx(1.2)  # retransmission; no delayed ACK


def test_each_out_of_order_segment_gets_its_duplicate_ack_even_taken_together() -> None:
    peer = connected()
    peer.endpoint.write(b"reply")  # its ACK does not count as a duplicate
    for at in (1001, 2001, 3001):
        peer.send(ACK, at, 1, bytes(1000), now=1.0)
    assert peer.take(1.0) == [("A", 1, 5, 1), *[("A", 6, 0, 1)] * 3]
    peer.send(ACK, 1, 1, bytes(1000), now=1.1)  # fills the gap: at once
    assert peer.take(1.1) == [("A", 6, 0, 4001)]
    assert peer.endpoint.stats.out_of_order == 3
    assert peer.endpoint.read() == bytes(4000)


def test_old_and_overlapping_data() -> None:
    peer = connected()
    peer.send(ACK, 1, 1, b"abcdef", now=1.0)
    peer.take(1.0)
    peer.send(ACK, 1, 1, b"abc", now=1.1)  # entirely old: acknowledged again
    assert peer.take(1.1) == [("A", 1, 0, 7)]
    peer.send(ACK, 4, 1, b"defghi", now=1.2)  # partly old
    assert peer.endpoint.read() == b"abcdefghi"
    assert peer.endpoint.stats.unacceptable == 1
    assert peer.endpoint.stats.bytes_received == 9


def test_data_beyond_the_window_is_cut_off() -> None:
    peer = connected(receive_window=1000, window_scale=0)
    peer.send(ACK, 1, 1, bytes(1500), now=1.0)
    assert peer.endpoint.readable == 1000
    peer.endpoint.write(b"hi")
    assert [segment.window for segment in peer.endpoint.take_output(1.0)] == [0]
    peer.send(ACK, 1001, 3, b"y", now=1.1)  # probe into the closed window: its ACK counts, its byte does not
    assert peer.take(1.1) == [("A", 3, 0, 1001)]
    assert (peer.endpoint.readable, peer.endpoint.unacked) == (1000, 0)


def test_a_closed_window_reopens_with_an_update_once_that_is_worthwhile() -> None:
    peer = connected(receive_window=4000, window_scale=None)
    for at in range(1, 4001, 1000):
        peer.send(ACK, at, 1, bytes(1000), now=1.0)
    assert [segment.window for segment in peer.endpoint.take_output(1.0)] == [0]
    assert len(peer.endpoint.read(500)) == 500
    assert peer.endpoint.take_output(1.1) == []  # less than a segment: silly
    assert len(peer.endpoint.read(500)) == 500
    assert [segment.window for segment in peer.endpoint.take_output(1.2)] == [1000]
    peer.endpoint.read(500)
    assert peer.endpoint.take_output(1.2) == []
    peer.endpoint.read()
    assert [segment.window for segment in peer.endpoint.take_output(1.3)] == [4000]


def test_a_window_of_one_scale_unit_reopens_when_all_is_read() -> None:
    """The smallest window of a scale is zero or one on the wire: what rounding hides must not stay hidden."""
    peer = Peer(TcpConfig(mss=64, receive_window=128, window_scale=7))
    peer.connect(window_scale=0)
    peer.send(ACK, 1, 1, bytes(128), now=0.1)
    peer.endpoint.on_timer(0.2)
    assert [segment.window for segment in peer.endpoint.take_output(0.2)] == [0]
    updates = []
    for size in (65, 63):
        peer.endpoint.read(size)
        peer.send(ACK, 120, 1, bytes(5), now=0.3)  # makes an ACK due, which moves what is announced
        updates.append([segment.window for segment in peer.endpoint.take_output(0.3)])
    assert updates == [[0], [1]]


def test_reading_later_costs_no_extra_acks_while_the_window_is_wide() -> None:
    peer = connected(receive_window=60_000, window_scale=None)
    for index in range(6):
        peer.send(ACK, 1 + 1000 * index, 1, bytes(1000), now=1.0)
    assert len(peer.take(1.0)) == 1
    assert len(peer.endpoint.read()) == 6000
    assert peer.take(1.0) == []


def test_reading_at_once_costs_no_extra_acks() -> None:
    peer = connected(receive_window=60_000, window_scale=None)
    acks = 0
    for index in range(20):
        peer.send(ACK, 1 + 1000 * index, 1, bytes(1000), now=1.0)
        peer.endpoint.read()
        acks += len(peer.endpoint.take_output(1.0))
    assert acks == 10


def test_a_bare_ack_from_the_right_edge_counts() -> None:
    """A peer that filled our window, with its first segment lost, acknowledges from the edge."""
    peer = connected(receive_window=4000, window_scale=None)
    peer.endpoint.write(b"hello")
    peer.take(0.5)
    peer.ack(6, now=0.6, position=4001)
    assert peer.endpoint.unacked == 0
    assert peer.endpoint.stats.unacceptable == 0


def test_stale_window_updates_do_not_win() -> None:
    peer = connected()
    peer.endpoint.write(bytes(3000))
    peer.take(0.0)
    peer.send(ACK, 5, 1, b"z", now=0.1, window=40_000)
    peer.ack(1, now=0.1, position=1, window=100)  # sent earlier, arrived later
    peer.endpoint.write(bytes(30_000))
    assert sum(length for _, _, length, _ in peer.take(0.1)) >= 7000


def test_segments_without_ack_are_ignored() -> None:
    peer = connected()
    peer.send(PSH, 1, 0, b"data", now=0.1)
    peer.send(FIN, 1, 0, b"", now=0.1)
    assert (peer.endpoint.readable, peer.endpoint.state) == (0, TcpState.ESTABLISHED)


def test_urgent_data_is_ordinary_data() -> None:
    peer = connected()
    peer.send(ACK | TcpFlags.URG, 1, 1, b"urgent", now=0.1)
    assert peer.endpoint.read() == b"urgent"
