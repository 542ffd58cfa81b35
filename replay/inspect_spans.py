"""Which numbers of a sequence were seen: few spans, whatever the order, in bounded memory."""

from __future__ import annotations

from bisect import bisect_left

MAX_SPANS = 1024
"""Spans that are kept apart; beyond it the lowest gap is closed, counted as missing for good."""


class Spans:
    """Half-open spans of integers that were seen, and how often they were seen again."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.repeated = 0
        """Numbers that were seen before when they came."""
        self._closed = 0

    def add(self, start: int, stop: int) -> None:
        """See the numbers start..stop-1."""
        if stop <= start:
            return
        starts, stops = self._starts, self._stops
        if stops and stops[-1] == start:  # the usual case: in order
            stops[-1] = stop
            return
        first = bisect_left(stops, start)
        last = first
        overlap = 0
        low, high = start, stop
        while last < len(starts) and starts[last] <= stop:
            overlap += max(0, min(stop, stops[last]) - max(start, starts[last]))
            low, high = min(low, starts[last]), max(high, stops[last])
            last += 1
        self.repeated += overlap
        starts[first:last], stops[first:last] = [low], [high]
        if len(starts) > MAX_SPANS:
            self._closed += starts[1] - stops[0]
            starts.pop(1)
            stops.pop(0)

    @property
    def first(self) -> int | None:
        """Lowest number seen, None where there is none."""
        return self._starts[0] if self._starts else None

    @property
    def stop(self) -> int | None:
        """One past the highest number seen, None where there is none."""
        return self._stops[-1] if self._stops else None

    @property
    def missing(self) -> int:
        """Numbers between the lowest and the highest that were not seen."""
        return self._closed + sum(stop - start for start, stop in self.gaps())

    def gaps(self) -> list[tuple[int, int]]:
        """Return the spans between those seen, half open, ascending; without those that were closed for space."""
        return list(zip(self._stops[:-1], self._starts[1:], strict=True))
