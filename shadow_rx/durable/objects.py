"""Objects in an object store, or anything else that fsspec reaches: no rename, no append, no locks.

Each object is one upload. Of objects that belong together the one that marks them complete is uploaded last, and is
deleted first; objects of a log end with a trailer over all their bytes. So what an interrupted upload leaves is never
taken for whole, also where uploads are not atomic.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import fsspec

from shadow_rx.durable.errors import StoreError, Trouble, missing
from shadow_rx.durable.names import STORE_FILE

_WRITER = "writer"


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
        self._url = url
        self._token: str | None = None
        self._doomed: list[str] = []

    @property
    def url(self) -> str:
        """See `Storage`."""
        return self._url

    def exists_store(self) -> bool:
        """See `Storage`."""
        self._fs.invalidate_cache()
        return bool(self.names(""))

    def check_access(self) -> None:
        """See `Storage`: who may read an object store is the business of its service."""

    def acquire(self) -> None:
        """See `Storage`."""
        if self._token is None:
            token = secrets.token_hex(16)
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(self._path(_WRITER), token.encode())
            self._token = token

    def release(self) -> None:
        """See `Storage`."""
        self._token = None

    def _check_writer(self) -> None:
        if self._token is None:
            return
        if self._fs.cat_file(self._path(_WRITER)) != self._token.encode():
            raise StoreError(Trouble.IN_USE, self._url, "", "another writer has taken it over; this one stores no more")

    def put(self, name: str, data: bytes, sync: bool) -> None:
        """See `Storage`; an upload is on storage when it returns, whatever `sync` says."""
        self._check_writer()
        self._upload(name, data)

    def _upload(self, name: str, data: bytes) -> None:
        path = self._path(name)
        self._fs.makedirs(self._fs._parent(path), exist_ok=True)
        self._fs.pipe_file(path, data)

    def put_folder(self, folder: str, files: Mapping[str, bytes], sync: bool) -> None:
        """See `Storage`."""
        self._check_writer()
        marker = f"{folder}/{list(files)[-1]}"
        if self._fs.exists(self._path(marker)):
            self._fs.rm_file(self._path(marker))
        for name, data in files.items():
            self._upload(f"{folder}/{name}", data)

    def get(self, name: str) -> bytes:
        """See `Storage`."""
        try:
            return bytes(self._fs.cat_file(self._path(name)))
        except (FileNotFoundError, IsADirectoryError):
            raise missing(self._url, name, "is not there") from None
        except Exception as error:  # each file system has exceptions of its own
            raise StoreError(Trouble.STORAGE, self._url, name, f"cannot be read: {error}") from error

    def exists(self, name: str) -> bool:
        """See `Storage`."""
        return bool(self._fs.exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        """See `Storage`."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._path(folder), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = {str(path).rstrip("/").rpartition("/")[2] for path in found}
        return sorted(name for name in names if not name.startswith(".") and (folder or name != _WRITER))

    def move(self, source: str, target: str) -> None:
        """See `Storage`: copied, then deleted."""
        self._fs.mv(self._path(source), self._path(target), recursive=True)

    def retire(self, name: str) -> None:
        """See `Storage`: the objects that mark a folder complete go first, and `sweep` takes the rest."""
        path = self._path(name)
        if self._fs.isdir(path):
            for entry in self._fs.ls(path, detail=False):
                if str(entry).rpartition("/")[2].startswith("manifest."):
                    self._fs.rm_file(entry)
            self._doomed.append(path)
        elif self._fs.exists(path):
            self._fs.rm_file(path)

    def sweep(self) -> None:
        """See `Storage`."""
        while self._doomed:
            if self._fs.exists(self._doomed[0]):
                self._fs.rm(self._doomed[0], recursive=True)
            del self._doomed[0]

    def erase(self) -> None:
        """See `Storage`."""
        for name in (STORE_FILE, _WRITER):
            self._fs.rm_file(self._path(name))

    def sizes(self) -> dict[str, int]:
        """See `Storage`."""
        self._fs.invalidate_cache()
        found = self._fs.find(self._root, detail=True)
        sizes = {str(path)[len(self._root) :].lstrip("/"): int(info["size"]) for path, info in found.items()}
        return {name: size for name, size in sizes.items() if name != _WRITER}

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root
