"""Care of a store at rest: encrypting all of it with a new key, and removing it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jobspec.recovery_point import MANIFEST_FILE
from shadow_rx.durable.crypto import Key, KeyRing, decrypt, encrypt, key_id_of, write_key_file
from shadow_rx.durable.index import groups_of
from shadow_rx.durable.names import STORE_FILE
from shadow_rx.durable.opening import StoreFile, read_description, write_description
from shadow_rx.durable.sealed import SUFFIX
from shadow_rx.durable.storage import Storage

Progress = Callable[[int, int], None]
"""Called with objects that are done and objects in all."""


def rotate_key(storage: Storage, ring: KeyRing | None, key_file: Path, progress: Progress | None = None) -> Key:
    """Encrypt every object of a store with a new key, and leave only that key in the key file.

    It can be interrupted and run again at any time: the new key is in the file, before the old ones, until no object
    needs those. A store that is not encrypted becomes so.

    Args:
        storage: the store, as it lies in the storage; it is taken, so no writer is at work meanwhile.
        ring: the keys until now, None where it is not encrypted.
        key_file: where the keys are kept.
        progress: told how far it is.

    Raises:
        StoreError: another writer has the store, or an object cannot be decrypted.
        OSError: the storage or the key file failed.
    """
    storage.acquire()
    try:
        found = read_description(storage)
        key = Key.new()
        old = ring.keys if ring is not None else ()
        keys = KeyRing((key, *old), str(key_file))
        write_key_file(key_file, keys)
        write_description(storage, StoreFile(id=found.id, key_id=key.id))
        names = [name for name in sorted(storage.sizes(), key=_markers_last) if name != STORE_FILE]
        for done, name in enumerate(names, 1):
            _encrypt_anew(storage, found.id, keys, name)
            if progress is not None:
                progress(done, len(names))
        storage.sweep()
        write_key_file(key_file, KeyRing((key,), str(key_file)))
        return key
    finally:
        storage.release()


def _markers_last(name: str) -> tuple[str, bool, str]:
    folder, _, last = name.rpartition("/")
    return folder, last.removesuffix(SUFFIX) == MANIFEST_FILE, last


def _encrypt_anew(storage: Storage, store_id: str, keys: KeyRing, name: str) -> None:
    data = storage.get(name)
    plain_name = name.removesuffix(SUFFIX)
    if name.endswith(SUFFIX):
        if key_id_of(data) == keys.primary.id:
            return
        data = decrypt(keys, storage.url, store_id, plain_name, data)
    storage.put(plain_name + SUFFIX, encrypt(keys.primary, store_id, plain_name, data), sync=True)
    if not name.endswith(SUFFIX):
        storage.retire(name)


def purge(storage: Storage, progress: Progress | None = None) -> int:
    """Remove everything that a store holds; return the number of objects.

    What is overwritten on a flash drive or in an object store with versions may still exist there: where that matters,
    encrypt the store and destroy its key.

    Raises:
        StoreError: another writer has the store, or it is none.
        OSError: the storage failed.
    """
    storage.acquire()
    try:
        read_description(storage)
        # Groups only, and the description last: what is not ours stays, and what an interrupted run leaves is still a
        # store, which can be purged.
        folders = groups_of(storage)
        total = sum(name.partition("/")[0] in (*folders, STORE_FILE) for name in storage.sizes())
        for done, name in enumerate(folders, 1):
            storage.retire(name)
            storage.sweep()
            if progress is not None:
                progress(done, len(folders))
        storage.erase()
        return total
    finally:
        storage.release()
