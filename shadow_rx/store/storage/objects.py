"""Objects in an object store, or anything else that fsspec reaches: no rename, no append, no locks.

Each object is one upload. Of objects that belong together the one that marks them complete is uploaded last, and is
deleted first; objects of a log end with a trailer over all their bytes. So what an interrupted upload leaves is never
taken for whole, also where uploads are not atomic.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import Any

import fsspec

from checkmate_common.recovery.point import MANIFEST_FILE
from shadow_rx.redaction import redacted
from shadow_rx.store.errors import StoreError, Trouble, damaged, missing
from shadow_rx.store.names import SEALED_SUFFIX, STORE_FILE, is_object, parse_base
from shadow_rx.store.storage.files import Parts

_WRITER = "writer"
_TOKEN = re.compile(rb"[0-9a-f]{32}")


class ObjectStorage:
    """Objects below an fsspec URL such as ``s3://bucket/run`` or ``memory://run``.

    There are no locks: the newest writer leaves its name, and an older one that finds another's stops writing
    (it looks before each object, so this keeps two writers apart but for the moment of the change).
    """

    def __init__(self, url: str) -> None:
        """Keep objects below `url`.

        Raises:
            StoreError: fsspec does not know the URL, or the package for it is not installed.
        """
        try:
            fs, path = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise StoreError(Trouble.STORAGE, url, "", f"cannot be reached: {error}") from error
        self._fs: Any = fs
        self._root = str(path).rstrip("/")
        self._url = redacted(url)
        self._token: str | None = None
        self._doomed: list[str] = []

    @property
    def url(self) -> str:
        return self._url

    def check_access(self) -> None:
        """Who may read an object store is the business of its service."""

    def strangers(self) -> list[str]:
        return self.names("")

    def acquire(self) -> None:
        if self._token is None:
            token = secrets.token_hex(16)
            self._fs.makedirs(self._root, exist_ok=True)
            if self._fs.exists(self._path(_WRITER)) and not _TOKEN.fullmatch(self.get(_WRITER, 100)):
                raise StoreError(Trouble.OCCUPIED, self._url, _WRITER, "is not a store's; move it away")
            self._fs.pipe_file(self._path(_WRITER), token.encode())
            self._token = token

    def release(self) -> None:
        self._token = None

    def tidy(self) -> None:
        """An upload that was interrupted is not an object, or has nothing that marks it complete."""

    def _check_writer(self) -> None:
        if self._token is None:
            return
        if self._fs.cat_file(self._path(_WRITER)) != self._token.encode():
            raise StoreError(Trouble.IN_USE, self._url, "", "another writer has taken it over; this one stores no more")

    def put(self, name: str, data: Parts, sync: bool) -> None:
        """An upload is on storage when it returns, whatever `sync` says."""
        self._check_writer()
        self._upload(name, data)

    def _upload(self, name: str, data: Parts) -> None:
        path = self._path(name)
        self._fs.makedirs(self._fs._parent(path), exist_ok=True)
        self._fs.pipe_file(path, b"".join(data))

    def put_folder(self, folder: str, files: Iterable[tuple[str, Parts]], sync: bool) -> None:
        self._check_writer()
        for marker in (f"{folder}/{MANIFEST_FILE}", f"{folder}/{MANIFEST_FILE}{SEALED_SUFFIX}"):
            if self._fs.exists(self._path(marker)):
                self._fs.rm_file(self._path(marker))
        for name, data in files:
            self._upload(f"{folder}/{name}", data)

    def get(self, name: str, limit: int) -> bytes:
        try:
            info = self._fs.info(self._path(name))
            if info["type"] != "file":
                raise damaged(self._url, name, "is not an object")
            if int(info["size"] or 0) > limit:
                raise damaged(self._url, name, f"has {info['size']} bytes, it can have at most {limit}")
            return bytes(self._fs.cat_file(self._path(name)))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise missing(self._url, name, "is not there") from None
        except StoreError:
            raise
        except Exception as error:  # each file system has exceptions of its own
            raise StoreError(Trouble.STORAGE, self._url, name, f"cannot be read: {error}") from error

    def size(self, name: str) -> int:
        try:
            return int(self._fs.size(self._path(name)) or 0)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return 0

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._path(folder), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = {str(path).rstrip("/").rpartition("/")[2] for path in found}
        return sorted(name for name in names if not name.startswith(".") and (folder or name != _WRITER))

    def move(self, source: str, target: str) -> None:
        """Copied, then deleted, one object after the other."""
        for name in self._below(source):
            if is_object(name):
                self._fs.mv(self._path(name), self._path(target + name.removeprefix(source)))

    def retire(self, name: str) -> None:
        base = parse_base(name.rpartition("/")[2]) is not None
        for each in [f"{name}/{MANIFEST_FILE}{end}" for end in ("", SEALED_SUFFIX)] if base else [name]:
            if self._fs.exists(self._path(each)):
                self._fs.rm_file(self._path(each))
        if base:
            self._doomed.append(name)

    def sweep(self) -> None:
        while self._doomed:
            for each in self._below(self._doomed[0]):
                if is_object(each):
                    self._fs.rm_file(self._path(each))
            del self._doomed[0]

    def erase(self) -> None:
        """Folders are not objects."""
        for name in (STORE_FILE, _WRITER):
            self._fs.rm_file(self._path(name))

    def sizes(self) -> dict[str, int]:
        found = self._below("")
        return {name: found[name] for name in sorted(found) if is_object(name)}

    def _below(self, folder: str) -> dict[str, int]:
        """Return the bytes of everything below a folder by name."""
        self._fs.invalidate_cache()
        found = self._fs.find(self._path(folder), detail=True)
        return {str(path)[len(self._root) :].lstrip("/"): int(info["size"] or 0) for path, info in found.items()}

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root
