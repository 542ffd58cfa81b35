"""The file operations that storing a recovery point consists of, so that a test can make each one fail."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class FileOperations:
    """Operations on the local file system. Every method raises `OSError` when it fails."""

    def make_directory(self, path: Path) -> None:
        """Create `path` and its parents; an existing directory is fine."""
        path.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """Write a new file and wait until its data is on storage."""
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def sync_directory(self, path: Path) -> None:
        """Wait until the directory's entries are on storage; a file's own fsync does not do that."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically; `target` does not exist."""
        source.rename(target)

    def exists(self, path: Path) -> bool:
        """Tell whether something has this name."""
        return path.exists()

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all it holds; one that is not there is fine."""
        if path.exists():
            shutil.rmtree(path)
