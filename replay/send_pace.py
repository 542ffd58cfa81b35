"""When each packet of a capture is due: pure arithmetic over time stamps and sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

_SECOND = 1_000_000_000


class PaceKind(Enum):
    """What a pace is measured in."""

    RECORDED = "times the recorded speed"
    PACKETS = "packets/s"
    BITS = "bit/s"


@dataclass(frozen=True)
class Pace:
    """How fast to send.

    Raises:
        ValueError: `value` is not a number above 0.
    """

    kind: PaceKind = PaceKind.RECORDED
    """What `value` is."""
    value: float = 1.0
    """Factor of the recorded speed, packets a second, or bits a second (of frames without preamble and FCS)."""

    def __post_init__(self) -> None:
        """Refuse a pace that never sends anything."""
        if not (self.value > 0 and math.isfinite(self.value)):
            raise ValueError(f"{self.value:g} {self.kind.value}: expected a number above 0")

    def __str__(self) -> str:
        """Return it in words."""
        if self == Pace():
            return "recorded pace"
        return f"{self.value:g} {self.kind.value}"


class Pacer:
    """Turns the packets of a capture, in order, into due times; the capture may be repeated.

    A packet is never due before the one in front of it, so a capture whose clock was set back while it ran goes on at
    once where it stepped, and is not sent in another order.
    """

    def __init__(self, pace: Pace) -> None:
        """Begin at time 0."""
        self._pace = pace
        self._packets = 0
        self._bits = 0
        self._due = 0
        self._previous: int | None = None
        self._gaps = 0
        self._span = 0

    def due_ns(self, time_ns: int, size: int) -> int:
        """Return when the next packet is due, in nanoseconds after the start.

        Args:
            time_ns: its time stamp.
            size: its bytes.
        """
        value = self._pace.value
        if self._pace.kind is PaceKind.PACKETS:
            self._due = int(self._packets * _SECOND / value)
        elif self._pace.kind is PaceKind.BITS:
            # Due when those in front of it have left a link of that rate.
            self._due = int(self._bits * _SECOND / value)
        elif self._previous is not None:
            gap = max(0, time_ns - self._previous)
            self._gaps += 1
            self._span += gap
            self._due += int(gap / value)
        self._previous = time_ns
        self._packets += 1
        self._bits += 8 * size
        return self._due

    def begin_again(self) -> None:
        """The next packet is the first one of the capture once more, a mean gap behind the last."""
        if self._pace.kind is PaceKind.RECORDED and self._gaps:
            self._due += int(self._span / self._gaps / self._pace.value)
        self._previous = None
