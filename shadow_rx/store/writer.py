"""Writes the recovery points of one shadow node: base snapshots, and the gradients of the steps between them.

``STORE/<group>/epoch-0001/`` holds ``step-…/`` (a base: a published recovery point) and ``log-…`` (reduced gradients
with all that the ranks told of their steps). Each object is written whole and then becomes visible, so that at any
instant the store holds every step that was reported durable; `shadow_rx.store.recover` reads steps back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from checkmate_common.recovery.point import MANIFEST_FILE, STATE_FILE, RecoveryPointError, manifest_text, pack_tensors
from checkmate_common.stream.layout import Layout
from jobspec.store import Fsync, Retention, StoreSpec
from shadow_rx.apply.model import Tensors
from shadow_rx.publish.snapshot import EncodedPoint, Snapshot, contents, encoding
from shadow_rx.store.earlier import found_objects, found_points
from shadow_rx.store.index import index_of
from shadow_rx.store.names import Point, base_name, epoch_folder, segment_name
from shadow_rx.store.opening import OpenStore, open_for_reading, open_for_writing, storage_of
from shadow_rx.store.recover import StoreReader
from shadow_rx.store.retained import Retained, StoredObject
from shadow_rx.store.segment import Parts, encode_segment
from shadow_rx.store.steplog import encode_step, other_tensors
from shadow_rx.store.storage.crypto import KeyRing
from shadow_rx.store.storage.files import FileOperations
from shadow_rx.trainer.description import OptimizerPlan

_MAX_TOGETHER = 16
"""Most steps that wait for one commit when storage is slow."""
WHOLE = StoreSpec(base_every=1)
"""Each step as a base: three times the bytes, and each can be read without any other."""


@dataclass(frozen=True)
class StoreResult:
    """What became of one recovery point."""

    point: Point
    """The point."""
    error: str | None = None
    """Why it is not on storage, None when it is."""
    removed: tuple[Point, ...] = ()
    """Older points that were deleted because newer ones are there."""
    cleanup_error: str | None = None
    """Why older points could not be deleted; they are tried again with the next point."""
    waiting: bool = False
    """Whether the point was only taken, and is committed together with a later one."""
    together: tuple[Point, ...] = ()
    """Points that waited before and are durable now."""
    failed: tuple[Point, ...] = ()
    """Points that waited before and could not be written either, for the same `error`."""
    base_error: str | None = None
    """Why a base that was due could not be written, though the point is durable; the next point tries again."""


@dataclass
class _LogTail:
    """Where the log of a group stands."""

    epoch: int
    step: int
    layout: Layout
    optimizer: OptimizerPlan
    since_base: int = 0
    others: Tensors = field(default_factory=dict)
    waiting: list[Parts] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    def continues(self, snapshot: Snapshot) -> bool:
        """Tell whether `snapshot` is the next step, and its gradient leads there."""
        return (
            snapshot.gradient is not None
            and bool(snapshot.records)
            and (snapshot.epoch, snapshot.step) == (self.epoch, self.step + 1)
            and snapshot.layout == self.layout
            and snapshot.optimizer.same_state(self.optimizer)
        )


class RecoveryStore:
    """The one writer of a store."""

    def __init__(
        self,
        target: Path | str,
        keep: int | None = None,
        files: FileOperations | None = None,
        *,
        policy: StoreSpec = WHOLE,
        ring: KeyRing | None = None,
        resume: bool = False,
        allow_open: bool = False,
    ) -> None:
        """Write to a directory, which is created with the first point, or below an fsspec URL.

        Args:
            target: path or URL.
            keep: newest steps to keep of each group; None: what the policy says.
            files: file operations of a directory.
            policy: what is written when, and how long it is kept.
            ring: keys; None: nothing is encrypted.
            resume: whether what is there of an epoch is this run's own, from before a restart. Otherwise an epoch that
                is begun here replaces those of an earlier run, which stay under another name.
            allow_open: whether a directory that others can read is accepted.

        Raises:
            ValueError: `keep` is below 1.
            StoreError: a URL that cannot be used.
        """
        if keep is not None and keep < 1:
            raise ValueError(f"stored steps: {keep}, expected at least 1, or None for all")
        if keep is not None:
            policy = policy.model_copy(update={"retention": Retention(steps=keep)})
        self.target = target
        """Path or URL."""
        self.policy = policy
        """What is written when."""
        self.written_bytes = 0
        """Bytes that were written so far, before encryption."""
        self._storage = storage_of(target, files, allow_open)
        self._ring = ring
        self._resume = resume
        self._opened: OpenStore | None = None
        self._begun: set[tuple[str, int]] = set()
        self._tails: dict[str, _LogTail] = {}
        self._retained: dict[str, Retained] = {}
        self._read_back: dict[str, list[tuple[int, int]]] = {}

    def open(self) -> OpenStore:
        """Take the store, which is made if it is not there; nobody else writes to it until `close`.

        Raises:
            StoreError: another writer has it, others can read it, or the key is wrong.
            OSError: the storage failed.
        """
        if self._opened is None:
            self._opened = open_for_writing(self._storage, self._ring)
        return self._opened

    def close(self) -> None:
        """Give the store back. What waits is not written: `flush` comes before."""
        self._read_back.clear()  # from now on somebody else may write
        if self._opened is not None:
            self._opened.plain.release()
            self._opened = None

    def log_bytes(self, group: str) -> int:
        """Return the bytes of the steps of `group` that wait for a common commit."""
        tail = self._tails.get(group)
        return sum(len(part) for record in tail.waiting for part in record) if tail is not None else 0

    def publish(self, snapshot: Snapshot, hurry: bool = False, most_log_bytes: int | None = None) -> StoreResult:
        """Write a recovery point, and delete those that are no longer kept.

        Never raises: a storage error is a result, because training and replication go on without storage.

        Args:
            snapshot: the point.
            hurry: whether others wait already: flushes become rarer then, and bases wait.
            most_log_bytes: bytes of steps from which on they wait no longer for a common commit; None: any number.
        """
        group, point = snapshot.group, (snapshot.group, snapshot.epoch, snapshot.step)
        tail = self._tails.get(group)
        before = tuple(tail.points) if tail is not None else ()
        done: tuple[Point, ...] = ()
        base_error = None
        try:
            self._begin(group, snapshot.epoch)
            if tail is not None and not tail.continues(snapshot):
                self._commit(tail)
                tail, done = None, before
            due = tail is None
            if tail is not None:
                self._log(tail, snapshot)
                due = _base_due(self.policy, tail.since_base, hurry)
                full = most_log_bytes is not None and self.log_bytes(group) >= most_log_bytes
                if not (due or full or _commit_due(self.policy, len(tail.points), hurry)):
                    return StoreResult(point, waiting=True)
                self._commit(tail)
                done = before
            if due:
                base_error = self._try_base(snapshot, optional=tail is not None and self._logged)
        except Exception as error:
            # Everything: the thread that stores must survive whatever a file system can come up with.
            self._tails.pop(group, None)
            failed = tuple(old for old in before if old not in done)
            return StoreResult(point, f"{self._storage.url}: {error}", together=done, failed=failed)
        removed, cleanup_error = self._prune(group)
        return StoreResult(point, None, removed, cleanup_error, together=done, base_error=base_error)

    def flush(self) -> list[StoreResult]:
        """Commit what waits, and return what became of it: one result a group."""
        results: list[StoreResult] = []
        for group, tail in list(self._tails.items()):
            points = tuple(tail.points)
            if not points:
                continue
            try:
                self._commit(tail)
                results.append(StoreResult(points[-1], together=points[:-1]))
            except Exception as problem:  # see `publish`
                self._tails.pop(group)
                results.append(StoreResult(points[-1], f"{self._storage.url}: {problem}", failed=points[:-1]))
        return results

    def read(self, group: str, epoch: int, step: int) -> EncodedPoint:
        """Return the files of a recovery point that is on storage, checked.

        Raises:
            RecoveryPointError: not there, damaged, or not readable.
        """
        try:
            point = StoreReader(open_for_reading(self._storage, self._ring)).point(group, step, epoch)
        except OSError as error:
            raise RecoveryPointError(None, f"{self._storage.url}: cannot be read: {error}") from error
        return EncodedPoint(manifest_text(point.manifest, indent=1), pack_tensors(point.tensors))

    def points(self, group: str) -> list[tuple[int, int]]:
        """Return epoch and step of what the store holds of `group`, of its current epochs (`found_points`).

        Raises:
            StoreError: see `open`.
            OSError: the storage failed.
        """
        found = found_points(StoreReader(self.open()), group)
        if group not in self._retained:
            self._read_back[group] = found
        return found

    @property
    def _logged(self) -> bool:
        """Whether steps are logged at all: where each is a base, a log would only repeat it."""
        return self.policy.base_every > 1

    def _begin(self, group: str, epoch: int) -> None:
        """Take the store, and see to what is there already.

        What an earlier run left of this epoch and of later ones is moved away, under a name that nobody takes for this
        run's points: a rerun must not delete a checkpoint, and an old run's step 20 must not pass for the newest of a
        run that is at step 5.
        """
        storage = self.open().storage
        if group not in self._retained:
            retained = Retained(self.policy.retention)
            if self._resume:
                # Nothing was written since a restarted node asked for the points, and asking replays the newest steps.
                points = self._read_back.pop(group, None) or self.points(group)
                for entry in found_objects(StoreReader(self.open()), group, points):
                    retained.add(entry)
            self._retained[group] = retained
        if (group, epoch) in self._begun:
            return
        if not self._resume:
            for old in index_of(storage, group):
                if not old.superseded and old.epoch >= epoch and (group, old.epoch) not in self._begun:
                    number = 1
                    while storage.exists(target := f"{old.folder}.old-{number}"):
                        number += 1
                    self.open().plain.move(old.folder, target)
        self._begun.add((group, epoch))

    def _log(self, tail: _LogTail, snapshot: Snapshot) -> None:
        """Let a step wait for the next commit."""
        if self._logged:
            record, tail.others = encode_step(snapshot, tail.others)
            tail.waiting.append(record)
            tail.points.append((snapshot.group, snapshot.epoch, snapshot.step))
        tail.step = snapshot.step
        tail.since_base += 1

    def _commit(self, tail: _LogTail) -> None:
        """Write the steps that wait as one segment."""
        if not tail.waiting:
            return
        (group, epoch, first), (_, _, last) = tail.points[0], tail.points[-1]
        header = {"group": group, "epoch": epoch, "first": first, "last": last, "threads": torch.get_num_threads()}
        name = f"{epoch_folder(group, epoch)}/{segment_name(first, last)}"
        data, points = encode_segment(header, tuple(tail.waiting)), tuple(tail.points)
        tail.waiting.clear()
        tail.points.clear()
        with self._listed(group, StoredObject(name, points, False)):
            self.open().storage.put(name, self._counted(data), _synced(self.policy, base=False))

    @contextmanager
    def _listed(self, group: str, entry: StoredObject) -> Iterator[None]:
        """List an object that is written within; also one whose writing failed, as part of it may be there."""
        retained = self._retained[group]
        try:
            yield
        except Exception:
            retained.add(StoredObject(entry.name, (), False))
            raise
        retained.add(entry)

    def _try_base(self, snapshot: Snapshot, optional: bool) -> str | None:
        """Write a base; where the step is in the log already, an error is returned and the next step tries again."""
        try:
            self._write_base(snapshot)
        except Exception as error:  # see `publish`
            if not optional:
                raise
            return f"{self._storage.url}: {error}"
        return None

    def _write_base(self, snapshot: Snapshot) -> None:
        name = f"{epoch_folder(snapshot.group, snapshot.epoch)}/{base_name(snapshot.step)}"
        point = (snapshot.group, snapshot.epoch, snapshot.step)
        with self._listed(snapshot.group, StoredObject(name, (point,), True)):
            self.open().storage.put_folder(name, self._base_files(snapshot), _synced(self.policy, base=True))
        others = other_tensors(snapshot.layout, contents(snapshot)[1]) if self._logged else {}
        self._tails[snapshot.group] = _LogTail(
            snapshot.epoch, snapshot.step, snapshot.layout, snapshot.optimizer, others=others
        )

    def _base_files(self, snapshot: Snapshot) -> Iterator[tuple[str, Iterator[bytes | memoryview]]]:
        with encoding(snapshot) as (state, manifest):
            yield STATE_FILE, self._counted(state)
            yield MANIFEST_FILE, self._counted([manifest()])

    def _counted(self, parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for part in parts:
            self.written_bytes += len(part)
            yield part

    def _prune(self, group: str) -> tuple[tuple[Point, ...], str | None]:
        """Delete what is no longer kept; return the points that are gone, and the error that stopped it."""
        retained, opened = self._retained[group], self.open()
        gone: list[Point] = []
        try:
            while (entry := retained.expendable()) is not None:
                opened.storage.retire(entry.name)
                gone += retained.forget()
            opened.plain.sweep()
        except Exception as problem:  # see `publish`
            return tuple(gone), str(problem)
        return tuple(gone), None


def _base_due(policy: StoreSpec, since: int, hurry: bool) -> bool:
    """Tell whether a base is due.

    Args:
        policy: the job's wishes.
        since: steps since the last base, the current one included.
        hurry: whether other steps wait already: a base is put off then, for at most as long again, because it is
            what takes the longest.
    """
    return since >= policy.base_every * (2 if hurry and policy.base_every > 1 else 1)


def _commit_due(policy: StoreSpec, waiting: int, hurry: bool) -> bool:
    """Tell whether `waiting` steps are to be committed now; with `hurry` more of them share a commit."""
    return waiting >= (max(policy.every, _MAX_TOGETHER) if hurry else policy.every)


def _synced(policy: StoreSpec, base: bool) -> bool:
    """Tell whether an object is flushed to storage before it counts as durable."""
    return policy.fsync is Fsync.ALWAYS or (base and policy.fsync is Fsync.BASE)
