"""Objects in a local directory."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from checkmate_common.files.private_files import private
from checkmate_common.files.regular_files import UnreadableFile, read_regular
from checkmate_common.recovery.point import MANIFEST_FILE
from shadow_rx.store.errors import StoreError, Trouble, damaged, missing
from shadow_rx.store.names import (
    BASE_FILES,
    SEALED_SUFFIX,
    STORE_FILE,
    is_group,
    is_leftover,
    is_object,
    parse_base,
    parse_epoch,
    unfinished,
)
from shadow_rx.store.storage.files import FileOperations, Parts

_LOCK = "lock"
_OWNER = re.compile(rb"(process [0-9]{1,20}\n)?")


class LocalStorage:
    """Objects as regular files below a directory. Links are not followed, but for one to the directory itself.

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
        self._doomed: list[str] = []
        self._lock: int | None = None

    @property
    def url(self) -> str:
        return str(self.root)

    def check_access(self) -> None:
        if self._allow_open or not self.root.exists():
            return
        mode = self.root.stat().st_mode & 0o777
        if mode & 0o077:
            raise StoreError(
                Trouble.PERMISSIONS, self.url, "",
                f"is open to others than its owner (mode {mode:04o}), and a checkpoint is as secret as the model; "
                f"run chmod 700 on it, or accept it with --allow-open-permissions",
            )  # fmt: skip

    def strangers(self) -> list[str]:
        if not self.root.is_dir():
            return []
        return sorted({entry.name for entry in self.root.iterdir()} - {_LOCK, unfinished(STORE_FILE)})

    def acquire(self) -> None:
        """The lock is the kernel's (flock(2)), so it ends with the process."""
        if self._lock is not None:
            return
        self.root.parent.mkdir(parents=True, exist_ok=True)  # with the permissions that are usual here
        self._files.make_directory(self.root)
        self.check_access()
        lock = private(str(self.root / _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            owner = os.read(lock, 100) if stat.S_ISREG(os.fstat(lock).st_mode) else b"?"
            if not _OWNER.fullmatch(owner):
                raise StoreError(Trouble.OCCUPIED, self.url, _LOCK, "is not the lock of a store; move it away")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"another writer has it ({owner.decode().strip() or 'unknown'}); end that one first"
                raise StoreError(Trouble.IN_USE, self.url, "", message) from None
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def tidy(self) -> None:
        self._files.remove(self.root / unfinished(STORE_FILE))
        for epoch in self._epochs():
            for entry in _scan(self.root / epoch):
                name = f"{epoch}/{entry.name}"
                if _is_folder(entry) and (is_leftover(name) or is_object(f"{name}/{MANIFEST_FILE}")):
                    inside = [inner.name for inner in _scan(self.root / name)]
                    complete = MANIFEST_FILE in inside or MANIFEST_FILE + SEALED_SUFFIX in inside
                    if is_leftover(name) or not complete:
                        self._remove_base(name)
                    for inner in inside:
                        if is_leftover(f"{name}/{inner}"):
                            self._files.remove(self.root / name / inner)
                elif is_leftover(name):
                    self._files.remove(self.root / name)

    def put(self, name: str, data: Parts, sync: bool) -> None:
        path = self.root / name
        self._prepare(path.parent, sync)
        written = path.with_name(unfinished(path.name))
        try:
            # A file that is there already, or a link, may lead to something else.
            self._files.remove(written)
            self._files.write(written, data)
            if sync:
                self._files.sync_file(written)
            self._files.rename(written, path)
            if sync:
                self._files.sync_directory(path.parent)
        except Exception:
            self._discard(written)
            raise

    def put_folder(self, folder: str, files: Iterable[tuple[str, Parts]], sync: bool) -> None:
        for suffix in ("", SEALED_SUFFIX):
            self._files.remove(self.root / folder / (MANIFEST_FILE + suffix))
        for name, data in files:
            self.put(f"{folder}/{name}", data, sync)

    def get(self, name: str, limit: int) -> bytes:
        try:
            self._refuse_links(self.root / name)
            return read_regular(self.root / name, limit)
        except (FileNotFoundError, NotADirectoryError):
            raise missing(self.url, name, "is not there") from None
        except UnreadableFile as error:
            raise damaged(self.url, name, str(error)) from None
        except OSError as error:
            raise StoreError(Trouble.STORAGE, self.url, name, f"cannot be read: {error}") from error

    def size(self, name: str) -> int:
        try:
            return (self.root / name).lstat().st_size
        except OSError:
            return 0

    def exists(self, name: str) -> bool:
        return self._files.exists(self.root / name)

    def names(self, folder: str) -> list[str]:
        return sorted(entry.name for entry in _scan(self.root / folder) if not entry.name.startswith("."))

    def move(self, source: str, target: str) -> None:
        self._files.rename(self.root / source, self.root / target)
        self._flushed.clear()
        for name in list(self._inside(target)):
            if not is_object(name):
                back = self.root / (source + name.removeprefix(target))
                self._files.make_directory(back.parent)
                self._files.rename(self.root / name, back)

    def retire(self, name: str) -> None:
        if parse_base(name.rpartition("/")[2]) is None:
            self._files.remove(self.root / name)
            return
        markers = [self.root / name / (MANIFEST_FILE + end) for end in ("", SEALED_SUFFIX)]
        for marker in [marker for marker in markers if self._files.exists(marker)]:
            self._files.remove(marker)
        self._doomed.append(name)

    def sweep(self) -> None:
        while self._doomed:
            self._remove_base(self._doomed[0])
            del self._doomed[0]

    def _remove_base(self, name: str) -> None:
        for file in reversed(BASE_FILES):
            for inner in (file, file + SEALED_SUFFIX):
                self._files.remove(self.root / name / inner)
        self._files.remove_directory(self.root / name)
        self._flushed.discard(self.root / name)

    def erase(self) -> None:
        for name in (STORE_FILE, _LOCK):
            self._files.remove(self.root / name)
        for epoch in list(self._epochs()):
            folders = [f"{epoch}/{entry.name}" for entry in _scan(self.root / epoch) if _is_folder(entry)]
            bases = [folder for folder in folders if is_object(f"{folder}/{MANIFEST_FILE}")]
            for folder in (*bases, epoch, epoch.partition("/")[0]):
                self._files.remove_directory(self.root / folder)
        self._files.remove_directory(self.root)

    def sizes(self) -> dict[str, int]:
        inside = (name for epoch in self._epochs() for name in self._inside(epoch))
        names = (STORE_FILE, *sorted(filter(is_object, inside)))
        return {name: self.size(name) for name in names if self.exists(name)}

    def _epochs(self) -> Iterator[str]:
        """Yield the folders of all epochs."""
        for group in _scan(self.root):
            if _is_folder(group) and is_group(group.name):
                for epoch in _scan(self.root / group.name):
                    if _is_folder(epoch) and parse_epoch(epoch.name) is not None:
                        yield f"{group.name}/{epoch.name}"

    def _inside(self, epoch: str) -> Iterator[str]:
        """Yield what lies in an epoch's folder and in its bases."""
        for entry in _scan(self.root / epoch):
            name = f"{epoch}/{entry.name}"
            if _is_folder(entry) and is_object(f"{name}/{MANIFEST_FILE}"):
                yield from (f"{name}/{inner.name}" for inner in _scan(self.root / name))
            else:
                yield name

    def _prepare(self, directory: Path, sync: bool) -> None:
        """Make the directory of an object, and see to it that it survives a crash with all those above it."""
        if directory in self._flushed:
            return
        if directory != self.root:
            self._prepare(directory.parent, sync)
            self._refuse_links(directory)
        self._files.make_directory(directory)
        if sync:
            self._files.sync_directory(directory.parent)
            self._flushed.add(directory)

    def _refuse_links(self, path: Path) -> None:
        """Refuse what lies below a link, or is one: it may lead out of the store."""
        while path != self.root:
            if path.is_symlink():
                raise UnreadableFile(f"{path} is a symbolic link, which a store does not follow")
            path = path.parent

    def _discard(self, written: Path) -> None:
        try:
            self._files.remove(written)
        except OSError:
            # Its name begins with a dot, so nobody reads it, and the next attempt begins by removing it.
            return


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder in the order of their names, none where it is not there."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)
