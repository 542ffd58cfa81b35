"""A TCP endpoint without sockets, clocks or threads: segments and time in, segments and timers out."""

from __future__ import annotations

import math

from nccl_emu.tcp.arrival import segment_arrives
from nccl_emu.tcp.config import TcpConfig
from nccl_emu.tcp.errors import TcpError, TcpErrorKind, invalid_value
from nccl_emu.tcp.segment import Segment
from nccl_emu.tcp.stats import TcpStats
from nccl_emu.tcp.tcb import Tcb, TcpState

_SILENT = (TcpState.CLOSED, TcpState.LISTEN, TcpState.TIME_WAIT)
_OPEN_FOR_WRITING = (
    TcpState.ESTABLISHED,
    TcpState.CLOSE_WAIT,
    TcpState.LISTEN,
    TcpState.SYN_SENT,
    TcpState.SYN_RECEIVED,
)


class TcpEndpoint:
    """One end of one connection (RFC 9293, 5681, 5961, 6298, 6582).

    A driver calls `on_segment` for what arrives, `on_timer` when `next_timer()` is reached, and after *every*
    call (`write`, `read` and `close` too) `take_output` with the time of sending. `now` is any clock in
    seconds that does not run backwards. Ports that do not match are ignored (and counted): telling
    connections apart is the driver's work, and `reset_reply` builds the answer to segments of none.
    """

    def __init__(self, config: TcpConfig, local_port: int, remote_port: int | None, isn: int) -> None:
        """Make a closed endpoint.

        `remote_port` None lets a listener learn it from the first SYN. `isn` is the initial sequence number
        of our SYN; the caller draws it from its own seeded generator. Raises `TcpError` for values out of
        range.
        """
        _check_range("local_port", local_port, 0xFFFF, 1)
        if remote_port is not None:
            _check_range("remote_port", remote_port, 0xFFFF, 1)
        _check_range("isn", isn, 0xFFFFFFFF)
        self._tcb = Tcb(config, local_port, remote_port, isn)
        self._now = -math.inf

    @property
    def config(self) -> TcpConfig:
        """The configuration given at construction."""
        return self._tcb.config

    @property
    def local_port(self) -> int:
        """Our port."""
        return self._tcb.local_port

    @property
    def remote_port(self) -> int | None:
        """The peer's port; None while a listener waits for any peer."""
        return self._tcb.remote_port

    @property
    def isn(self) -> int:
        """Sequence number of our SYN; stream position p has sequence number (isn + p) mod 2**32."""
        return self._tcb.isn

    @property
    def state(self) -> TcpState:
        """State of the connection."""
        return self._tcb.state

    @property
    def error(self) -> TcpError | None:
        """Why the connection failed; None while it works and after an orderly end or a local abort."""
        return self._tcb.error

    @property
    def stats(self) -> TcpStats:
        """Live counters; read, do not write."""
        return self._tcb.stats

    @property
    def smoothed_rtt(self) -> float | None:
        """SRTT in seconds, None before the first sample."""
        return self._tcb.sender.rtt.srtt

    @property
    def rto(self) -> float:
        """Current retransmission timeout in seconds, backoff included."""
        return self._tcb.sender.rtt.rto

    @property
    def congestion_window(self) -> int:
        """cwnd in bytes."""
        return self._tcb.sender.congestion.cwnd

    @property
    def send_mss(self) -> int:
        """Largest payload of a segment that we send; final once the connection is established."""
        return self._tcb.sender.smss

    @property
    def unsent(self) -> int:
        """Bytes written and never sent."""
        sender = self._tcb.sender
        return max(sender.buffer.end - max(sender.top, 1), 0)

    @property
    def unacked(self) -> int:
        """Bytes sent and not acknowledged."""
        sender = self._tcb.sender
        return max(min(sender.top, sender.buffer.end) - max(sender.una, 1), 0)

    @property
    def writable(self) -> bool:
        """Whether `write` takes more: the state allows it and less than `config.send_buffer` bytes wait."""
        tcb = self._tcb
        buffer = tcb.sender.buffer
        waiting = buffer.end - buffer.start
        return tcb.state in _OPEN_FOR_WRITING and tcb.sender.fin is None and waiting < tcb.config.send_buffer

    @property
    def readable(self) -> int:
        """In-order bytes that `read` would return."""
        return self._tcb.receiver.data.readable

    @property
    def peer_closed(self) -> bool:
        """Whether the peer's FIN arrived after all its data: once `readable` is 0, nothing more will come."""
        return self._tcb.receiver.fin_received

    def open(self, now: float) -> None:
        """Open actively: the SYN, with `config.syn_dscp`, is in the next output."""
        self._advance_clock(now)
        self._require_unopened()
        if self._tcb.remote_port is None:
            raise invalid_value("remote_port", "an active open needs the port of the peer, got None")
        self._tcb.open_active()

    def listen(self) -> None:
        """Open passively: wait for the peer's SYN."""
        self._require_unopened()
        self._tcb.open_passive()

    def write(self, data: bytes | bytearray | memoryview, dscp: int = 0) -> None:
        """Append `data` to the stream; it travels in segments with `dscp` that hold no other bytes.

        All of `data` is taken, also where it overshoots `config.send_buffer`. Read-only buffers are kept by
        reference until acknowledged, writable ones are copied; see `SendBuffer.append`. Raises `TcpError`:
        BUFFER_FULL when `writable` is false for want of room, INVALID_STATE after `close` or before opening.
        """
        _check_range("dscp", dscp, 63)
        tcb = self._tcb
        if tcb.state not in _OPEN_FOR_WRITING or tcb.sender.fin is not None:
            raise tcb.make_error(TcpErrorKind.INVALID_STATE, "write needs an open stream: it is closed or unopened")
        if not self.writable:
            limit = f"send_buffer ({tcb.config.send_buffer} bytes) is full: write again when writable"
            raise tcb.make_error(TcpErrorKind.BUFFER_FULL, limit)
        tcb.sender.buffer.append(data, dscp)

    def read(self, limit: int | None = None) -> bytes:
        """Return up to `limit` in-order bytes (None: all), each once; may make a window update due."""
        if limit is not None and limit < 0:
            raise invalid_value("limit", f"must be at least 0 or None, got {limit}")
        return self._tcb.receiver.read(limit)

    def close(self, now: float) -> None:
        """Send a FIN after everything written; reading goes on until the peer closes.

        Before the handshake an endpoint to which nothing was written is closed at once; otherwise the
        handshake, the data and the FIN still follow (RFC 9293 section 3.10.4 would drop the data silently).
        """
        self._advance_clock(now)
        tcb = self._tcb
        if tcb.state in (TcpState.LISTEN, TcpState.SYN_SENT) and tcb.sender.buffer.end == 1:
            tcb.finish()
        elif tcb.state in _OPEN_FOR_WRITING and tcb.sender.fin is None:
            tcb.sender.close()
            if tcb.state is TcpState.ESTABLISHED:
                tcb.state = TcpState.FIN_WAIT_1
            elif tcb.state is TcpState.CLOSE_WAIT:
                tcb.state = TcpState.LAST_ACK

    def abort(self, now: float) -> None:
        """Drop the connection at once; the peer gets a RST where one is due (RFC 9293 section 3.10.5)."""
        self._advance_clock(now)
        tcb = self._tcb
        if tcb.state not in _SILENT and tcb.state is not TcpState.SYN_SENT:
            tcb.replies.append(tcb.reset_segment())
        tcb.finish()

    def on_segment(self, segment: Segment, now: float) -> None:
        """Take a segment whose checksums were right. Nothing that arrives raises an exception."""
        self._advance_clock(now)
        self._tcb.stats.segments_received += 1
        segment_arrives(self._tcb, segment, now)

    def on_timer(self, now: float) -> None:
        """Handle every timer that has expired at `now`; harmless when none has."""
        self._advance_clock(now)
        tcb = self._tcb
        if tcb.time_wait_deadline is not None and tcb.time_wait_deadline <= now:
            tcb.finish()
        tcb.receiver.on_timer(now)
        deadline = tcb.sender.deadline
        if deadline is not None and deadline <= now and not tcb.sender.on_timer(now):
            limit = tcb.config.max_retransmissions
            tcb.fail(TcpErrorKind.RETRANSMISSION_LIMIT, f"no answer after {limit} retransmissions in a row")

    def next_timer(self) -> float | None:
        """Return the time of the next timer, None when none runs."""
        tcb = self._tcb
        timers = (tcb.sender.deadline, tcb.receiver.ack_deadline, tcb.time_wait_deadline)
        return min((timer for timer in timers if timer is not None), default=None)

    def take_output(self, now: float) -> list[Segment]:
        """Return the segments to send at `now`: as many as both windows allow, then ACKs that are due."""
        self._advance_clock(now)
        tcb = self._tcb
        output, tcb.replies = tcb.replies, []
        if tcb.state not in _SILENT:
            sender = tcb.sender
            while (piece := sender.poll(now)) is not None:
                output.append(tcb.segment_of(piece))
        for _ in range(tcb.receiver.take_bare_acks()):
            output.append(tcb.bare_ack())
        tcb.stats.segments_sent += len(output)
        return output

    def _advance_clock(self, now: float) -> None:
        # NaN fails this comparison too, and would silence every timer.
        if not now >= self._now:
            raise invalid_value("now", f"time must not run backwards: got {now} after {self._now}")
        self._now = now

    def _require_unopened(self) -> None:
        tcb = self._tcb
        if tcb.state is not TcpState.CLOSED or tcb.sender.top or tcb.receiver.data.next:
            raise tcb.make_error(TcpErrorKind.INVALID_STATE, "an endpoint is opened once; make a new one")


def _check_range(name: str, value: int, largest: int, smallest: int = 0) -> None:
    if not smallest <= value <= largest:
        raise invalid_value(name, f"must be in {smallest}..{largest}, got {value}")
