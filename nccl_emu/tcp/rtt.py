"""Retransmission timeout of RFC 6298; Karn's algorithm is the caller's, which offers no doubtful sample."""

from __future__ import annotations

from nccl_emu.tcp.config import TcpConfig

_GRANULARITY = 0.001
"""Clock granularity G in seconds: the least variance term, so that a steady path keeps a margin."""


class RtoEstimator:
    """Smoothed round-trip time and the timeout that follows from it, in seconds."""

    def __init__(self, config: TcpConfig) -> None:
        """Begin with `config.rto_initial`."""
        self.srtt: float | None = None
        self.rttvar = 0.0
        self._min = config.rto_min
        self._max = config.rto_max
        self.rto = config.rto_initial

    def sample(self, rtt: float) -> None:
        """Take a round-trip time of a segment sent exactly once (rules 2.2 and 2.3); ends any backoff."""
        if self.srtt is None:
            self.srtt = rtt
            self.rttvar = rtt / 2
        else:
            self.rttvar = 0.75 * self.rttvar + 0.25 * abs(self.srtt - rtt)
            self.srtt = 0.875 * self.srtt + 0.125 * rtt
        self.rto = self._clamp(self.srtt + max(_GRANULARITY, 4 * self.rttvar))

    def backoff(self) -> None:
        """Double the timeout after it expired (rule 5.5); it stays doubled until the next sample."""
        self.rto = self._clamp(2 * self.rto)

    def restart(self, rto: float) -> None:
        """Set the timeout for the start of data transfer after a lost SYN (rule 5.7)."""
        self.rto = self._clamp(rto)

    def _clamp(self, rto: float) -> float:
        return min(max(rto, self._min), self._max)
