"""Where objects are kept: a small interface, and its form over a local directory.

A name is a relative path with ``/``. Names that begin with a dot are unfinished or discarded: nobody reads them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from shadow_rx.durable.errors import StoreError, Trouble, missing
from shadow_rx.durable.names import STORE_FILE
from shadow_rx.files import FileOperations

_LOCK = "lock"


class Storage(Protocol):
    """Objects by name. Methods raise `StoreError`, or `OSError` where the storage itself fails."""

    @property
    def url(self) -> str:
        """The store's path or URL, for messages."""

    def exists_store(self) -> bool:
        """Tell whether anything is there."""

    def check_access(self) -> None:
        """Refuse a store that others than its owner can read."""

    def acquire(self) -> None:
        """Make ready for writing, and keep other writers out."""

    def release(self) -> None:
        """Let other writers in."""

    def put(self, name: str, data: bytes, sync: bool) -> None:
        """Store an object under a new name or an old one: whole or not at all, as far as the storage can.

        With `sync` it is on storage when the method returns.
        """

    def put_folder(self, folder: str, files: Mapping[str, bytes], sync: bool) -> None:
        """Store a folder of objects that belong together; the last of `files` is stored last and marks it complete."""

    def get(self, name: str) -> bytes:
        """Return an object."""

    def exists(self, name: str) -> bool:
        """Tell whether an object or a folder has this name."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder ("" is the top), sorted, but for those with a dot; none when it is missing."""

    def move(self, source: str, target: str) -> None:
        """Give a folder a new name, which nothing has."""

    def retire(self, name: str) -> None:
        """Take an object or a folder away, so that nobody reads it from now on; its space is freed by `sweep`."""

    def sweep(self) -> None:
        """Free the space of what was taken away."""

    def erase(self) -> None:
        """Remove what marks it as a store, and the folder if nothing else is in it."""

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every object by name."""


class LocalStorage:
    """Objects as files below a directory.

    An object is written under a name with a dot, flushed and renamed into place: the rename is its commit marker.
    """

    def __init__(self, root: Path, files: FileOperations | None = None, allow_open: bool = False) -> None:
        """Keep objects below `root`, which is made when the first one is written.

        Args:
            root: the top directory.
            files: the file operations.
            allow_open: whether a directory that others can read is accepted.
        """
        self.root = root
        self._files = files or FileOperations()
        self._allow_open = allow_open
        self._flushed: set[Path] = set()
        self._doomed: list[Path] = []
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        """See `Storage`."""
        return str(self.root)

    def exists_store(self) -> bool:
        """See `Storage`."""
        return self.root.is_dir()

    def check_access(self) -> None:
        """See `Storage`."""
        if self._allow_open or not self.root.exists():
            return
        mode = self.root.stat().st_mode & 0o777
        if mode & 0o077:
            raise StoreError(
                Trouble.PERMISSIONS, self.url, "",
                f"is open to others than its owner (mode {mode:04o}), and a checkpoint is as secret as the model; "
                f"run chmod 700 on it, or accept it with --allow-open-permissions",
            )  # fmt: skip

    def acquire(self) -> None:
        """See `Storage`; the lock is the kernel's (flock(2)), so it ends with the process."""
        if self._lock is not None:
            return
        self._make(self.root)
        self.check_access()
        lock = (self.root / _LOCK).open("a+", encoding="utf-8")
        try:
            os.fchmod(lock.fileno(), 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip()
            lock.close()
            raise StoreError(
                Trouble.IN_USE, self.url, "", f"another writer has it ({owner or 'unknown'}); end that one first"
            ) from None
        except BaseException:
            lock.close()
            raise
        lock.truncate(0)
        lock.write(f"process {os.getpid()}\n")
        lock.flush()
        self._lock = lock
        # What a crash left unfinished; the lock says that nobody is at it.
        self._doomed += sorted(path for path in self.root.rglob(".*") if path not in self._doomed)

    def release(self) -> None:
        """See `Storage`."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def put(self, name: str, data: bytes, sync: bool) -> None:
        """See `Storage`."""
        with self._becoming(self.root / name, sync) as unfinished:
            self._files.write(unfinished, data)
            if sync:
                self._files.sync_file(unfinished)

    def put_folder(self, folder: str, files: Mapping[str, bytes], sync: bool) -> None:
        """See `Storage`."""
        path = self.root / folder
        with self._becoming(path, sync) as unfinished:
            self._files.remove_tree(unfinished)
            self._files.make_directory(unfinished)
            for name, data in files.items():
                self._files.write(unfinished / name, data)
                if sync:
                    self._files.sync_file(unfinished / name)
            if sync:
                self._files.sync_directory(unfinished)
            if self._files.exists(path):
                self._hide(path)

    @contextmanager
    def _becoming(self, path: Path, sync: bool) -> Iterator[Path]:
        """Give the name under which `path` is written; it gets its own when it is whole, and goes when it fails."""
        self._prepare(path.parent, sync)
        unfinished = path.with_name(f".new-{path.name}")
        try:
            yield unfinished
            self._files.rename(unfinished, path)
            if sync:
                self._files.sync_directory(path.parent)
        except Exception:
            self._discard(unfinished)
            raise

    def get(self, name: str) -> bytes:
        """See `Storage`."""
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            raise missing(self.url, name, "is not there") from None
        except OSError as error:
            raise StoreError(Trouble.STORAGE, self.url, name, f"cannot be read: {error}") from error

    def exists(self, name: str) -> bool:
        """See `Storage`."""
        return self._files.exists(self.root / name)

    def names(self, folder: str) -> list[str]:
        """See `Storage`."""
        path = self.root / folder
        if not path.is_dir():
            return []
        return sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))

    def move(self, source: str, target: str) -> None:
        """See `Storage`."""
        self._files.rename(self.root / source, self.root / target)
        self._flushed.discard(self.root / source)

    def retire(self, name: str) -> None:
        """See `Storage`; renamed, because what is half deleted must not look like what is damaged."""
        path = self.root / name
        if self._files.exists(path):
            self._hide(path)

    def _hide(self, path: Path) -> None:
        doomed = path.with_name(f".old-{path.name}")
        self._files.remove_tree(doomed)
        self._files.rename(path, doomed)
        self._doomed.append(doomed)

    def sweep(self) -> None:
        """See `Storage`."""
        while self._doomed:
            self._files.remove_tree(self._doomed[0])
            del self._doomed[0]

    def erase(self) -> None:
        """See `Storage`."""
        for name in (STORE_FILE, _LOCK):
            self._files.remove_tree(self.root / name)
        if not any(self.root.iterdir()):
            self.root.rmdir()

    def sizes(self) -> dict[str, int]:
        """See `Storage`."""
        found = ((path.relative_to(self.root), path) for path in sorted(self.root.rglob("*")))
        return {
            str(name): path.stat().st_size
            for name, path in found
            if str(name) != _LOCK and path.is_file() and not any(part.startswith(".") for part in name.parts)
        }

    def _make(self, directory: Path) -> None:
        """Make a directory of the store; those above the store have the permissions that are usual here."""
        if directory == self.root:
            self.root.parent.mkdir(parents=True, exist_ok=True)
        elif not directory.parent.exists():
            self._make(directory.parent)
        self._files.make_directory(directory)

    def _prepare(self, directory: Path, sync: bool) -> None:
        """Make the directory of an object, and see to it that it survives a crash with all those above it."""
        if directory not in self._flushed:
            self._make(directory)
        if directory not in self._flushed and sync:
            steps: Sequence[Path] = [p for p in directory.parents if p == self.root or self.root in p.parents]
            for parent in (*steps, self.root.parent):
                self._files.sync_directory(parent)
            self._flushed.add(directory)

    def _discard(self, unfinished: Path) -> None:
        try:
            self._files.remove_tree(unfinished)
        except OSError:
            # Its name begins with a dot, so nobody reads it, and the next attempt begins by removing it.
            return
