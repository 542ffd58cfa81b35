"""A store's file operations on a disk that gets full, and in a process that is killed in the middle of a write."""

from __future__ import annotations

import errno
from pathlib import Path

from shadow_rx.store.storage.files import FileOperations, Parts


class Killed(BaseException):
    """The shadow process was killed: nothing in it may run on, so no handler of exceptions is meant to see this."""


class FaultyFiles(FileOperations):
    """Real files with trouble at will.

    What is flushed is not waited for: the machine itself does not die in these runs.
    """

    def __init__(self) -> None:
        """Begin without trouble."""
        self.free: int | None = None
        """Bytes that are left on the disk, None: any number."""
        self.refused = 0
        """Writes that found no space."""
        self.tear: tuple[int, float] | None = None
        """How many more writes are whole, and the share (0..1) of the next one that is written before the kill."""
        self.torn = 0
        """Writes that a kill has torn."""

    def write(self, path: Path, data: Parts) -> None:
        """See `FileOperations.write`.

        Raises:
            OSError: the disk is full; what there was space for stays in the file.
            Killed: after a part of the data was written.
        """
        whole = b"".join(data)
        if self.tear is not None:
            before, share = self.tear
            self.tear = before - 1, share
            if not before:
                self.tear, self.torn = None, self.torn + 1
                super().write(path, [whole[: int(len(whole) * share)]])
                raise Killed
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
