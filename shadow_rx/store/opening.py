"""Opening a store: which storage a URL means, who may read it, with which key, and which format it has."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from checkmate_common.files.checked_json import with_checksum, without_checksum
from shadow_rx.store.errors import StoreError, Trouble, damaged, missing
from shadow_rx.store.names import STORE_FILE
from shadow_rx.store.storage.crypto import KeyRing
from shadow_rx.store.storage.files import FileOperations
from shadow_rx.store.storage.interface import Objects, Storage
from shadow_rx.store.storage.local import LocalStorage
from shadow_rx.store.storage.objects import ObjectStorage
from shadow_rx.store.storage.sealed import SealedObjects

FORMAT = "checkmate-store"
SCHEMA = 2
"""Version of the format of stores that are made: their description and all manifests end with a checksum."""
UNCHECKED_SCHEMA = 1
"""The version before, which is read and written too: its description, and manifests that were written by older
programs, have none."""
_LONGEST = 1 << 16
"""Bytes that ``store.json`` can have."""


class StoreFile(BaseModel):
    """Contents of ``store.json``, which is never encrypted and holds no secret."""

    model_config = ConfigDict(frozen=True)

    format: str = FORMAT
    """Says what it is."""
    schema_version: int = SCHEMA
    """Version of the format."""
    id: str = Field(pattern="^[0-9a-f]{32}$")
    """Random name of the store; encrypted objects are bound to it."""
    key_id: str | None = Field(default=None, pattern="^[0-9a-f]{16}$")
    """Key that new objects are encrypted with, None when they are not encrypted."""


@dataclass(frozen=True)
class OpenStore:
    """A store that is there and may be used."""

    storage: Objects
    """Its objects, decrypted."""
    plain: Storage
    """Its objects as they lie in the storage."""
    description: StoreFile
    """What it says of itself."""


def storage_of(url: str | Path, files: FileOperations | None = None, allow_open: bool = False) -> Storage:
    """Return the storage that `url` means: a local directory, or whatever fsspec knows under ``scheme://``.

    Raises:
        StoreError: a scheme that fsspec does not know or lacks a package for, or what has the name is no directory.
    """
    if isinstance(url, str) and "://" in url:
        scheme, _, path = url.partition("://")
        if scheme not in ("file", "local"):
            return ObjectStorage(url)
        url = path
    root = Path(url)
    if root.exists() and not root.is_dir():
        message = "is a file; a store is a directory, the one that a shadow node was given with --store"
        raise missing(str(root), "", message)
    return LocalStorage(root, files, allow_open)


def read_description(storage: Storage) -> StoreFile:
    """Return what a store says of itself.

    Raises:
        StoreError: there is no store, or one of a newer format.
    """
    try:
        data = storage.get(STORE_FILE, _LONGEST)
    except StoreError as error:
        if error.kind is Trouble.MISSING:
            raise missing(storage.url, "", f"is not a store: it has no {STORE_FILE}") from None
        raise
    try:
        text, checked = without_checksum(data.decode())
        found = StoreFile.model_validate_json(text)
    except ValidationError as error:
        raise damaged(storage.url, STORE_FILE, f"does not fit the format: {error.errors()[0]['msg']}") from error
    except ValueError as error:
        raise damaged(storage.url, STORE_FILE, str(error)) from error
    if found.format != FORMAT or found.schema_version not in (UNCHECKED_SCHEMA, SCHEMA):
        message = f"has format {found.format} {found.schema_version}, this program knows {FORMAT} up to {SCHEMA}"
        raise StoreError(Trouble.FORMAT, storage.url, STORE_FILE, message)
    if checked != (found.schema_version == SCHEMA):
        raise damaged(storage.url, STORE_FILE, "is damaged: it does not end as its version does")
    return found


def open_for_reading(storage: Storage, ring: KeyRing | None = None) -> OpenStore:
    """Open a store that is there.

    Raises:
        StoreError: there is none, others than its owner can read it, or the key is missing or wrong.
    """
    storage.check_access()
    found = read_description(storage)
    if found.key_id is None and ring is None:
        return OpenStore(storage, storage, found)
    if ring is None:
        message = f"is encrypted with key {found.key_id}; name the key file (--key-file)"
        raise StoreError(Trouble.KEY, storage.url, "", message)
    _check_key(storage, found, ring)
    return OpenStore(SealedObjects(storage, ring, found.id), storage, found)


@contextmanager
def taken(storage: Storage) -> Iterator[StoreFile | None]:
    """Take a place for writing, and give it back if what is done within fails.

    Gives what the store there says of itself, None where nothing is there yet. What a dead writer left unfinished
    is removed. A place that has other things in it and no store is refused, and nothing in it is touched.

    Raises:
        StoreError: it is refused, another writer has it, or others than its owner can read it.
        OSError: the storage failed.
    """
    if storage.exists(STORE_FILE):
        read_description(storage)
    elif others := storage.strangers():
        message = f"is not a store and not empty: it has {', '.join(others[:3])}{', ...' if others[3:] else ''}"
        message = f"{message} and no {STORE_FILE}; name a new or an empty directory"
        raise StoreError(Trouble.OCCUPIED, storage.url, "", message)
    storage.acquire()
    try:
        found = read_description(storage) if storage.exists(STORE_FILE) else None
        storage.tidy()
        yield found
    except BaseException:
        storage.release()
        raise


def open_for_writing(storage: Storage, ring: KeyRing | None = None) -> OpenStore:
    """Take a store for writing, and make it if it is not there; `Storage.release` gives it back.

    Raises:
        StoreError: see `taken`; or the key is missing or wrong.
        OSError: the storage failed.
    """
    with taken(storage) as found:
        key_id = ring.primary.id if ring is not None else None
        if found is None:
            found = StoreFile(id=secrets.token_hex(16), key_id=key_id)
            write_description(storage, found)
        else:
            if (found.key_id is None) != (ring is None):
                state = "not encrypted, and a key was given" if ring else "encrypted, and no key was given"
                message = f"is {state}; checkmate store rotate-key encrypts a store that is there"
                raise StoreError(Trouble.KEY, storage.url, "", message)
            if ring is not None:
                _check_key(storage, found, ring)
            if found.key_id != key_id:
                found = found.model_copy(update={"key_id": key_id})
                write_description(storage, found)
    sealed = SealedObjects(storage, ring, found.id) if ring is not None else storage
    return OpenStore(sealed, storage, found)


def write_description(storage: Storage, description: StoreFile) -> None:
    """Write what a store says of itself.

    Raises:
        StoreError: another writer has it.
        OSError: the storage failed.
    """
    text = json.dumps(description.model_dump(), indent=1)
    if description.schema_version == SCHEMA:
        text = with_checksum(text)
    storage.put(STORE_FILE, [text.encode()], sync=True)


def _check_key(storage: Storage, found: StoreFile, ring: KeyRing) -> None:
    if found.key_id is not None and ring.find(found.key_id) is None:
        known = ", ".join(key.id for key in ring.keys)
        message = f"is encrypted with key {found.key_id}; {ring.source} has {known}"
        raise StoreError(Trouble.KEY, storage.url, "", message)
