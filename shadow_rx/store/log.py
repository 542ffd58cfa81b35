"""The log of one epoch: its bases and records, and the way from one step's state to the next.

A logged step is applied by the shadow's own `shadow_rx.apply.model`, on as many threads as the writer had, and the
digest of the parameters is compared after every step: what is returned is the state that was written, bit for bit, or
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import islice

import torch

from checkmate_common.files.checked_json import MAX_BYTES
from checkmate_common.recovery.point import (
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
from shadow_rx.store.index import EpochIndex, SegmentName
from shadow_rx.store.names import base_name
from shadow_rx.store.opening import SCHEMA as STORE_SCHEMA
from shadow_rx.store.opening import OpenStore
from shadow_rx.store.segment import Segment, SegmentDamage, decode_segment
from shadow_rx.store.steplog import (
    LoggedStep,
    decode_step,
    is_replayed,
    join,
    layout_of,
    other_tensors,
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

    def record(self, step: int) -> tuple[LoggedStep, int] | None:
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

    def _record_in(self, name: SegmentName, step: int) -> tuple[LoggedStep, int]:
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


class LogCursor:
    """The state of a step, and the way on to the next ones."""

    def __init__(self, log: Log, base: RecoveryPoint) -> None:
        """Start at `base`.

        Raises:
            StoreError: it holds no state that can be replayed from.
        """
        self._log = log
        self._point: RecoveryPoint | None = base
        self.manifest = base.manifest
        """Manifest of the current step."""
        try:
            self._layout = layout_of(base.manifest)
            self._others = other_tensors(self._layout, base.tensors)
            params = params_of(self._layout)
            state = {name: tensor for name, tensor in base.tensors.items() if is_replayed(name, params)}
            self._model = LiveModel(self._layout, plan_of(base.manifest), state)
        except Exception as error:  # torch raises what it likes
            raise log.mismatch(self.step, f"its base cannot be replayed from: {error}") from error

    @property
    def step(self) -> int:
        """The current step."""
        return self.manifest.step

    def advance(self) -> bool:
        """Go to the next step; False when the log has none.

        Raises:
            StoreError: its record is damaged, or its replay does not give the parameters that were written. The cursor
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
        """Return the recovery point of the current step.

        Raises:
            StoreError: a tensor that no recovery point can hold.
        """
        if self._point is None:
            try:
                self._point = join(self.manifest, self._model.snapshot(), self._others)
            except (ShadowError, RecoveryPointError) as error:
                raise self._log.mismatch(self.step, str(error)) from error
        return self._point


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
