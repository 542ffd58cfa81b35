"""The file operations that storing a recovery point consists of, so that a test can make each one fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from checkmate_common.files.private_files import make_private_folder, write_private

Parts = Iterable[bytes | memoryview]
"""The bytes of a file or object, one part after the other; taken once, and perhaps made only as they are taken."""


class FileOperations:
    """Operations on the local file system. Every method raises `OSError` when it fails."""

    def make_directory(self, path: Path) -> None:
        """Create `path`, for its owner alone, and missing parents; an existing directory is fine."""
        make_private_folder(path)

    def write(self, path: Path, data: Parts) -> None:
        """Write a file, for its owner alone; its data may still be in memory only."""
        write_private(path, data)

    def sync_file(self, path: Path) -> None:
        """Wait until the file's data is on storage."""
        _sync(path, os.O_RDONLY)

    def sync_directory(self, path: Path) -> None:
        """Wait until the directory's entries are on storage; a file's own fsync does not do that."""
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically; a file that has the name `target` is replaced, a directory is not."""
        source.rename(target)

    def exists(self, path: Path) -> bool:
        """Tell whether something has this name."""
        return os.path.lexists(path)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is fine."""
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()

    def remove_directory(self, path: Path) -> None:
        """Remove a directory if nothing is in it; one that is not there is fine."""
        try:
            path.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
