"""The sending half of a connection: what to send now, what to send again, and the retransmission timer."""

from __future__ import annotations

from typing import NamedTuple

from nccl_emu.tcp.config import MIN_SEND_MSS, TcpConfig
from nccl_emu.tcp.congestion import NewReno
from nccl_emu.tcp.rtt import RtoEstimator
from nccl_emu.tcp.segment import FIN, PSH, SYN
from nccl_emu.tcp.send_buffer import SendBuffer
from nccl_emu.tcp.stats import TcpStats

_DEFAULT_PEER_MSS = 536
"""Send MSS when the peer's SYN had no MSS option (RFC 9293 section 3.7.1)."""


class Outgoing(NamedTuple):
    """A piece of the send sequence space that must go out now."""

    position: int
    flags: int
    payload: bytes
    dscp: int


class Sender:
    """Send sequence space in positions: 0 is the SYN, data starts at 1, the FIN is one after the last byte.

    `una` is SND.UNA. `next` is the next position to send; a timeout moves it back to `una` (go-back-N). `top`
    is one after the highest position ever sent (SND.MAX), the SND.NXT that acknowledgments are checked
    against.
    """

    def __init__(self, config: TcpConfig, stats: TcpStats, buffer: SendBuffer | None = None) -> None:
        """Begin before the SYN, with the data of `buffer` if given; `stats` is updated in place."""
        self.buffer = SendBuffer() if buffer is None else buffer
        self.una = 0
        self.next = 0
        self.top = 0
        self.window = 0
        """SND.WND in bytes."""
        self.max_window = 0
        """Largest window that the peer ever announced."""
        self.fin: int | None = None
        """Position of our FIN once the stream is closed."""
        self.deadline: float | None = None
        """When the retransmission (or zero-window probe) timer expires."""
        self.rtt = RtoEstimator(config)
        self.congestion = NewReno(min(config.mss, _DEFAULT_PEER_MSS), config.initial_cwnd)
        self.smss = self.congestion.smss
        self._config = config
        self._stats = stats
        self._started = False
        self._window_seq = 0  # SND.WL1: position in the peer's stream of the last window update
        self._window_ack = 0  # SND.WL2: our position that it acknowledged
        self._expiries = 0  # of the timer in a row, without an answer
        self._syn_expired = False
        self._resend_head = False
        self._probing = False  # the timer is a zero-window timer; then `next` is `una`
        self._probe_due = False
        self._probe_interval = 0.0
        self._timed: tuple[int, float] | None = None  # (position that ends the sample, time of sending)
        self._last_sent = 0.0

    def start(self) -> None:
        """Let the SYN go out."""
        self._started = True

    def negotiate(self, peer_mss: int | None) -> None:
        """Take the MSS of the peer's SYN."""
        announced = _DEFAULT_PEER_MSS if peer_mss is None else max(peer_mss, MIN_SEND_MSS)
        self.smss = min(self._config.mss, announced)
        self.congestion = NewReno(self.smss, self._config.initial_cwnd)

    def establish(self, window: int, seq: int, ack: int) -> None:
        """Take the window of the segment that ends the handshake; `seq` is its place in the peer's stream."""
        self._set_window(window, seq, ack)
        if self._syn_expired:
            # RFC 6298 rule 5.7 asks for 3 s when the initial timeout is the standard 1 s.
            if self.rtt.srtt is None:
                self.rtt.restart(3 * self._config.rto_initial)
            self.congestion.on_lost_syn()

    def on_ack(self, ack: int, window: int, seq: int, now: float, *, bare: bool) -> None:
        """Take an acceptable ACK (SND.UNA - MAX.SND.WND <= `ack` <= `top`) with the peer's `window` in bytes.

        `seq` is the segment's position in the peer's stream; `bare` is True without payload, SYN and FIN.
        """
        una = self.una
        if ack < una:
            return
        if self._probing:
            self._expiries = 0  # the peer lives, and may keep its window closed for ever
        if ack > una:
            self._advance(ack, now)
        elif bare and una < self.top and window == self.window and window > 0:
            self._stats.dup_acks += 1
            if self.congestion.on_dup_ack(una, self.top):
                self._stats.fast_retransmits += 1
                self._resend_head = True
        if self._window_seq < seq or (self._window_seq == seq and self._window_ack <= ack):
            self._set_window(window, seq, ack)

    def on_timer(self, now: float) -> bool:
        """Handle the expired timer; returns False when the peer has not answered for too long."""
        self._expiries += 1
        if self._expiries > self._config.max_retransmissions:
            return False
        if self.window == 0 and self.una > 0:
            if not self._probing:
                self._probing = True
                self._probe_interval = self.rtt.rto
                self.next = self.una
                self._timed = None
            self._probe_due = True
            self._probe_interval = min(2 * self._probe_interval, self._config.rto_max)
            self.deadline = now + self._probe_interval
            return True
        self._stats.timeouts += 1
        if self.una == 0:
            self._syn_expired = True
        self.rtt.backoff()
        if self.una > 0:
            self.congestion.on_timeout(self.una, self.top)
        self.next = self.una
        self._timed = None
        self._resend_head = False
        self.deadline = now + self.rtt.rto
        return True

    def poll(self, now: float) -> Outgoing | None:
        """Return the next piece to send at `now`, None when there is nothing (more) to send."""
        if self._resend_head:
            self._resend_head = False
            return self._send(self.una, self.buffer.run(self.una, self.smss), now)
        if self._probe_due:
            self._probe_due = False
            self._stats.zero_window_probes += 1
            # Bytes in flight when the window closed go again, else one byte beyond the window.
            size = self.buffer.run(self.una, min(self.smss, max(1, self.top - self.una)))
            return self._send(self.una, size, now)
        if self.next == 0:
            if not self._started:
                return None
            self.next = 1
            return self._send(0, 0, now)
        if self.una == 0:
            return None
        room = self._room(now)
        size = self.buffer.run(self.next, self.smss)
        if size == 0 and self.fin != self.next:
            return None
        if room < max(size, 1):
            # Sender side of silly window avoidance (RFC 9293 section 3.8.6.2.1): less than was possible goes
            # out only when no ACK is on its way that could allow more, or when it is half of the peer's
            # buffer.
            idle = self.next == self.una
            if room <= 0 or not (idle or 2 * room >= self.max_window):
                if self.deadline is None:
                    self._probing = True
                    self._probe_interval = self.rtt.rto
                    self.deadline = now + self._probe_interval
                return None
            size = room
        piece = self._send(self.next, size, now)
        self.next += max(len(piece.payload), 1)
        return piece

    def close(self) -> None:
        """Put a FIN after the last byte written."""
        self.fin = self.buffer.end

    @property
    def fin_acked(self) -> bool:
        """Whether the peer acknowledged our FIN."""
        return self.fin is not None and self.una > self.fin

    @property
    def all_data_acked(self) -> bool:
        """Whether the peer acknowledged every byte written (not necessarily our FIN)."""
        return self.una >= self.buffer.end

    def stop(self) -> None:
        """Drop the timer and everything still to be sent: the connection is over."""
        self.deadline = None
        self.buffer = SendBuffer()
        self.fin = None
        self._resend_head = self._probe_due = False

    def _room(self, now: float) -> int:
        """Return how many bytes from `next` on may be sent."""
        if now - self._last_sent > self.rtt.rto:
            self.congestion.on_idle()
        return self.una + min(self.congestion.window(), self.window) - self.next

    def _send(self, position: int, size: int, now: float) -> Outgoing:
        """Account for what goes out at `position` (`size` bytes of data, 0 for SYN and FIN) and return it."""
        if position == 0:
            piece = Outgoing(0, SYN, b"", 0)
        elif position == self.fin:
            piece = Outgoing(position, FIN, b"", 0)
        else:
            payload, dscp = self.buffer.take(position, size)
            flags = PSH if position + size == self.buffer.end else 0
            piece = Outgoing(position, flags, payload, dscp)
            self._stats.bytes_sent += size
        end = position + max(size, 1)
        if position < self.top:
            self._stats.retransmits += 1
            self._timed = None  # Karn: no sample while anything in flight was sent twice
        elif self._timed is None and not self._probing:
            self._timed = (end, now)
        self.top = max(self.top, end)
        if self.deadline is None:
            self.deadline = now + self.rtt.rto
        self._last_sent = now
        return piece

    def _advance(self, ack: int, now: float) -> None:
        """Take an ACK of new positions."""
        if self._timed is not None and ack >= self._timed[0]:
            self.rtt.sample(now - self._timed[1])
            self._timed = None
        first_data = max(self.una, 1)
        acked = min(ack, self.buffer.end) - first_data
        self.una = ack
        self._expiries = 0
        if self.next < ack:
            self.next = ack
        if acked > 0:
            self._stats.bytes_acked += acked
            self.buffer.release(first_data + acked)
        partial = self.congestion.on_new_ack(max(acked, 0), ack, self.top)
        if ack == self.top:
            self.deadline = None
        elif not partial or self.congestion.partial_acks == 1:
            # The "impatient" variant of RFC 6582 section 4: later partial ACKs leave the timer alone, so that
            # a window with many losses falls back to a timeout instead of one repair per round trip.
            self.deadline = now + self.rtt.rto
        # What was due for the old head is overtaken by this ACK.
        self._resend_head = partial
        self._probe_due = False

    def _set_window(self, window: int, seq: int, ack: int) -> None:
        self._window_seq = seq
        self._window_ack = ack
        self.window = window
        self.max_window = max(self.max_window, window)
        if self._probing and window > 0:
            self._probing = self._probe_due = False
            self.deadline = None  # `next` is `una`: the data that waited goes out at once and arms the timer
