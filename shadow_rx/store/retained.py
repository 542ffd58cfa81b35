"""What a store holds of one group in the order of writing, and which of it retention no longer wants. Pure.

Noting an object, and forgetting the oldest, take the same time however many there are.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from jobspec.store import Retention
from shadow_rx.store.names import Point


@dataclass(frozen=True)
class StoredObject:
    """An object of a store."""

    name: str
    """Its name."""
    points: tuple[Point, ...]
    """Recovery points in it: one for a base, one or more for a log segment."""
    base: bool
    """Whether it is a base."""


@dataclass
class _Base:
    """A base, and the number of points of which no object from it on has any."""

    number: int
    before: int


class Retained:
    """The objects of one group, oldest first."""

    def __init__(self, retention: Retention) -> None:
        """Keep what `retention` wants; with no wish nothing is ever expendable, and nothing is noted."""
        self._retention = retention
        self._entries: deque[StoredObject] = deque()
        self._next = 0
        self._bases: deque[_Base] = deque()
        self._newest: dict[Point, int] = {}
        self._gone = 0

    def add(self, entry: StoredObject) -> None:
        """Note an object that is written after all others."""
        if self._retention.bases is None and self._retention.steps is None:
            return
        number, self._next = self._next, self._next + 1
        self._entries.append(entry)
        for point in entry.points:
            older = self._newest.get(point, number)
            # Bases after the older object that had this point have it only now: nearly always none.
            for base in reversed(self._bases):
                if base.number <= older:
                    break
                base.before -= 1
            self._newest[point] = number
        if entry.base:
            self._bases.append(_Base(number, self._gone + len(self._newest) - len(entry.points)))

    def expendable(self) -> StoredObject | None:
        """Return the oldest object if it may be deleted: always up to a base, never the newest one."""
        if not self._bases:
            return None
        oldest = self._next - len(self._entries)
        if oldest < self._bases[0].number:
            return self._entries[0]
        steps, bases = self._retention.steps, self._retention.bases
        if len(self._bases) == 1 or (bases is not None and len(self._bases) <= bases):
            return None
        left = self._gone + len(self._newest) - self._bases[1].before
        return None if steps is not None and left < steps else self._entries[0]

    def forget(self) -> tuple[Point, ...]:
        """Forget the oldest object, which is deleted; return the points that no other object has."""
        number = self._next - len(self._entries)
        entry = self._entries.popleft()
        if self._bases and self._bases[0].number == number:
            self._bases.popleft()
        alone = tuple(point for point in entry.points if self._newest.get(point) == number)
        for point in alone:
            del self._newest[point]
        self._gone += len(alone)
        return alone
