"""File operations of a store whose disk fails, fills up or gets slow, and whose process is killed during a write."""

from __future__ import annotations

import errno
import random
from pathlib import Path

from shadow_rx.store.storage.files import FileOperations, Parts
from topology.acceptance.plan import COMPUTE_S

_FAST_WRITE_S = (1e-5, 0.4 * COMPUTE_S)
"""Shortest and longest write of a point to a healthy disk, in virtual seconds: shorter than a step."""


class ProcessKilled(BaseException):
    """The shadow node's process was killed. No handler of `Exception` may catch it: a dead process runs nothing."""


class FaultyFiles(FileOperations):
    """Real files with injected faults. Does not wait for flushes: the machine itself survives these runs."""

    def __init__(self, rng: random.Random) -> None:
        """Begin without faults; `rng` decides which writes fail and how long they take."""
        self._rng = rng
        self.error_probability = 0.0
        """Probability that a write fails with EIO."""
        self.errors = 0
        """Writes that failed with EIO."""
        self.slowest_s: float | None = None
        """Longest write of a point while the disk is slow, in virtual seconds; None: the disk is fast."""
        self.slow_writes = 0
        """Points written while the disk was slow."""
        self.free_bytes: int | None = None
        """Bytes left on the disk; None: unlimited."""
        self.no_space = 0
        """Writes that failed with ENOSPC."""
        self.tear: tuple[int, float] | None = None
        """Whole writes before the torn one, and the share (0..1) of the torn one that is written before the kill."""
        self.torn = 0
        """Writes torn by a kill."""

    def seconds(self) -> float:
        """Draw how long the next point takes to write, in virtual seconds."""
        if self.slowest_s is None:
            return self._rng.uniform(*_FAST_WRITE_S)
        self.slow_writes += 1
        return self._rng.uniform(_FAST_WRITE_S[1], self.slowest_s)

    def write(self, path: Path, data: Parts) -> None:
        """See `FileOperations.write`.

        Raises:
            OSError: the disk is full or fails; the part written so far stays in the file.
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
        if self.error_probability and self._rng.random() < self.error_probability:
            self.errors += 1
            super().write(path, [whole[: int(len(whole) * self._rng.random())]])
            raise OSError(errno.EIO, "Input/output error", str(path))
        if self.free_bytes is not None:
            if len(whole) > self.free_bytes:
                self.no_space += 1
                super().write(path, [whole[: self.free_bytes]])
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            self.free_bytes -= len(whole)
        super().write(path, [whole])

    def sync_file(self, path: Path) -> None:
        """Do not wait."""

    def sync_directory(self, path: Path) -> None:
        """Do not wait."""
