"""Distribution of durations: counts by upper bound, as Prometheus histograms have them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets in seconds; one more bucket takes what is longer."""


@dataclass(frozen=True)
class Distribution:
    """What a `Histogram` has counted."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    """Durations in each bucket, not cumulative."""
    total: float = 0.0
    """Sum of the durations in seconds."""

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (upper bound, durations up to it), the last bound being infinite."""
        found: list[tuple[float, int]] = []
        below = 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True):
            below += count
            found.append((bound, below))
        return found


class Histogram:
    """Counts durations."""

    def __init__(self) -> None:
        """Start without any."""
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds

    def read(self) -> Distribution:
        """Return what was counted."""
        return Distribution(tuple(self._counts), self._total)
