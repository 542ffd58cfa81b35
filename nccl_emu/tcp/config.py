"""Configuration of a TCP endpoint, validated where it is written."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nccl_emu.tcp.errors import invalid_value

MAX_WINDOW_SCALE = 14
"""Largest shift count that RFC 7323 section 2.3 allows."""
MAX_UNSCALED_WINDOW = 65535
"""Largest window without the window scale option."""
MIN_SEND_MSS = 64
"""A peer that announces less is sent segments of this size: protects from one-byte segments."""

_INTEGER_FIELDS = ("mss", "receive_window", "send_buffer", "initial_cwnd", "max_retransmissions", "syn_dscp")
_TIME_FIELDS = ("rto_initial", "rto_min", "rto_max", "delayed_ack", "time_wait")


@dataclass(frozen=True)
class TcpConfig:
    """Parameters of one endpoint; times are in seconds, sizes in bytes.

    Raises `TcpError` (kind INVALID_VALUE, `field` set) for a value that is not allowed.
    """

    mss: int = 1460
    """Largest payload of a segment that we send, and the MSS that we announce (MTU - 40 for IPv4)."""
    receive_window: int = 1 << 20
    """Receive buffer: in-order bytes not yet read plus out-of-order bytes never exceed it."""
    window_scale: int | None = 7
    """Shift count that we offer (RFC 7323); None offers none and limits both windows to 65535 bytes."""
    send_buffer: int = 1 << 22
    """`writable` turns false once this many bytes are written and not yet acknowledged."""
    initial_cwnd: int = 10
    """Initial congestion window in segments (RFC 6928)."""
    rto_initial: float = 1.0
    """Retransmission timeout before the first round-trip sample (RFC 6298: 1 s)."""
    rto_min: float = 0.2
    """Lower bound of the timeout. RFC 6298 says 1 s; like Linux, the default is lower for short paths."""
    rto_max: float = 60.0
    """Upper bound of the timeout and of the distance between two zero-window probes."""
    max_retransmissions: int = 15
    """Consecutive timeouts without any answer after which the connection fails."""
    delayed_ack: float = 0.04
    """Longest time an ACK for a lone in-order segment waits; 0 acknowledges every segment at once."""
    time_wait: float = 1.0
    """2 MSL: how long TIME-WAIT lasts. Emulated links are short and ports are not reused early."""
    syn_dscp: int = 0
    """DSCP of the active opener's SYN, also when it is retransmitted."""

    def __post_init__(self) -> None:
        """Refuse values that are not allowed."""
        for name in _INTEGER_FIELDS:
            self._check_int(name, getattr(self, name))
        self._check(MIN_SEND_MSS <= self.mss <= 65495, "mss", f"must be in {MIN_SEND_MSS}..65495")
        self._check(1 <= self.receive_window <= 1 << 30, "receive_window", "must be in 1..2**30")
        if self.window_scale is not None:
            self._check_int("window_scale", self.window_scale)
            limit = MAX_WINDOW_SCALE
            self._check(0 <= self.window_scale <= limit, "window_scale", f"must be in 0..{limit} or None")
            largest, smallest = MAX_UNSCALED_WINDOW << self.window_scale, 1 << self.window_scale
            self._check(
                smallest <= self.receive_window <= largest,
                "receive_window",
                f"must be in {smallest}..{largest} to be expressible with window_scale {self.window_scale}",
            )
        self._check(self.send_buffer >= 1, "send_buffer", "must be at least 1")
        self._check(1 <= self.initial_cwnd <= 1000, "initial_cwnd", "must be in 1..1000 segments")
        self._check(self.max_retransmissions >= 1, "max_retransmissions", "must be at least 1")
        self._check(0 <= self.syn_dscp <= 63, "syn_dscp", "must be in 0..63")
        for name in _TIME_FIELDS:
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            self._check(number, name, "must be a finite number of seconds")
        self._check(self.rto_min > 0, "rto_min", "must be more than 0")
        self._check(self.rto_max >= self.rto_min, "rto_max", f"must be at least rto_min ({self.rto_min})")
        bounds = f"must be in rto_min..rto_max ({self.rto_min}..{self.rto_max})"
        self._check(self.rto_min <= self.rto_initial <= self.rto_max, "rto_initial", bounds)
        self._check(0 <= self.delayed_ack <= 0.5, "delayed_ack", "must be in 0..0.5 (RFC 1122 4.2.3.2)")
        self._check(self.time_wait >= 0, "time_wait", "must be at least 0")

    def _check_int(self, name: str, value: object) -> None:
        self._check(isinstance(value, int) and not isinstance(value, bool), name, "must be an integer")

    def _check(self, good: bool, name: str, rule: str) -> None:
        if not good:
            raise invalid_value(f"TcpConfig.{name}", f"{rule}, got {getattr(self, name)!r}")
