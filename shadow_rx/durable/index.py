"""What a store has, found out from names alone: groups, epochs, bases and log segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jobspec.recovery_point import MANIFEST_FILE
from shadow_rx.durable.names import BASE_NAME, EPOCH_NAME, SEGMENT_NAME
from shadow_rx.durable.storage import Storage


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

    def segments_with(self, step: int) -> Iterator[SegmentName]:
        """Yield the segments that hold `step`."""
        yield from (segment for segment in self.segments if segment.first <= step <= segment.last)

    @property
    def steps(self) -> tuple[int, ...]:
        """Every step that an object speaks of, rising."""
        logged = {step for segment in self.segments for step in range(segment.first, segment.last + 1)}
        return tuple(sorted(logged.union(self.bases)))


def groups_of(storage: Storage) -> list[str]:
    """Return the groups that the store holds anything of."""
    found = [name for name in storage.names("") if name.partition(".")[0] not in ("store", "lock")]
    return [name for name in found if any(EPOCH_NAME.fullmatch(inner) for inner in storage.names(name))]


def index_of(storage: Storage, group: str) -> list[EpochIndex]:
    """Return a group's epochs, the newest first; those that were superseded come last."""
    found: list[EpochIndex] = []
    for name in storage.names(group):
        match = EPOCH_NAME.fullmatch(name)
        if match is not None:
            found.append(_epoch(storage, group, int(match[1]), f"{group}/{name}", match[2] is not None))
    return sorted(found, key=lambda entry: (entry.superseded, -entry.epoch, entry.folder))


def _epoch(storage: Storage, group: str, epoch: int, folder: str, superseded: bool) -> EpochIndex:
    bases: list[int] = []
    segments: list[SegmentName] = []
    for name in storage.names(folder):
        base, segment = BASE_NAME.fullmatch(name), SEGMENT_NAME.fullmatch(name)
        # Without its manifest a folder is not a base yet, or no longer.
        if base is not None and storage.exists(f"{folder}/{name}/{MANIFEST_FILE}"):
            bases.append(int(base[1]))
        elif segment is not None and int(segment[1]) <= int(segment[2]):
            segments.append(SegmentName(int(segment[1]), int(segment[2]), f"{folder}/{name}"))
    segments.sort(key=lambda entry: (entry.first, entry.last))
    return EpochIndex(group, epoch, folder, superseded, tuple(sorted(bases)), tuple(segments))
