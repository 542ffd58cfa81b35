"""Checks a whole store: every object, every replay, and what follows for which step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shadow_rx.coverage import Coverage
from shadow_rx.durable.errors import StoreError
from shadow_rx.durable.index import EpochIndex
from shadow_rx.durable.names import base_name
from shadow_rx.durable.recover import Chain, Log, StoreReader

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
    unrecoverable: tuple[tuple[int, str], ...]
    """Steps that the store speaks of and that cannot be recovered, with the reason."""
    damage: tuple[Damage, ...]
    """Everything that is wrong."""


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
    """The check of one epoch."""

    def __init__(self, reader: StoreReader, epoch: EpochIndex, tick: Callable[[], None]) -> None:
        self._log: Log = reader.log(epoch)
        self._epoch = epoch
        self._tick = tick
        self._damage: dict[str, str] = {}
        self._good: set[int] = set()
        self._why: dict[int, str] = {}
        self._broken: int | None = None

    def report(self) -> EpochReport:
        chain: Chain | None = None
        for step in self._epoch.steps:
            chain = self._step(step, chain)
        epoch, steps = self._epoch, self._epoch.steps
        bad = tuple((step, self._why[step]) for step in steps if step not in self._good)
        damage = tuple(Damage(name, reason) for name, reason in self._damage.items())
        return EpochReport(
            epoch.group, epoch.epoch, epoch.folder, epoch.superseded, len(steps), _ranges(sorted(self._good)),
            bad, damage,
        )  # fmt: skip

    def _step(self, step: int, chain: Chain | None) -> Chain | None:
        """Check what there is of a step; return the chain that stands at it, None where nothing leads there."""
        chain = self._advance(step, chain)
        if step not in self._epoch.bases:
            return chain
        name = f"{self._epoch.folder}/{base_name(step)}"
        try:
            base = self._log.base(step)
            fresh = Chain(self._log, base)
        except StoreError as error:
            self._damage[name] = error.reason
            self._why[step] = error.reason
            return chain
        finally:
            self._tick()
        if chain is not None and chain.step == step:
            replayed = chain.point().manifest.state_sha256
            if replayed != base.manifest.state_sha256:
                self._damage[name] = "differs from what the replay of the gradients before it gives"
        self._good.add(step)
        return fresh

    def _advance(self, step: int, chain: Chain | None) -> Chain | None:
        for segment in self._epoch.segments_with(step):
            if segment.last == step:
                self._whole(segment.name, step)
                self._tick()
        if chain is not None and chain.step + 1 != step:
            self._broken, chain = chain.step + 1, None
        if chain is None:
            before = "no base is before it" if self._broken is None else f"step {self._broken} is missing before it"
            self._why[step] = before
            return None
        try:
            if chain.advance():
                self._good.add(step)
                return chain
            self._why[step] = "has no record"
        except StoreError as error:
            self._why[step] = error.reason
            self._damage.setdefault(error.name, error.reason)
        self._broken = step
        return None

    def _whole(self, name: str, last: int) -> None:
        segment = next(entry for entry in self._epoch.segments if entry.name == name)
        try:
            found = self._log.segment(segment)
        except StoreError as error:
            self._damage.setdefault(name, error.reason)
            return
        if found.damage is not None:
            self._damage.setdefault(name, found.damage)
        elif len(found.records) != last - segment.first + 1:
            self._damage.setdefault(name, f"holds {len(found.records)} steps, its name says otherwise")


def _ranges(steps: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return `steps` as ranges of which both ends belong to them."""
    covered = Coverage()
    for step in steps:
        covered.add(step, step + 1)
    return tuple((first, end - 1) for first, end in covered.spans())
