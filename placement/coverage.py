"""Which numbers of a range are there: a set of half-open intervals, cheap when they arrive in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Coverage:
    """A set of integers kept as disjoint half-open intervals.

    The intervals lie in one flat sorted list [start, end, start, end, ...]: an index is even in a hole, odd
    inside an interval. Adding in order costs O(1); in general O(log n) to find the place plus the intervals
    that merge.
    """

    __slots__ = ("_bounds",)

    def __init__(self) -> None:
        """Start empty."""
        self._bounds: list[int] = []

    def __contains__(self, number: int) -> bool:
        """Tell whether `number` is in the set."""
        return bisect_right(self._bounds, number) % 2 == 1

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the set, rising."""
        for start, end in self.spans():
            yield from range(start, end)

    def __len__(self) -> int:
        """Return how many numbers are in the set."""
        bounds = self._bounds
        return sum(bounds[1::2]) - sum(bounds[::2])

    def is_exactly(self, start: int, end: int) -> bool:
        """Tell whether the set is the single interval [start, end), start < end."""
        bounds = self._bounds
        return len(bounds) == 2 and bounds[0] == start and bounds[1] == end

    def add(self, start: int, end: int) -> None:
        """Add [start, end); an empty or reversed range adds nothing."""
        if start >= end:
            return
        bounds = self._bounds
        # bisect_left/right make a range that touches an interval merge with it.
        low, high = bisect_left(bounds, start), bisect_right(bounds, end)
        bounds[low:high] = ([start] if low % 2 == 0 else []) + ([end] if high % 2 == 0 else [])

    def fill(self, start: int, end: int) -> list[tuple[int, int]]:
        """Add [start, end), start < end, and return the parts of it that were not in the set, in order."""
        bounds = self._bounds
        if bounds and start < bounds[-1]:
            holes = self.missing(start, end)
            self.add(start, end)
            return holes
        if bounds and start == bounds[-1]:
            bounds[-1] = end
        else:
            bounds += (start, end)
        return [(start, end)]

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [start, end) that are not in the set, in order."""
        bounds = self._bounds
        holes: list[tuple[int, int]] = []
        index = bisect_right(bounds, start)
        position = start
        if index % 2 == 1:
            position = bounds[index]
            index += 1
        while position < end:
            stop = min(end, bounds[index]) if index < len(bounds) else end
            if position < stop:
                holes.append((position, stop))
            position = bounds[index + 1] if index < len(bounds) else end
            index += 2
        return holes

    def spans(self) -> list[tuple[int, int]]:
        """Return the intervals of the set, in order."""
        return list(zip(self._bounds[::2], self._bounds[1::2], strict=True))

    def remove(self, start: int, end: int) -> None:
        """Remove [start, end); an empty or reversed range removes nothing."""
        if start >= end:
            return
        bounds = self._bounds
        low, high = bisect_left(bounds, start), bisect_right(bounds, end)
        bounds[low:high] = ([start] if low % 2 == 1 else []) + ([end] if high % 2 == 1 else [])

    def remove_from(self, start: int) -> None:
        """Remove every number that is `start` or greater."""
        low = bisect_left(self._bounds, start)
        del self._bounds[low:]
        if low % 2 == 1:
            self._bounds.append(start)

    def last(self) -> int | None:
        """Return the greatest number of the set, None when it is empty."""
        return self._bounds[-1] - 1 if self._bounds else None

    def clear(self) -> None:
        """Remove everything."""
        self._bounds.clear()
