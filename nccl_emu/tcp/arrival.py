"""SEGMENT ARRIVES (RFC 9293 section 3.10.7), with the blind attack defences of RFC 5961."""

from __future__ import annotations

from nccl_emu.tcp.errors import TcpErrorKind
from nccl_emu.tcp.segment import ACK, FIN, RST, SYN, Segment, reset_reply
from nccl_emu.tcp.seqnum import to_position
from nccl_emu.tcp.tcb import Tcb, TcpState

_PEER_DONE = (TcpState.CLOSING, TcpState.LAST_ACK, TcpState.TIME_WAIT)
_TAKES_DATA = (TcpState.ESTABLISHED, TcpState.FIN_WAIT_1, TcpState.FIN_WAIT_2)


def segment_arrives(tcb: Tcb, segment: Segment, now: float) -> None:
    """Update `tcb` for `segment`, which the network delivered at `now`."""
    if segment.dst_port != tcb.local_port or tcb.remote_port not in (None, segment.src_port):
        tcb.stats.other_connection += 1
        return
    state = tcb.state
    if state is TcpState.CLOSED:
        _reply_reset(tcb, segment)
    elif state is TcpState.LISTEN:
        _arrives_in_listen(tcb, segment)
    elif state is TcpState.SYN_SENT:
        _arrives_in_syn_sent(tcb, segment, now)
    else:
        _arrives_synchronized(tcb, segment, now)


def _reply_reset(tcb: Tcb, segment: Segment) -> None:
    reply = reset_reply(segment)
    if reply is not None:
        tcb.replies.append(reply)


def _arrives_in_listen(tcb: Tcb, segment: Segment) -> None:
    flags = int(segment.flags)
    if flags & RST:
        return
    if flags & ACK:
        _reply_reset(tcb, segment)
    elif flags & SYN:
        # Data on a SYN is left to the peer's retransmission: our ACK will not cover it.
        tcb.remote_port = segment.src_port
        tcb.take_syn(segment)
        tcb.sender.start()
        tcb.state = TcpState.SYN_RECEIVED


def _arrives_in_syn_sent(tcb: Tcb, segment: Segment, now: float) -> None:
    flags = int(segment.flags)
    sender = tcb.sender
    ack = to_position(tcb.isn, segment.ack, sender.una)
    if flags & ACK and not 0 < ack <= sender.top:
        _reply_reset(tcb, segment)
        return
    if flags & RST:
        if flags & ACK:
            tcb.fail(TcpErrorKind.REFUSED, "the peer refused the connection: is it listening on that port?")
        return
    if not flags & SYN:
        return
    tcb.take_syn(segment)
    tcb.receiver.ack_now()
    if flags & ACK:
        sender.on_ack(ack, segment.window, 0, now, bare=False)
        _establish(tcb, segment.window, 0, ack)
    else:  # simultaneous open: answer with SYN+ACK
        tcb.state = TcpState.SYN_RECEIVED
        sender.next = 0


def _establish(tcb: Tcb, window: int, seq: int, ack: int) -> None:
    tcb.sender.establish(window, seq, ack)
    tcb.state = TcpState.ESTABLISHED if tcb.sender.fin is None else TcpState.FIN_WAIT_1


def _arrives_synchronized(tcb: Tcb, segment: Segment, now: float) -> None:
    """Handle a segment in SYN-RECEIVED or a later state."""
    receiver, sender = tcb.receiver, tcb.sender
    flags, payload = int(segment.flags), segment.payload
    seq = to_position(receiver.initial_seq, segment.seq, receiver.data.next)
    bare = not payload and not flags & (SYN | FIN)
    if not receiver.accepts(seq, segment.length, bare=bare and not flags & RST):
        if not (receiver.window == 0 and seq == receiver.data.next):
            _arrives_outside_window(tcb, flags, bare, now)
            return
        # With a closed window nothing is acceptable, but a valid RST or ACK at RCV.NXT still counts.
        # (Its FIN is beyond the window as well, and `_take_data` will leave it.)
        payload = b""
        receiver.ack_now()
    if flags & RST:
        _take_reset(tcb, seq, now)
        return
    if flags & SYN:
        if tcb.state is not TcpState.SYN_RECEIVED or not tcb.give_up_handshake():
            tcb.challenge(now)
        return
    if not flags & ACK:
        return
    ack = to_position(tcb.isn, segment.ack, sender.una)
    window = segment.window << tcb.send_scale
    if tcb.state is TcpState.SYN_RECEIVED:
        if not sender.una < ack <= sender.top:
            _reply_reset(tcb, segment)
            return
        sender.on_ack(ack, window, seq, now, bare=False)
        _establish(tcb, window, seq, ack)
    elif not sender.una - sender.max_window <= ack <= sender.top:
        tcb.challenge(now)  # RFC 5961 section 5
        return
    else:
        sender.on_ack(ack, window, seq, now, bare=bare)
    if sender.fin_acked and not _own_fin_acknowledged(tcb, now):
        return
    _take_data(tcb, seq, payload, flags, now)


def _arrives_outside_window(tcb: Tcb, flags: int, bare: bool, now: float) -> None:
    tcb.stats.unacceptable += 1
    if flags & RST:
        return
    if tcb.state is TcpState.TIME_WAIT and flags & FIN:
        tcb.enter_time_wait(now)  # the peer did not get our ACK: its retransmitted FIN starts 2 MSL anew
    if bare:
        # Two ends that disagree on the sequence numbers would answer each other's bare ACKs forever.
        tcb.challenge(now)
    else:
        tcb.receiver.ack_now()


def _take_reset(tcb: Tcb, seq: int, now: float) -> None:
    """Handle a RST inside the window (RFC 5961 section 3: only the exact sequence number resets)."""
    if seq != tcb.receiver.data.next:
        tcb.challenge(now)
        return
    state = tcb.state
    if state is TcpState.SYN_RECEIVED:
        if not tcb.give_up_handshake():
            tcb.fail(TcpErrorKind.REFUSED, "the peer reset the connection during the handshake")
    elif state in _PEER_DONE and tcb.sender.all_data_acked:
        tcb.finish()  # the peer has left TIME-WAIT; all data of both sides is delivered
    else:
        tcb.fail(TcpErrorKind.RESET, "the peer reset the connection")


def _own_fin_acknowledged(tcb: Tcb, now: float) -> bool:
    """Advance the state after the ACK of our FIN; returns False when the connection is closed by it."""
    state = tcb.state
    if state is TcpState.FIN_WAIT_1:
        tcb.state = TcpState.FIN_WAIT_2
    elif state is TcpState.CLOSING:
        tcb.enter_time_wait(now)
    elif state is TcpState.LAST_ACK:
        tcb.finish()
        return False
    return True


def _take_data(tcb: Tcb, seq: int, payload: bytes, flags: int, now: float) -> None:
    receiver = tcb.receiver
    if tcb.state not in _TAKES_DATA:
        return
    if payload:
        receiver.take_payload(seq, payload, now)
    if flags & FIN:
        position = seq + len(payload)
        if position < receiver.data.next + receiver.window:
            receiver.take_fin(position)
    if not receiver.advance_over_fin():
        return
    if tcb.state is TcpState.ESTABLISHED:
        tcb.state = TcpState.CLOSE_WAIT
    elif tcb.state is TcpState.FIN_WAIT_1:
        tcb.state = TcpState.CLOSING
    else:
        tcb.enter_time_wait(now)
