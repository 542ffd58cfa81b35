"""The receiving half of a connection: window, reassembly, and when to acknowledge."""

from __future__ import annotations

from nccl_emu.tcp.config import MAX_UNSCALED_WINDOW, TcpConfig
from nccl_emu.tcp.reassembly import Reassembly
from nccl_emu.tcp.stats import TcpStats


class Receiver:
    """Sequence space of the peer's stream, in positions (0 is its SYN, 1 its first byte)."""

    def __init__(self, config: TcpConfig, stats: TcpStats) -> None:
        """Wait for the peer's SYN; `stats` is updated in place."""
        self.initial_seq = 0
        """IRS, the sequence number of the peer's SYN; valid once `start` was called."""
        self.data = Reassembly()
        self.fin: int | None = None
        """Position of the peer's FIN once one was seen, in order or not."""
        self.fin_received = False
        """Whether the FIN and everything before it arrived."""
        self.ack_deadline: float | None = None
        """When the delayed ACK is due."""
        self.scale = 0
        """Shift count of the windows that we announce."""
        self._capacity = min(config.receive_window, MAX_UNSCALED_WINDOW)
        self._full_capacity = config.receive_window
        self._mss = config.mss
        self._delay = config.delayed_ack
        self._stats = stats
        self._edge = self._capacity  # one after the last position that we announced room for
        self._ack_now = False
        self._duplicates_due = 0
        self._unacked_segments = 0

    def start(self, initial_seq: int) -> None:
        """Take the peer's SYN."""
        self.initial_seq = initial_seq
        self.data.skip(1)
        self._edge = 1 + self._capacity

    def use_scale(self, scale: int) -> None:
        """Announce windows with the negotiated shift count from now on (never in a SYN)."""
        self.scale = scale
        self._capacity = self._full_capacity

    @property
    def window(self) -> int:
        """RCV.WND: bytes from RCV.NXT on that the peer may send."""
        return self._edge - self.data.next

    def window_field(self) -> int:
        """Open the window as far as the buffer allows and return the header's window field."""
        self._edge = self._offered_edge()
        return min(self.window >> self.scale, MAX_UNSCALED_WINDOW)

    def syn_window_field(self) -> int:
        """Return the window field of a SYN, which is never scaled."""
        return min(self._capacity, MAX_UNSCALED_WINDOW)

    def accepts(self, position: int, length: int, *, bare: bool) -> bool:
        """Apply the acceptability test (RFC 9293 table 6) to a segment of SEG.LEN `length` at `position`.

        A bare ACK exactly at the right edge is acceptable too, beyond the table: a peer that has filled our
        window sends its ACKs from there, and what they acknowledge must not wait for a repaired loss.
        """
        start, edge = self.data.next, self._edge
        if length > 0:
            return start < edge and position < edge and position + length > start
        if start == edge:
            return position == start
        return start <= position < edge or (bare and position == edge)

    def take_payload(self, position: int, payload: bytes, now: float) -> None:
        """Store the acceptable segment's payload and decide when to acknowledge it (RFC 5681 section 4.2)."""
        data = self.data
        before, had_gap = data.next, data.has_gap
        room = (self._edge if self.fin is None else min(self._edge, self.fin)) - position
        data.add(position, payload if len(payload) <= room else payload[: max(room, 0)])
        if position > before:
            # One duplicate ACK for each such segment: the sender counts them.
            self._stats.out_of_order += 1
            self._duplicates_due += 1
            return
        self._stats.bytes_received += data.next - before
        self._unacked_segments += 1
        self._duplicates_due = 0
        if had_gap or self._unacked_segments >= 2 or self._delay == 0:
            self._ack_now = True
        elif self.ack_deadline is None:
            self.ack_deadline = now + self._delay

    def take_fin(self, position: int) -> None:
        """Remember the peer's FIN; the first one counts."""
        if self.fin is None:
            self.fin = position

    def advance_over_fin(self) -> bool:
        """Step over the FIN when all data before it is here; returns whether that happened now."""
        if self.fin_received or self.fin != self.data.next:
            return False
        self.data.skip(1)
        self.fin_received = True
        self.ack_now()
        return True

    def read(self, limit: int | None) -> bytes:
        """Return up to `limit` in-order bytes; asks for a window update where the window opens much."""
        announced = (self.window >> self.scale) << self.scale
        result = self.data.read(limit)
        if self.fin_received or not result:
            return result
        opened = self._offered_edge() - self.data.next
        much = min(self._capacity // 2, 2 * self._mss)
        reopened = announced == 0 and opened >> self.scale > 0
        if reopened or (2 * announced <= self._capacity and opened - announced >= much):
            self.ack_now()
        return result

    def ack_now(self) -> None:
        """Ask for an ACK with the next output."""
        self._ack_now = True

    def on_timer(self, now: float) -> None:
        """Ask for the delayed ACK when it is due."""
        if self.ack_deadline is not None and self.ack_deadline <= now:
            self.ack_now()

    def take_bare_acks(self) -> int:
        """Return how many ACKs must go out on their own now, and count them as sent."""
        count = self._duplicates_due or int(self._ack_now)
        if count:
            self._duplicates_due = 0
            self.acknowledged()
        return count

    def acknowledged(self) -> None:
        """Note that a segment with the current acknowledgment goes out.

        It stands for an ACK that is due, but not for duplicate ACKs: the peer counts only bare ones.
        """
        self.ack_deadline = None
        self._unacked_segments = 0
        self._ack_now = False

    def stop(self) -> None:
        """Drop everything that is due: the connection is over."""
        self._duplicates_due = 0
        self.acknowledged()

    def _offered_edge(self) -> int:
        """Return the right edge to announce: moved by a worthwhile step only (RFC 9293 section 3.8.6.2.2)."""
        edge = self.data.next + self._capacity - self.data.readable
        worthwhile = min(self._capacity // 2, self._mss)
        if self.data.readable == 0 or edge - self._edge >= worthwhile:
            return max(edge, self._edge)
        return self._edge
