"""Recovery: the newest whole base at or before a step, and the replay of the logged gradients from there on.

The replay is the shadow's own (`shadow_rx.apply.model`), on as many threads as the writer had, and the digest of the
parameters is compared after every step: what is returned is the state that was written, bit for bit, or nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import islice

import torch

from jobspec.checked_json import MAX_BYTES
from jobspec.recovery_point import (
    MANIFEST_FILE,
    SCHEMA,
    STATE_FILE,
    Manifest,
    RecoveryPoint,
    RecoveryPointError,
    decode_manifest,
    join_state,
)
from shadow_rx.apply.model import LiveModel
from shadow_rx.errors import ShadowError
from shadow_rx.store.errors import StoreError, damaged, missing
from shadow_rx.store.index import EpochIndex, SegmentName, groups_of, index_of
from shadow_rx.store.names import base_name
from shadow_rx.store.opening import SCHEMA as STORE_SCHEMA
from shadow_rx.store.opening import OpenStore
from shadow_rx.store.segment import Segment, SegmentDamage, decode_segment
from shadow_rx.store.steplog import (
    StepRecord,
    besides_replay,
    decode_step,
    is_replayed,
    join,
    layout_of,
    params_of,
    plan_of,
)

_MOST_SEGMENTS = 4
"""Segments that are looked into for one step; more than one has it only where something went wrong."""
_MOST_THREADS = 1024
"""Threads that a writer can have had."""


class Log:
    """The bases and records of one epoch, read one at a time."""

    def __init__(self, opened: OpenStore, epoch: EpochIndex) -> None:
        """Read the objects of `epoch`."""
        self._storage = opened.storage
        self._checked = opened.description.schema_version == STORE_SCHEMA
        self.epoch = epoch
        self._segment: tuple[str, Segment] | None = None
        self._known: dict[str, tuple[int, str]] = {}

    def base(self, step: int) -> RecoveryPoint:
        """Return the base of `step`.

        Raises:
            StoreError: it is not there, or damaged.
        """
        name = f"{self.epoch.folder}/{base_name(step)}"
        text = self._storage.get(f"{name}/{MANIFEST_FILE}", MAX_BYTES)
        try:
            manifest = decode_manifest(text.decode())
            self._check(manifest, step, name)
            if manifest.schema_version != SCHEMA and self._checked:
                raise RecoveryPointError(None, "the manifest has no checksum, and in this store each has one")
            if layout_of(manifest).nbytes > manifest.state_bytes:
                raise RecoveryPointError(None, "the layout has more bytes of parameters than the state")
            return join_state(manifest, self._storage.get(f"{name}/{STATE_FILE}", manifest.state_bytes))
        except StoreError:
            raise
        except (RecoveryPointError, UnicodeDecodeError) as error:
            raise damaged(self._storage.url, name, str(error)) from error

    def record(self, step: int) -> tuple[StepRecord, int] | None:
        """Return the record of `step` and the number of threads that its writer had, None when there is none.

        Raises:
            StoreError: it is damaged.
        """
        problem: StoreError | None = None
        for name in islice(self.epoch.segments_with(step), _MOST_SEGMENTS):
            try:
                return self._record_in(name, step)
            except StoreError as error:
                problem = error
        if problem is not None:
            raise problem
        return None

    def _record_in(self, name: SegmentName, step: int) -> tuple[StepRecord, int]:
        # What a segment lacks is remembered: it is not read again for each of its steps.
        count, reason = self._known.get(name.name, (step - name.first + 1, ""))
        if step - name.first >= count:
            raise damaged(self._storage.url, name.name, f"step {step}: {reason}")
        segment = self.segment(name)
        try:
            if step - name.first >= len(segment.records):
                raise SegmentDamage(segment.damage or f"has {len(segment.records)} records")
            record = decode_step(segment.records[step - name.first])
        except SegmentDamage as error:
            raise damaged(self._storage.url, name.name, f"step {step}: {error}") from error
        self._check(record.manifest, step, name.name)
        threads = segment.header.get("threads")
        return record, threads if isinstance(threads, int) and 0 < threads <= _MOST_THREADS else 1

    def segment(self, name: SegmentName) -> Segment:
        """Return a segment, as far as it is whole.

        Raises:
            StoreError: it cannot be read at all.
        """
        if self._segment is None or self._segment[0] != name.name:
            steps = name.last - name.first + 1
            try:
                data = self._storage.get(name.name, steps * (2 * self._largest_state + MAX_BYTES))
                found = decode_segment(data)
                if any(found.header.get(key) != value for key, value in self._header(name).items()):
                    raise SegmentDamage("its header is of another segment")
            except SegmentDamage as error:
                self._known[name.name] = 0, str(error)
                raise damaged(self._storage.url, name.name, str(error)) from error
            except StoreError as error:
                self._known[name.name] = 0, error.reason
                raise
            self._known[name.name] = len(found.records), found.damage or f"has {len(found.records)} records"
            self._segment = name.name, found
        return self._segment[1]

    def _header(self, name: SegmentName) -> Mapping[str, object]:
        return {"group": self.epoch.group, "epoch": self.epoch.epoch, "first": name.first, "last": name.last}

    @cached_property
    def _largest_state(self) -> int:
        """Bytes of the largest base: neither a step's gradient nor its changed tensors can have more."""
        bases = (f"{self.epoch.folder}/{base_name(step)}/{STATE_FILE}" for step in self.epoch.bases)
        return max(map(self._storage.size, bases), default=0)

    def _check(self, manifest: Manifest, step: int, name: str) -> None:
        found = (manifest.group, manifest.epoch, manifest.step)
        if found != (self.epoch.group, self.epoch.epoch, step):
            message = "is of group {}, epoch {}, step {}; its name says otherwise".format(*found)
            raise damaged(self._storage.url, name, message)

    def missing(self, step: int) -> StoreError:
        """Return the error for a step that has neither base nor record."""
        return missing(self._storage.url, self.epoch.folder, f"has no record of step {step}")

    def mismatch(self, step: int, message: str) -> StoreError:
        """Return the error for a step whose replay does not give what was written."""
        return damaged(self._storage.url, self.epoch.folder, f"step {step}: {message}")


class Chain:
    """The state of a step, and the way on to the next ones."""

    def __init__(self, log: Log, base: RecoveryPoint) -> None:
        """Start at `base`.

        Raises:
            StoreError: it holds no state that can be replayed from.
        """
        self._log = log
        self._point: RecoveryPoint | None = base
        self.manifest = base.manifest
        """Manifest of the present step."""
        try:
            self._layout = layout_of(base.manifest)
            self._others = besides_replay(self._layout, base.tensors)
            params = params_of(self._layout)
            state = {name: tensor for name, tensor in base.tensors.items() if is_replayed(name, params)}
            self._model = LiveModel(self._layout, plan_of(base.manifest), state)
        except Exception as error:  # torch raises what it likes
            raise log.mismatch(self.step, f"its base cannot be replayed from: {error}") from error

    @property
    def step(self) -> int:
        """The present step."""
        return self.manifest.step

    def advance(self) -> bool:
        """Go to the next step; False when the log has none.

        Raises:
            StoreError: its record is damaged, or its replay does not give the parameters that were written. The chain
                is of no use then.
        """
        found = self._log.record(self.step + 1)
        if found is None:
            return False
        record, threads = found
        step = record.manifest.step
        lacking = [name for name in record.kept if name not in self._others]
        if lacking:
            raise self._log.mismatch(step, f"tensors {lacking[:5]} of earlier steps are missing")
        try:
            if layout_of(record.manifest) != self._layout:
                raise self._log.mismatch(step, "its layout is another than the base's")
            with _threads(threads):
                self._model.step_with(bytes(record.gradient), record.update)
            digest = self._model.parameter_digest()
        except StoreError:
            raise
        except Exception as error:  # torch raises what it likes
            raise self._log.mismatch(step, f"cannot be replayed: {error}") from error
        if digest != record.digest:
            # The record's own checksum was right, so this is the likelier cause.
            message = (
                f"replayed parameters have digest {digest.hex()}, those written had {record.digest.hex()}; "
                "was it written on another kind of processor, or with another torch? These round otherwise"
            )
            raise self._log.mismatch(step, message)
        self._others = {**{name: self._others[name] for name in record.kept}, **record.changed}
        self.manifest, self._point = record.manifest, None
        return True

    def point(self) -> RecoveryPoint:
        """Return the recovery point of the present step.

        Raises:
            StoreError: a tensor that no recovery point can hold.
        """
        if self._point is None:
            try:
                self._point = join(self.manifest, self._model.snapshot(), self._others)
            except (ShadowError, RecoveryPointError) as error:
                raise self._log.mismatch(self.step, str(error)) from error
        return self._point


class StoreReader:
    """Recovery points of a store. Reads the list of its objects once; `refresh` reads it again."""

    def __init__(self, opened: OpenStore) -> None:
        """Read from a store (`shadow_rx.store.opening.open_for_reading`)."""
        self.opened = opened
        self._index: dict[str, list[EpochIndex]] = {}
        self._chain: tuple[str, Chain] | None = None

    @property
    def url(self) -> str:
        """The store's path or URL."""
        return self.opened.storage.url

    def refresh(self) -> None:
        """Look again what there is."""
        self._index.clear()
        self._chain = None

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
        raise missing(self.url, group, f"has no step {step}; there are steps {there or 'of none'}")

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
        chain = Chain(log, log.base(base))
        while True:
            step = chain.step
            try:
                if not chain.advance():
                    return chain.point()
            except StoreError:
                # A chain that failed is of no use: up to the step before again, and not further.
                return self._point_in(entry, step)

    def _point_in(self, entry: EpochIndex, step: int) -> RecoveryPoint:
        chain = self._start(entry, step)
        self._chain = None
        while chain.step < step:
            if not chain.advance():
                raise self.log(entry).missing(chain.step + 1)
        self._chain = entry.folder, chain
        point = chain.point()
        return RecoveryPoint(point.manifest, dict(point.tensors))

    def _start(self, entry: EpochIndex, step: int) -> Chain:
        """Return the chain to reach `step` on: the last one where it leads there at least as fast as a base."""
        before = bisect_right(entry.bases, step)
        if self._chain is not None and self._chain[0] == entry.folder:
            chain = self._chain[1]
            if (entry.bases[before - 1] if before else 0) <= chain.step <= step:
                return chain
        log, problem = self.log(entry), None
        for base in reversed(entry.bases[:before]):
            try:
                return Chain(log, log.base(base))
            except StoreError as error:
                problem = problem or error
        raise problem or missing(self.url, entry.folder, f"has no base at or before step {step}")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads: where a kernel splits its range, its rounding may change."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
