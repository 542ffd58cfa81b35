"""Recovery: the newest whole base at or before a step, and the logged gradients from there on (`LogCursor`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from checkmate_common.recovery.point import RecoveryPoint
from shadow_rx.store.errors import StoreError, missing
from shadow_rx.store.index import EpochIndex, groups_of, index_of
from shadow_rx.store.log import Log, LogCursor
from shadow_rx.store.opening import OpenStore


class StoreReader:
    """Recovery points of a store. Reads the list of its objects once."""

    def __init__(self, opened: OpenStore) -> None:
        """Read from a store (`shadow_rx.store.opening.open_for_reading`)."""
        self.opened = opened
        self._index: dict[str, list[EpochIndex]] = {}
        self._cursor: tuple[str, LogCursor] | None = None

    @property
    def url(self) -> str:
        """The store's path or URL."""
        return self.opened.storage.url

    def groups(self) -> list[str]:
        """Return the groups that the store holds anything of."""
        return groups_of(self.opened.storage)

    def epochs(self, group: str) -> list[EpochIndex]:
        """Return a group's epochs, the newest first, superseded ones last."""
        if group not in self._index:
            self._index[group] = index_of(self.opened.storage, group)
        return self._index[group]

    def log(self, epoch: EpochIndex) -> Log:
        """Return the reader of one epoch."""
        return Log(self.opened, epoch)

    def the_group(self, group: str | None) -> str:
        """Return `group`, or the only one for None.

        Raises:
            StoreError: there is none, there are several and none was named, or it is not there.
        """
        groups = self.groups()
        if group is None and len(groups) == 1:
            return groups[0]
        if group in groups:
            return str(group)
        if not groups:
            raise missing(self.url, "", "holds no recovery points yet")
        which = f"has no group {group!r}" if group is not None else "has several groups and none was named (--group)"
        raise missing(self.url, "", f"{which}; there are {', '.join(groups)}")

    def point(self, group: str, step: int, epoch: int | None = None) -> RecoveryPoint:
        """Return the recovery point of `step`: of the newest epoch that has it, or of `epoch`.

        Raises:
            StoreError: it is not there, or cannot be recovered, with the reason.
        """
        for entry in self._candidates(group, epoch):
            if step in entry.steps:
                return self._point_in(entry, step)
        known = [(entry.epoch, entry.steps.spans()) for entry in self._candidates(group, epoch)]
        there = ", ".join(f"{spans[0][0]} to {spans[-1][1] - 1} of epoch {each}" for each, spans in known if spans)
        raise missing(self.url, group, f"has no step {step}; {f'it has steps {there}' if there else 'it has none'}")

    def find(self, group: str, step: int, epoch: int) -> RecoveryPoint | None:
        """Return the recovery point of a step of an epoch; None where the store does not speak of it.

        Raises:
            StoreError: it cannot be recovered, with the reason.
        """
        for attempt in range(2):
            for entry in self._candidates(group, epoch):
                if step in entry.steps:
                    return self._point_in(entry, step)
            if attempt == 0:
                # It may have come since the list was read.
                self._index.pop(group, None)
        return None

    def latest(self, group: str, epoch: int | None = None) -> RecoveryPoint:
        """Return the newest recovery point of the newest epoch that has one that can be recovered.

        Raises:
            StoreError: none can be recovered; the first reason is told.
        """
        problem: StoreError | None = None
        for entry in self._candidates(group, epoch):
            for base in reversed(entry.bases):
                try:
                    found = self._furthest(entry, base)
                except StoreError as error:
                    problem = problem or error
                    continue
                # A state that was uploaded and not advanced yet has no records of ranks: no job can go on from it.
                if found.manifest.records:
                    return found
        raise problem or missing(self.url, group, "holds no recovery point yet")

    def _candidates(self, group: str, epoch: int | None) -> Iterator[EpochIndex]:
        for entry in self.epochs(group):
            if not entry.superseded and epoch in (None, entry.epoch):
                yield entry

    def _furthest(self, entry: EpochIndex, base: int) -> RecoveryPoint:
        log = self.log(entry)
        cursor = LogCursor(log, log.base(base))
        while True:
            step = cursor.step
            try:
                if not cursor.advance():
                    return cursor.point()
            except StoreError:
                # A cursor that failed is of no use: up to the step before again, and not further.
                return self._point_in(entry, step)

    def _point_in(self, entry: EpochIndex, step: int) -> RecoveryPoint:
        cursor = self._start(entry, step)
        self._cursor = None
        while cursor.step < step:
            if not cursor.advance():
                raise self.log(entry).missing(cursor.step + 1)
        self._cursor = entry.folder, cursor
        point = cursor.point()
        return RecoveryPoint(point.manifest, dict(point.tensors))

    def _start(self, entry: EpochIndex, step: int) -> LogCursor:
        """Return the cursor to reach `step` on: the last one where it leads there at least as fast as a base."""
        before = bisect_right(entry.bases, step)
        if self._cursor is not None and self._cursor[0] == entry.folder:
            cursor = self._cursor[1]
            if (entry.bases[before - 1] if before else 0) <= cursor.step <= step:
                return cursor
        log, problem = self.log(entry), None
        for base in reversed(entry.bases[:before]):
            try:
                return LogCursor(log, log.base(base))
            except StoreError as error:
                problem = problem or error
        raise problem or missing(self.url, entry.folder, f"has no base at or before step {step}")
