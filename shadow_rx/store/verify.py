"""Checks a whole store: every object, every replay, and what follows for which step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from checkmate_common.recovery.point import UNCHECKED_SCHEMA, Confirmed, Manifest, manifest_text
from placement.coverage import Coverage
from shadow_rx.redaction import shown
from shadow_rx.store.errors import StoreError
from shadow_rx.store.index import EpochIndex, SegmentName
from shadow_rx.store.log import Log, LogCursor
from shadow_rx.store.names import base_name
from shadow_rx.store.recover import StoreReader

Progress = Callable[[int, int], None]
"""Called with objects that are done and objects in all."""


@dataclass(frozen=True)
class Damage:
    """An object that is not as it was written, or a step that its replay does not give."""

    name: str
    """Name in the store."""
    reason: str
    """What is wrong."""


@dataclass(frozen=True)
class EpochReport:
    """What can be recovered of one epoch."""

    group: str
    """DP group name."""
    epoch: int
    """The epoch."""
    folder: str
    """Its folder in the store."""
    superseded: bool
    """Whether a later run of the same epoch has replaced it."""
    steps: int
    """Steps that the store speaks of."""
    recoverable: tuple[tuple[int, int], ...]
    """Ranges of steps that can be recovered, first and last."""
    unrecoverable: tuple[tuple[int, int, str], ...]
    """Ranges of steps that the store speaks of and that cannot be recovered, first and last, with the reason."""
    damage: tuple[Damage, ...]
    """Everything that is wrong."""
    confirmed: dict[Confirmed, tuple[tuple[int, int], ...]]
    """Of the steps that can be recovered, ranges of those whose parameters, and whose optimizer state, the ranks'
    digests agreed with, first and last."""
    unchecked: tuple[tuple[int, int], ...]
    """Ranges of steps whose base is of an older version and has a manifest without a checksum, first and last."""
    others: tuple[str, ...]
    """Names in the folder that no object of a store has; what they name is not looked at."""


@dataclass(frozen=True)
class StoreReport:
    """What a store is worth."""

    store: str
    """Path or URL."""
    key_id: str | None
    """Key of new objects, None when they are not encrypted."""
    objects: int
    """Number of objects."""
    nbytes: int
    """Their bytes."""
    epochs: tuple[EpochReport, ...]
    """Per group and epoch, the newest epoch first."""
    latest: dict[str, int] = field(default_factory=dict)
    """Newest step that can be recovered, by group."""

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not any(epoch.damage for epoch in self.epochs)


def verify_store(reader: StoreReader, progress: Progress | None = None) -> StoreReport:
    """Check everything in a store: checksums, every replay's digest, and every base against the replay before it.

    Args:
        reader: the store.
        progress: told how far it is.
    """
    plain = reader.opened.plain
    sizes = plain.sizes()
    entries = [(group, epoch) for group in reader.groups() for epoch in reader.epochs(group)]
    total = sum(len(epoch.bases) + len(epoch.segments) for _, epoch in entries)
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    reports = [_Check(reader, epoch, tick).report() for _, epoch in entries]
    latest: dict[str, int] = {}
    for report in reports:
        if report.recoverable and not report.superseded and report.group not in latest:
            latest[report.group] = report.recoverable[-1][1]
    key_id = reader.opened.description.key_id
    return StoreReport(reader.url, key_id, len(sizes), sum(sizes.values()), tuple(reports), latest)


class _Check:
    """The check of one epoch: every object is read once, in the order of steps."""

    def __init__(self, reader: StoreReader, epoch: EpochIndex, tick: Callable[[], None]) -> None:
        self._log: Log = reader.log(epoch)
        self._epoch = epoch
        self._sealed = reader.opened.description.key_id is not None
        self._tick = tick
        self._damage: dict[str, str] = {}
        self._good = Coverage()
        self._confirmed: dict[Confirmed, Coverage] = {"parameters": Coverage(), "optimizer": Coverage()}
        self._unchecked = Coverage()
        self._bad: list[tuple[int, int, str]] = []
        self._broken: int | None = None
        self._cursor: LogCursor | None = None
        self._bases = deque(epoch.bases)

    def report(self) -> EpochReport:
        for segment in self._epoch.segments:
            while self._bases and self._bases[0] < segment.first:
                self._base(self._bases.popleft())
            self._segment(segment)
        while self._bases:
            self._base(self._bases.popleft())
        epoch = self._epoch
        return EpochReport(
            epoch.group, epoch.epoch, epoch.folder, epoch.superseded, len(epoch.steps), _ranges(self._good),
            tuple(self._unrecoverable()), tuple(Damage(name, reason) for name, reason in self._damage.items()),
            {part: _ranges(steps) for part, steps in self._confirmed.items()}, _ranges(self._unchecked),
            tuple(map(shown, epoch.others)),
        )  # fmt: skip

    def _unrecoverable(self) -> Iterator[tuple[int, int, str]]:
        """Yield what is bad and was not found good by another object."""
        told = Coverage()
        for first, last, reason in sorted(self._bad):
            for start, end in told.fill(first, last + 1):
                yield from ((low, high - 1, reason) for low, high in self._good.missing(start, end))

    def _segment(self, name: SegmentName) -> None:
        steps, whole, reason = name.last - name.first + 1, 0, ""
        try:
            found = self._log.segment(name)
        except StoreError as error:
            reason = error.reason
            self._damage.setdefault(name.name, reason)
        else:
            whole = min(len(found.records), steps)
            reason = found.damage or f"holds {len(found.records)} steps, its name says otherwise"
            if found.damage is not None or len(found.records) != steps:
                self._damage.setdefault(name.name, reason)
        for step in range(name.first, name.first + whole):
            self._advance(step)
            while self._bases and self._bases[0] <= step:
                self._base(self._bases.popleft())
        if whole < steps:
            self._bad.append((name.first + whole, name.last, reason))
            if self._cursor is not None and self._cursor.step == name.first + whole - 1:
                self._broken, self._cursor = name.first + whole, None
        self._tick()

    def _base(self, step: int) -> None:
        """Check a base, and the replay that leads to it; go on from it."""
        name = f"{self._epoch.folder}/{base_name(step)}"
        self._tick()
        try:
            base = self._log.base(step)
            fresh = LogCursor(self._log, base)
            cursor = self._cursor if self._cursor is not None and self._cursor.step == step else fresh
            replayed = cursor.point().manifest
        except StoreError as error:
            self._damage[name] = error.reason
            self._bad.append((step, step, error.reason))
            return
        if manifest_text(replayed) != manifest_text(base.manifest):
            self._damage[name] = "differs from what the replay of the gradients before it gives"
        if base.manifest.schema_version == UNCHECKED_SCHEMA and not self._sealed:
            self._unchecked.add(step, step + 1)
        self._recoverable(base.manifest)
        self._cursor = fresh

    def _recoverable(self, manifest: Manifest) -> None:
        for steps in (self._good, *(self._confirmed[part] for part in manifest.confirmed)):
            steps.add(manifest.step, manifest.step + 1)

    def _advance(self, step: int) -> None:
        cursor = self._cursor
        if cursor is not None and cursor.step >= step:
            return
        if cursor is not None and cursor.step + 1 != step:
            self._broken, self._cursor = cursor.step + 1, None
            message = f"has no record of step {self._broken}, and those after it need one"
            self._damage.setdefault(self._epoch.folder, message)
        if self._cursor is None:
            before = "no base is before it" if self._broken is None else f"step {self._broken} is missing before it"
            self._bad.append((step, step, before))
            return
        try:
            if self._cursor.advance():
                self._recoverable(self._cursor.manifest)
                return
            reason = "has no record"
        except StoreError as error:
            reason = error.reason
            self._damage.setdefault(error.name, reason)
        self._bad.append((step, step, reason))
        self._broken, self._cursor = step, None


def _ranges(steps: Coverage) -> tuple[tuple[int, int], ...]:
    """Return `steps` as ranges of which both ends belong to them."""
    return tuple((first, end - 1) for first, end in steps.spans())
