"""Recovery points on storage: ``ROOT/<group>/epoch-%04d/step-%08d/`` with a state file and a manifest.

A point is written into a directory of another name, flushed, and renamed into place, so that at any instant a
``step-…`` directory is whole; a crash leaves at most a directory whose name begins with a dot, and every
earlier point.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from jobspec.recovery_point import MANIFEST_FILE, STATE_FILE, RecoveryPointError, read_recovery_point
from shadow_rx.files import FileOperations
from shadow_rx.snapshot import EncodedPoint, Snapshot, encode

Point = tuple[str, int, int]
"""Group, epoch and step of a recovery point."""


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


class RecoveryStore:
    """Writes the recovery points of one shadow node; keeps the newest `keep` of each group, or all."""

    def __init__(self, root: Path, keep: int | None = None, files: FileOperations | None = None) -> None:
        """Store under directory `root`, which is created with the first point.

        Raises:
            ValueError: `keep` is below 1.
        """
        if keep is not None and keep < 1:
            raise ValueError(f"keep is {keep}, expected at least 1, or None for all")
        self.root = root
        """Top directory."""
        self._keep = keep
        self._files = files or FileOperations()
        self._written: dict[str, deque[Point]] = {}
        self._doomed: list[Path] = []
        self._begun: set[Path] = set()
        self._flushed: set[Path] = set()

    def path_of(self, group: str, epoch: int, step: int) -> Path:
        """Return the directory of a recovery point, which exists once it is published."""
        return self._epoch_path(group, epoch) / f"step-{step:08d}"

    def _epoch_path(self, group: str, epoch: int) -> Path:
        return self.root / group / f"epoch-{epoch:04d}"

    def publish(self, snapshot: Snapshot) -> StoreResult:
        """Write a recovery point and delete those that are no longer kept.

        Never raises: a storage error is a result, because training and replication go on without storage.
        """
        point = (snapshot.group, snapshot.epoch, snapshot.step)
        path = self.path_of(*point)
        unfinished = path.with_name(f".new-{path.name}")
        written = self._written.setdefault(snapshot.group, deque())
        try:
            encoded = encode(snapshot)
            self._begin_epoch(snapshot.group, snapshot.epoch)
            self._files.remove_tree(unfinished)
            self._files.make_directory(unfinished)
            self._files.write(unfinished / STATE_FILE, encoded.state)
            self._files.write(unfinished / MANIFEST_FILE, encoded.manifest_json.encode())
            self._files.sync_directory(unfinished)
            self._files.rename(unfinished, path)
            # Listed before it is known to be durable, so that it will be deleted in its turn in either case.
            written.append(point)
            self._files.sync_directory(path.parent)
        except Exception as error:
            # Everything: the thread that stores must survive whatever a file system can come up with.
            self._discard(unfinished)
            return StoreResult(point, f"{path}: {error}")
        removed, cleanup_error = self._prune(written)
        return StoreResult(point, None, removed, cleanup_error)

    def _begin_epoch(self, group: str, epoch: int) -> None:
        """Make the epoch's directory; move away one that an earlier run left under the same number.

        It is kept, under a name that nobody takes for this run's points: a rerun must not delete a
        checkpoint, and an old run's step 20 must not pass for the newest of a run that is at step 5.
        """
        path = self._epoch_path(group, epoch)
        if path not in self._begun:
            if self._files.exists(path):
                number = 1
                while self._files.exists(old := path.with_name(f"{path.name}.old-{number}")):
                    number += 1
                self._files.rename(path, old)
            self._files.make_directory(path)
            self._begun.add(path)
        if path not in self._flushed:
            # New entries of all levels have to survive a crash, or a durable point could vanish with its
            # parents.
            for directory in (path.parent, self.root, self.root.parent):
                self._files.sync_directory(directory)
            self._flushed.add(path)

    def _discard(self, unfinished: Path) -> None:
        try:
            self._files.remove_tree(unfinished)
        except OSError:
            # Its name begins with a dot, so nobody reads it, and the next attempt begins by removing it.
            return

    def _prune(self, written: deque[Point]) -> tuple[tuple[Point, ...], str | None]:
        """Delete the oldest points beyond `keep`; return those that are gone, and the error that stopped it."""
        removed: list[Point] = []
        try:
            while self._keep is not None and len(written) > self._keep:
                # Renamed first: a point that is half deleted must not look like one that is damaged.
                path = self.path_of(*written[0])
                doomed = path.with_name(f".old-{path.name}")
                if self._files.exists(path):
                    self._files.rename(path, doomed)
                    self._doomed.append(doomed)
                removed.append(written.popleft())
            while self._doomed:
                self._files.remove_tree(self._doomed[0])
                del self._doomed[0]
        except OSError as error:
            return tuple(removed), str(error)
        return tuple(removed), None

    def read(self, group: str, epoch: int, step: int) -> EncodedPoint:
        """Return the files of a published recovery point, checked.

        Raises:
            RecoveryPointError: not there, or damaged.
        """
        directory = self.path_of(group, epoch, step)
        read_recovery_point(directory)
        try:
            state = (directory / STATE_FILE).read_bytes()
            return EncodedPoint((directory / MANIFEST_FILE).read_text(), state)
        except OSError as error:
            raise RecoveryPointError(directory, f"cannot be read: {error}") from error
