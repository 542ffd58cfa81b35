"""A store's file operations on a disk that fails, gets full or slow, in a process that is killed while it writes."""

from __future__ import annotations

import errno
import random
from pathlib import Path

from shadow_rx.store.storage.files import FileOperations, Parts
from topology.acceptance.plan import COMPUTE_S

_QUICK_S = (1e-5, 0.4 * COMPUTE_S)
"""Shortest and longest write of a point to a disk that has no trouble: shorter than a step."""


class ProcessKilled(BaseException):
    """The shadow process was killed: nothing in it may run on, so no handler of exceptions is meant to see this."""


class FaultyFiles(FileOperations):
    """Real files with trouble at will.

    What is flushed is not waited for: the machine itself does not die in these runs.
    """

    def __init__(self, rng: random.Random) -> None:
        """Begin without trouble; `rng` decides which writes fail, and how long they take."""
        self._rng = rng
        self.failing = 0.0
        """Probability that a write fails."""
        self.failed = 0
        """Writes that failed so."""
        self.longest: float | None = None
        """Virtual seconds that a point takes at most while the disk is slow; None: it is quick."""
        self.slow = 0
        """Points that were written slowly."""
        self.free: int | None = None
        """Bytes that are left on the disk, None: any number."""
        self.refused = 0
        """Writes that found no space."""
        self.tear: tuple[int, float] | None = None
        """How many more writes are whole, and the share (0..1) of the next one that is written before the kill."""
        self.torn = 0
        """Writes that a kill has torn."""

    def seconds(self) -> float:
        """Draw how long the next point takes."""
        if self.longest is None:
            return self._rng.uniform(*_QUICK_S)
        self.slow += 1
        return self._rng.uniform(_QUICK_S[1], self.longest)

    def write(self, path: Path, data: Parts) -> None:
        """See `FileOperations.write`.

        Raises:
            OSError: the disk is full, or fails; what was written stays in the file.
            ProcessKilled: after a part of the data was written.
        """
        whole = b"".join(data)
        if self.tear is not None:
            before, share = self.tear
            self.tear = before - 1, share
            if not before:
                self.tear, self.torn = None, self.torn + 1
                super().write(path, [whole[: int(len(whole) * share)]])
                raise ProcessKilled
        if self.failing and self._rng.random() < self.failing:
            self.failed += 1
            super().write(path, [whole[: int(len(whole) * self._rng.random())]])
            raise OSError(errno.EIO, "Input/output error", str(path))
        if self.free is not None:
            if len(whole) > self.free:
                self.refused += 1
                super().write(path, [whole[: self.free]])
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            self.free -= len(whole)
        super().write(path, [whole])

    def sync_file(self, path: Path) -> None:
        """Do not wait."""

    def sync_directory(self, path: Path) -> None:
        """Do not wait."""
