"""What a store has, found out from names alone: groups, epochs, bases and log segments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from checkmate_common.recovery.point import MANIFEST_FILE
from placement.coverage import Coverage
from shadow_rx.store.names import is_group, parse_base, parse_epoch, parse_segment
from shadow_rx.store.storage.interface import Objects


@dataclass(frozen=True)
class SegmentName:
    """A log segment."""

    first: int
    """Its first step."""
    last: int
    """Its last step."""
    name: str
    """Its name in the store."""


@dataclass(frozen=True)
class EpochIndex:
    """The objects of one epoch of one group."""

    group: str
    """DP group name."""
    epoch: int
    """The epoch."""
    folder: str
    """Its folder in the store."""
    superseded: bool
    """Whether another run of the same epoch came later: kept, but no longer part of the history."""
    bases: tuple[int, ...]
    """Steps that have a base, rising."""
    segments: tuple[SegmentName, ...]
    """In the order of their first steps."""
    others: tuple[str, ...] = ()
    """Names in the folder that no object of a store has."""

    def segments_with(self, step: int) -> Iterator[SegmentName]:
        """Yield the segments that hold `step`, the one that begins last first."""
        index = bisect_right(self.segments, step, key=lambda segment: segment.first)
        while index > 0 and self._furthest[index - 1] >= step:
            index -= 1
            if self.segments[index].last >= step:
                yield self.segments[index]

    @cached_property
    def _furthest(self) -> tuple[int, ...]:
        """The last step that any segment up to each one speaks of."""
        return tuple(accumulate((segment.last for segment in self.segments), max))

    @cached_property
    def steps(self) -> Coverage:
        """Every step that an object speaks of."""
        found = Coverage()
        for segment in self.segments:
            found.add(segment.first, segment.last + 1)
        for step in self.bases:
            found.add(step, step + 1)
        return found


def groups_of(storage: Objects) -> list[str]:
    """Return the groups that the store holds anything of."""
    found = [name for name in storage.names("") if is_group(name)]
    return [name for name in found if any(parse_epoch(inner) is not None for inner in storage.names(name))]


def index_of(storage: Objects, group: str) -> list[EpochIndex]:
    """Return a group's epochs, the newest first; those that were superseded come last."""
    found: list[EpochIndex] = []
    for name in storage.names(group):
        parsed = parse_epoch(name)
        if parsed is not None:
            found.append(_epoch(storage, group, f"{group}/{name}", *parsed))
    return sorted(found, key=lambda entry: (entry.superseded, -entry.epoch, entry.folder))


def _epoch(storage: Objects, group: str, folder: str, epoch: int, superseded: bool) -> EpochIndex:
    bases: list[int] = []
    segments: list[SegmentName] = []
    others: list[str] = []
    for name in storage.names(folder):
        base, segment = parse_base(name), parse_segment(name)
        if base is not None:
            # Without its manifest a folder is not a base yet, or no longer.
            if storage.exists(f"{folder}/{name}/{MANIFEST_FILE}"):
                bases.append(base)
        elif segment is not None:
            segments.append(SegmentName(*segment, f"{folder}/{name}"))
        else:
            others.append(name)
    segments.sort(key=lambda entry: (entry.first, entry.last))
    return EpochIndex(group, epoch, folder, superseded, tuple(sorted(bases)), tuple(segments), tuple(others))
