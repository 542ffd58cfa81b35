"""Opening, closing, resetting: each path through the states of RFC 9293."""

from __future__ import annotations

import pytest

from nccl_emu.tcp import Segment, TcpConfig, TcpEndpoint, TcpErrorKind, TcpState, reset_reply
from tests.nccl_emu.tcp.tcp_peer import ACK, FIN, IRS, ISN, PSH, RST, SYN, Peer


def listening(remote_port: int | None = None) -> Peer:
    peer = Peer(TcpConfig(mss=1000, window_scale=7), remote_port=remote_port)
    peer.endpoint.listen()
    return peer


def test_active_open_offers_options_and_tags_its_syn() -> None:
    endpoint = TcpEndpoint(TcpConfig(mss=8960, window_scale=5, syn_dscp=11), 1000, 2000, ISN)
    endpoint.open(0.0)
    expected = Segment(1000, 2000, ISN, 0, SYN, 65535, b"", 11, 8960, 5)
    assert endpoint.take_output(0.0) == [expected]
    assert endpoint.next_timer() == 1.0
    endpoint.on_timer(1.0)
    assert endpoint.take_output(1.0) == [expected]  # the tag stays on the retransmission


def test_passive_open_learns_the_port_and_answers_the_offered_options_only() -> None:
    peer = listening()
    peer.send(SYN, 0, 0, now=0.0, mss=500, dscp=11)
    (reply,) = peer.endpoint.take_output(0.0)
    assert reply == Segment(1000, 2000, ISN, (IRS + 1) & 0xFFFFFFFF, SYN | ACK, 65535, b"", 0, 1000, None)
    assert (peer.endpoint.state, peer.endpoint.remote_port) == (TcpState.SYN_RECEIVED, 2000)
    peer.ack(1, now=0.1)
    assert peer.endpoint.state is TcpState.ESTABLISHED
    assert peer.endpoint.send_mss == 500


def test_window_scale_applies_after_the_handshake_only() -> None:
    peer = listening()
    peer.window = 3000
    peer.send(SYN, 0, 0, now=0.0, mss=1000, window_scale=2)
    (reply,) = peer.endpoint.take_output(0.0)
    assert (reply.window_scale, reply.window) == (7, 65535)
    peer.endpoint.write(bytes(20_000))
    peer.ack(1, now=0.1, window=1500)  # 1500 << 2 = 6000 bytes
    sent = peer.endpoint.take_output(0.1)
    assert sum(len(segment.payload) for segment in sent) == 6000
    assert sent[0].window == (1 << 20) >> 7


def test_without_scale_on_either_side_windows_stay_below_64_kib() -> None:
    peer = Peer(TcpConfig(mss=1000, window_scale=7))
    peer.connect(window_scale=None)
    peer.send(ACK, 1, 1, b"x", now=0.1)
    peer.send(ACK, 2, 1, b"y", now=0.1)
    assert [segment.window for segment in peer.endpoint.take_output(0.1)] == [65533]


def test_without_mss_option_the_peer_takes_536() -> None:
    peer = Peer()
    peer.connect(mss=None)
    assert peer.endpoint.send_mss == 536


@pytest.mark.parametrize("mss", [0, 1, 63])
def test_a_silly_mss_is_not_followed(mss: int) -> None:
    peer = Peer()
    peer.connect(mss=mss)
    assert peer.endpoint.send_mss == 64


def test_simultaneous_open() -> None:
    peer = Peer(TcpConfig(mss=1000, syn_dscp=11))
    peer.endpoint.open(0.0)
    peer.take(0.0)
    peer.send(SYN, 0, 0, now=0.1, mss=1000)
    (reply,) = peer.endpoint.take_output(0.1)
    assert (reply.flags, reply.dscp) == (SYN | ACK, 0)
    assert peer.endpoint.state is TcpState.SYN_RECEIVED
    peer.send(SYN | ACK, 0, 1, now=0.2)  # below the window: answered with an ACK, as the peer answers ours
    assert peer.take(0.2) == [("A", 1, 0, 1)]
    peer.ack(1, now=0.3)
    assert peer.endpoint.state is TcpState.ESTABLISHED


def test_simultaneous_open_of_two_endpoints() -> None:
    ends = [TcpEndpoint(TcpConfig(), 1 + i, 2 - i, 1000 * i) for i in (0, 1)]
    for end in ends:
        end.open(0.0)
    for step in range(3):
        outputs = [end.take_output(0.1 * step) for end in ends]
        for i, output in enumerate(outputs):
            for segment in output:
                ends[1 - i].on_segment(segment, 0.1 * step + 0.05)
    assert [end.state for end in ends] == [TcpState.ESTABLISHED] * 2


def test_refused_connection() -> None:
    peer = Peer()
    peer.endpoint.open(0.0)
    peer.take(0.0)
    peer.send(RST, 0, 0, now=0.1)  # without ACK: anyone could have sent it
    peer.send(RST | ACK, 0, 0, now=0.1)  # acknowledges nothing of ours
    assert peer.endpoint.state is TcpState.SYN_SENT
    peer.send(RST | ACK, 0, 1, now=0.1)
    assert peer.endpoint.state is TcpState.CLOSED
    assert peer.endpoint.error is not None
    assert peer.endpoint.error.kind is TcpErrorKind.REFUSED
    assert peer.endpoint.next_timer() is None


def test_a_wrong_acknowledgment_in_syn_sent_gets_a_reset() -> None:
    peer = Peer()
    peer.endpoint.open(0.0)
    peer.take(0.0)
    peer.send(SYN | ACK, 0, 7, now=0.1)
    assert peer.take(0.1) == [("R", 7, 0, 0)]
    assert peer.endpoint.state is TcpState.SYN_SENT


def test_listener_ignores_reset_resets_ack_and_survives_a_reset_handshake() -> None:
    peer = listening()
    peer.send(RST, 0, 0, now=0.0)
    assert peer.take(0.0) == []
    peer.ack(5, now=0.0)
    assert peer.take(0.0) == [("R", 5, 0, 0)]
    peer.send(SYN, 0, 0, now=0.1)
    peer.take(0.1)
    peer.send(RST, 1, 0, now=0.2)
    assert (peer.endpoint.state, peer.endpoint.remote_port) == (TcpState.LISTEN, None)
    assert peer.endpoint.next_timer() is None
    peer.send(SYN, 50, 0, now=0.3)  # a new attempt, with another initial sequence number
    assert peer.take(0.3) == [("SA", 0, 0, 51)]
    peer.ack(1, now=0.4, position=51)
    assert peer.endpoint.state is TcpState.ESTABLISHED


def test_options_of_a_handshake_that_came_to_nothing_are_forgotten() -> None:
    peer = listening()
    peer.send(SYN, 0, 0, now=0.0, mss=700, window_scale=4)
    peer.take(0.0)
    peer.send(RST, 1, 0, now=0.1)
    peer.window = 2000
    peer.send(SYN, 50, 0, now=0.2, mss=1000)
    (reply,) = peer.endpoint.take_output(0.2)
    assert reply.window_scale is None
    peer.endpoint.write(bytes(5000))
    peer.ack(1, now=0.3, position=51)
    assert [length for _, _, length, _ in peer.take(0.3)] == [1000, 1000]


def test_a_new_syn_during_the_handshake_returns_to_listen() -> None:
    peer = listening(remote_port=2000)
    peer.send(SYN, 0, 0, now=0.0)
    peer.take(0.0)
    peer.send(SYN, 5, 0, now=0.1)
    assert (peer.endpoint.state, peer.endpoint.remote_port) == (TcpState.LISTEN, 2000)


def test_syn_received_refuses_a_wrong_acknowledgment() -> None:
    peer = listening()
    peer.send(SYN, 0, 0, now=0.0)
    peer.take(0.0)
    peer.ack(9, now=0.1)
    assert peer.take(0.1) == [("R", 9, 0, 0)]
    assert peer.endpoint.state is TcpState.SYN_RECEIVED


def test_active_close_goes_through_time_wait() -> None:
    peer = Peer(TcpConfig(time_wait=2.0))
    peer.connect()
    peer.endpoint.write(b"bye", 11)
    peer.endpoint.close(0.1)
    assert peer.endpoint.state is TcpState.FIN_WAIT_1
    data, fin = peer.endpoint.take_output(0.1)
    assert (data.payload, data.dscp, FIN in data.flags) == (b"bye", 11, False)  # a tagged segment has no FIN
    assert (fin.flags, fin.payload, fin.dscp) == (FIN | ACK, b"", 0)
    peer.ack(4, now=0.2)
    assert peer.endpoint.state is TcpState.FIN_WAIT_1
    peer.ack(5, now=0.2)
    assert peer.endpoint.state is TcpState.FIN_WAIT_2
    peer.send(ACK | PSH, 1, 5, b"late data", now=0.3)
    assert peer.endpoint.read() == b"late data"
    peer.send(FIN | ACK, 10, 5, now=0.4)
    assert peer.take(0.4) == [("A", 5, 0, 11)]
    assert (peer.endpoint.state, peer.endpoint.next_timer()) == (TcpState.TIME_WAIT, 2.4)
    peer.send(FIN | ACK, 10, 5, now=1.4)  # our ACK was lost: acknowledge again, wait anew
    assert peer.take(1.4) == [("A", 5, 0, 11)]
    assert peer.endpoint.next_timer() == 3.4
    peer.endpoint.on_timer(3.4)
    assert (peer.endpoint.state, peer.endpoint.error) == (TcpState.CLOSED, None)
    assert peer.endpoint.next_timer() is None


def test_passive_close() -> None:
    peer = Peer()
    peer.connect()
    peer.send(FIN | ACK, 1, 1, b"", now=0.1)
    assert peer.take(0.1) == [("A", 1, 0, 2)]
    assert (peer.endpoint.state, peer.endpoint.peer_closed) == (TcpState.CLOSE_WAIT, True)
    peer.endpoint.write(b"still sending")
    peer.endpoint.close(0.2)
    assert peer.endpoint.state is TcpState.LAST_ACK
    assert peer.take(0.2) == [("A", 1, 13, 2), ("FA", 14, 0, 2)]
    peer.ack(15, now=0.3, position=2)
    assert (peer.endpoint.state, peer.endpoint.error) == (TcpState.CLOSED, None)


def test_simultaneous_close() -> None:
    peer = Peer()
    peer.connect()
    peer.endpoint.close(0.1)
    assert peer.take(0.1) == [("FA", 1, 0, 1)]
    peer.send(FIN | ACK, 1, 1, now=0.2)
    assert peer.endpoint.state is TcpState.CLOSING
    assert peer.take(0.2) == [("A", 2, 0, 2)]
    peer.ack(2, now=0.3, position=2)
    assert peer.endpoint.state is TcpState.TIME_WAIT


def test_fin_with_data_and_the_acknowledgment_of_ours_in_one_segment() -> None:
    peer = Peer()
    peer.connect()
    peer.endpoint.close(0.1)
    peer.take(0.1)
    peer.send(FIN | ACK | PSH, 1, 2, b"end", now=0.2)
    assert (peer.endpoint.state, peer.endpoint.read()) == (TcpState.TIME_WAIT, b"end")


def test_fin_before_its_data_waits_for_it() -> None:
    peer = Peer()
    peer.connect()
    peer.send(FIN | ACK, 4, 1, b"def", now=0.1)
    peer.send(ACK, 5, 1, b"ef and beyond the end", now=0.1)  # nothing follows a FIN
    assert (peer.endpoint.state, peer.endpoint.readable) == (TcpState.ESTABLISHED, 0)
    peer.send(ACK, 1, 1, b"abc", now=0.2)
    assert (peer.endpoint.state, peer.endpoint.read()) == (TcpState.CLOSE_WAIT, b"abcdef")
    assert peer.take(0.2) == [("A", 1, 0, 8)]


def test_close_during_the_handshake_sends_the_fin_after_it() -> None:
    peer = listening()
    peer.endpoint.write(b"hello")
    peer.send(SYN, 0, 0, now=0.0, mss=1000)
    peer.endpoint.close(0.0)
    assert peer.take(0.0) == [("SA", 0, 0, 1)]
    assert peer.endpoint.state is TcpState.SYN_RECEIVED
    peer.ack(1, now=0.1)
    assert peer.endpoint.state is TcpState.FIN_WAIT_1
    assert peer.take(0.1) == [("A", 1, 5, 1), ("FA", 6, 0, 1)]


def test_abort_resets_the_peer() -> None:
    peer = Peer()
    peer.connect()
    peer.endpoint.write(bytes(500))
    peer.take(0.1)
    peer.endpoint.abort(0.2)
    assert peer.take(0.2) == [("R", 501, 0, 0)]
    assert (peer.endpoint.state, peer.endpoint.error) == (TcpState.CLOSED, None)
    peer.ack(1, now=0.3)  # the challenge ACK of a peer that has not received all: its ACK number resets it
    assert peer.take(0.3) == [("R", 1, 0, 0)]


def test_abort_before_the_handshake_says_nothing() -> None:
    peer = Peer()
    peer.endpoint.open(0.0)
    peer.take(0.0)
    peer.endpoint.abort(0.1)
    assert peer.take(0.1) == []


def test_reset_by_peer_needs_the_exact_sequence_number() -> None:
    peer = Peer()
    peer.connect()
    peer.send(ACK, 1, 1, b"kept", now=0.1)
    peer.take(0.1)
    peer.send(RST, 6, 0, now=0.2)  # in the window, not exact: challenge ACK (RFC 5961)
    assert peer.take(0.2) == [("A", 1, 0, 5)]
    peer.send(RST, 4, 0, now=0.3)  # outside: dropped without an answer
    peer.send(RST, 5 + 70_000, 0, now=0.3)
    assert peer.take(0.3) == []
    assert peer.endpoint.state is TcpState.ESTABLISHED
    peer.send(RST, 5, 0, now=0.4)
    assert peer.endpoint.state is TcpState.CLOSED
    error = peer.endpoint.error
    assert error is not None
    assert (error.kind, error.local_port, error.remote_port) == (TcpErrorKind.RESET, 1000, 2000)
    assert peer.endpoint.read() == b"kept"


@pytest.mark.parametrize(("acked", "error"), [(1, TcpErrorKind.RESET), (6, None)])
def test_reset_while_closing_is_an_error_only_if_data_may_be_lost(acked: int, error: TcpErrorKind | None) -> None:
    peer = Peer()
    peer.connect()
    peer.send(FIN | ACK, 1, 1, now=0.1)
    peer.endpoint.write(b"hello")
    peer.endpoint.close(0.1)
    peer.take(0.1)
    peer.ack(acked, now=0.2, position=2)
    assert peer.endpoint.state is TcpState.LAST_ACK
    peer.send(RST, 2, 0, now=0.3)
    assert peer.endpoint.state is TcpState.CLOSED
    assert (peer.endpoint.error and peer.endpoint.error.kind) == error


def test_syn_and_acks_of_what_was_never_sent_are_challenged_within_a_limit() -> None:
    peer = Peer()
    peer.connect()
    peer.send(SYN, 1, 0, now=0.1)
    assert peer.take(0.1) == [("A", 1, 0, 1)]
    peer.send(ACK, 1, 5000, b"data", now=0.1)
    assert peer.take(0.1) == [("A", 1, 0, 1)]
    assert peer.endpoint.readable == 0
    answers = 0
    for _ in range(100):
        peer.send(SYN, 1, 0, now=0.2)
        answers += len(peer.take(0.2))
    assert answers == 8  # ten in five seconds
    peer.send(SYN, 1, 0, now=5.3)
    assert len(peer.take(5.3)) == 1
    assert peer.endpoint.stats.challenge_acks == 11


def test_bare_acks_from_outside_the_window_are_answered_within_the_limit() -> None:
    peer = Peer()
    peer.connect()
    answers = 0
    for _ in range(100):
        peer.ack(1, now=0.1, position=-50)
        answers += len(peer.take(0.1))
    assert answers == 10
    assert peer.endpoint.stats.unacceptable == 100


def test_fin_beyond_a_full_window_waits_for_room() -> None:
    peer = Peer(TcpConfig(mss=1000, receive_window=1000, window_scale=0))
    peer.connect()
    peer.send(FIN | ACK, 1, 1, bytes(1000), now=0.1)
    assert (peer.endpoint.state, peer.endpoint.readable) == (TcpState.ESTABLISHED, 1000)
    peer.send(FIN | ACK, 1001, 1, now=0.2)
    assert peer.endpoint.state is TcpState.ESTABLISHED
    assert [segment.window for segment in peer.endpoint.take_output(0.2)] == [0]
    peer.endpoint.read()
    assert [segment.window for segment in peer.endpoint.take_output(0.3)] == [1000]
    peer.send(FIN | ACK, 1001, 1, now=0.3)
    assert peer.endpoint.state is TcpState.CLOSE_WAIT


def test_old_acknowledgments_are_accepted_within_the_largest_window() -> None:
    peer = Peer()
    peer.window = 2000
    peer.connect()
    for at in range(1, 6001, 1000):
        peer.endpoint.write(bytes(1000))
        peer.take(0.1)
        peer.ack(at + 1000, now=0.1)
    peer.send(ACK, 1, 4001, b"ok", now=0.2)  # UNA - MAX.WND
    peer.send(ACK, 3, 4000, b"no", now=0.2)
    assert peer.endpoint.read() == b"ok"
    assert peer.endpoint.stats.challenge_acks == 1


def test_segments_of_other_ports_are_ignored() -> None:
    peer = Peer()
    peer.connect()
    peer.endpoint.on_segment(Segment(2001, 1000, (IRS + 1) & 0xFFFFFFFF, 0, RST, 0), 0.1)
    peer.endpoint.on_segment(Segment(2000, 999, (IRS + 1) & 0xFFFFFFFF, 0, RST, 0), 0.1)
    assert peer.endpoint.state is TcpState.ESTABLISHED
    assert peer.endpoint.stats.other_connection == 2


def test_answers_of_a_closed_port() -> None:
    assert reset_reply(Segment(1, 2, 10, 77, ACK | PSH, 9, b"x")) == Segment(2, 1, 77, 0, RST, 0)
    assert reset_reply(Segment(1, 2, 0xFFFFFFFE, 0, SYN | FIN, 9, b"xy")) == Segment(2, 1, 0, 2, RST | ACK, 0)
    assert reset_reply(Segment(1, 2, 10, 77, RST | ACK, 0)) is None
    closed = TcpEndpoint(TcpConfig(), 2, 1, 0)
    closed.on_segment(Segment(1, 2, 10, 77, ACK, 9), 0.0)
    assert closed.take_output(0.0) == [Segment(2, 1, 77, 0, RST, 0)]


def test_a_half_open_connection_is_found_out() -> None:
    """The peer crashed and connects again with the same port: challenge, its reset, and we are free."""
    peer = Peer()
    peer.connect()
    peer.endpoint.write(bytes(10))
    peer.take(0.1)
    peer.send(SYN, 100_000, 0, now=0.2)
    (challenge,) = peer.endpoint.take_output(0.2)
    reply = reset_reply(challenge)
    assert reply is not None
    peer.endpoint.on_segment(reply, 0.3)
    assert peer.endpoint.error is not None
