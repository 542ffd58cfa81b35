"""The transmission control block: everything that one connection knows (RFC 9293 section 3.3.1)."""

from __future__ import annotations

from enum import Enum

from nccl_emu.tcp.config import MAX_WINDOW_SCALE, TcpConfig
from nccl_emu.tcp.errors import TcpError, TcpErrorKind
from nccl_emu.tcp.receiver import Receiver
from nccl_emu.tcp.segment import ACK, FLAGS_OF, RST, SYN, Segment
from nccl_emu.tcp.sender import Outgoing, Sender
from nccl_emu.tcp.seqnum import to_seq
from nccl_emu.tcp.stats import TcpStats

_CHALLENGE_ACKS = 10
_CHALLENGE_PERIOD = 5.0
"""At most so many challenge ACKs in so many seconds (RFC 5961 section 7)."""


class TcpState(Enum):
    """Connection states of RFC 9293 section 3.3.2."""

    CLOSED = "CLOSED"
    LISTEN = "LISTEN"
    SYN_SENT = "SYN-SENT"
    SYN_RECEIVED = "SYN-RECEIVED"
    ESTABLISHED = "ESTABLISHED"
    FIN_WAIT_1 = "FIN-WAIT-1"
    FIN_WAIT_2 = "FIN-WAIT-2"
    CLOSE_WAIT = "CLOSE-WAIT"
    CLOSING = "CLOSING"
    LAST_ACK = "LAST-ACK"
    TIME_WAIT = "TIME-WAIT"


class Tcb:
    """State of one connection, and the conversion from positions to segments."""

    def __init__(self, config: TcpConfig, local_port: int, remote_port: int | None, isn: int) -> None:
        """Begin in CLOSED; the arguments are those of `TcpEndpoint`."""
        self.config = config
        self.local_port = local_port
        self.remote_port = remote_port
        self.isn = isn
        self.state = TcpState.CLOSED
        self.error: TcpError | None = None
        self.stats = TcpStats()
        self.sender = Sender(config, self.stats)
        self.receiver = Receiver(config, self.stats)
        self.replies: list[Segment] = []
        self.time_wait_deadline: float | None = None
        self.send_scale = 0
        """Shift count of the windows that the peer announces, except in its SYN (RFC 7323 section 2.2)."""
        self._learns_peer = remote_port is None
        self._passive = False
        self._offers_scale = False
        self._challenge_start: float | None = None
        self._challenges = 0

    def open_active(self) -> None:
        """Begin an active open."""
        self._offers_scale = self.config.window_scale is not None
        self.state = TcpState.SYN_SENT
        self.sender.start()

    def open_passive(self) -> None:
        """Begin a passive open, or return to LISTEN after a handshake that came to nothing."""
        self._passive = True
        self._offers_scale = False
        if self._learns_peer:
            self.remote_port = None
        self.sender = Sender(self.config, self.stats, self.sender.buffer)
        self.receiver = Receiver(self.config, self.stats)
        self.send_scale = 0
        self.state = TcpState.LISTEN

    def take_syn(self, segment: Segment) -> None:
        """Take the sequence number and the options of the peer's SYN or SYN+ACK."""
        self.receiver.start(segment.seq)
        self.sender.negotiate(segment.mss)
        own = self.config.window_scale
        if own is not None and segment.window_scale is not None:
            self._offers_scale = True
            self.send_scale = min(segment.window_scale, MAX_WINDOW_SCALE)
            self.receiver.use_scale(own)
        else:
            self._offers_scale = False

    def give_up_handshake(self) -> bool:
        """Return a passively opened connection to LISTEN; False when it was opened actively or is closed."""
        if not self._passive or self.sender.fin is not None:
            return False
        self.open_passive()
        return True

    def challenge(self, now: float) -> None:
        """Answer a doubtful segment with an ACK, within the limit of RFC 5961 section 7."""
        if self._challenge_start is None or now - self._challenge_start >= _CHALLENGE_PERIOD:
            self._challenge_start = now
            self._challenges = 0
        if self._challenges < _CHALLENGE_ACKS:
            self._challenges += 1
            self.stats.challenge_acks += 1
            self.receiver.ack_now()

    def segment_of(self, piece: Outgoing) -> Segment:
        """Return the segment that carries `piece`."""
        flags, dscp = piece.flags, piece.dscp
        seq = to_seq(self.isn, piece.position)
        if flags & SYN:
            return self._syn_segment(seq)
        self.receiver.acknowledged()
        return self._segment(seq, flags | ACK, piece.payload, dscp)

    def bare_ack(self) -> Segment:
        """Return an ACK without data.

        Its sequence number is SND.MAX (not SND.NXT, which a timeout moves back to bytes that the peer may
        have), but no more than the window's right edge: beyond it lies only a zero-window probe, and the peer
        would refuse an ACK from there.
        """
        sender = self.sender
        position = sender.top
        if sender.una > 0:
            position = min(position, sender.una + sender.window)
        return self._segment(to_seq(self.isn, position), ACK, b"", 0)

    def reset_segment(self) -> Segment:
        """Return the RST of an abort (RFC 9293 section 3.10.5)."""
        seq = to_seq(self.isn, self.sender.top)
        return Segment(self.local_port, self.remote_port or 0, seq, 0, FLAGS_OF[RST], 0)

    def enter_time_wait(self, now: float) -> None:
        """Go to TIME-WAIT, or start its time anew."""
        self.state = TcpState.TIME_WAIT
        self.sender.stop()
        self.time_wait_deadline = now + self.config.time_wait

    def finish(self) -> None:
        """Go to CLOSED; bytes that arrived in order stay readable."""
        self.state = TcpState.CLOSED
        self.sender.stop()
        self.receiver.stop()
        self.time_wait_deadline = None

    def fail(self, kind: TcpErrorKind, detail: str) -> None:
        """Go to CLOSED because of an error."""
        self.error = self.make_error(kind, detail)
        self.finish()

    def make_error(self, kind: TcpErrorKind, detail: str) -> TcpError:
        """Return an error with this connection's ports and state."""
        return TcpError(kind, detail, local_port=self.local_port, remote_port=self.remote_port, state=self.state.value)

    def _segment(self, seq: int, flags: int, payload: bytes, dscp: int) -> Segment:
        receiver = self.receiver
        ack = to_seq(receiver.initial_seq, receiver.data.next)
        window = receiver.window_field()
        assert self.remote_port is not None  # known since the first segment of the handshake
        return Segment(self.local_port, self.remote_port, seq, ack, FLAGS_OF[flags], window, payload, dscp)

    def _syn_segment(self, seq: int) -> Segment:
        """Return our SYN (active opener, before the peer's SYN) or SYN+ACK."""
        assert self.remote_port is not None
        scale = self.config.window_scale if self._offers_scale else None
        window = self.receiver.syn_window_field()
        mss = self.config.mss
        if self.state is TcpState.SYN_SENT:
            dscp = self.config.syn_dscp
            return Segment(self.local_port, self.remote_port, seq, 0, FLAGS_OF[SYN], window, b"", dscp, mss, scale)
        self.receiver.acknowledged()
        ack = to_seq(self.receiver.initial_seq, self.receiver.data.next)
        return Segment(self.local_port, self.remote_port, seq, ack, FLAGS_OF[SYN | ACK], window, b"", 0, mss, scale)
