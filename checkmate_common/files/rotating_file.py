"""Append-only files of limited size."""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from checkmate_common.files.private_files import make_private_folder, private


@dataclass(frozen=True)
class LogLimits:
    """Maximum size of a log, and number of older files kept beside it."""

    nbytes: int = 256 << 20
    """Size in bytes at which a new file is started."""
    files: int = 4
    """Number of older files: NAME.1 (the newest) to NAME.<files>."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: a bound is too small; the message names it.
        """
        if self.nbytes < 1 << 16 or self.files < 1:
            raise ValueError(
                f"a log of {self.nbytes} bytes with {self.files} older files; expected at least {1 << 16} and 1"
            )


def older_files(path: Path) -> list[Path]:
    """Return the existing files of a log at `path`, oldest first."""
    numbered = [
        (int(found.name.removeprefix(f"{path.name}.")), found)
        for found in path.parent.glob("*")
        if found.name.startswith(f"{path.name}.") and found.name.removeprefix(f"{path.name}.").isdecimal()
    ]
    return [*(found for _, found in sorted(numbered, reverse=True)), *([path] if path.exists() else [])]


class RotatingFile:
    """A private file, opened for appending. Several processes may append to it, each with one system call at a time.

    Every method raises `OSError` if the file, or an older one beside it, cannot be written.
    """

    def __init__(self, path: Path, limits: LogLimits) -> None:
        """Open `path`; it and its folder are created if missing."""
        make_private_folder(path.parent)
        self.path = path
        """The file."""
        self._limits = limits
        self._descriptor = self._open()

    def _open(self) -> int:
        # A FIFO without a reader is an error; do not wait for one.
        return private(str(self.path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK)

    @property
    def size(self) -> int:
        """Size in bytes; 0 if it is not a regular file."""
        found = os.fstat(self._descriptor)
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def make_room(self, nbytes: int) -> bool:
        """Start a new file if `nbytes` more would exceed the limit; return whether it did."""
        if not self.size or self.size + nbytes <= self._limits.nbytes:
            return False
        self.rotate()
        return True

    def rotate(self) -> None:
        """Rename the file and the older ones, and start a new one."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            # Another process may have rotated it meanwhile.
            if os.path.samestat(os.fstat(self._descriptor), self.path.stat()):
                for number in range(self._limits.files, 0, -1):
                    older = self._older(number - 1)
                    if older.exists():
                        older.rename(self._older(number))
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        fresh = self._open()
        os.close(self._descriptor)
        self._descriptor = fresh

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path

    def write(self, data: bytes) -> None:
        """Append `data`; if only a part of it can be written, that part stays."""
        written = os.write(self._descriptor, data)
        if written < len(data):
            raise OSError(f"only {written} of {len(data)} bytes were written")

    def cut(self, size: int) -> None:
        """Truncate it to `size` bytes."""
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)
