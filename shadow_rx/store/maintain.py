"""Care of a store at rest: encrypting all of it with a new key, and removing it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shadow_rx.store.errors import StoreError, Trouble
from shadow_rx.store.names import SEALED_SUFFIX, STORE_FILE, marker_first
from shadow_rx.store.opening import StoreFile, read_description, taken, write_description
from shadow_rx.store.storage.crypto import Key, KeyRing, change_keys, decrypt, encrypt, key_id_of, read_key_file
from shadow_rx.store.storage.interface import Storage

Progress = Callable[[int, int], None]
"""Called with objects that are done and objects in all."""


def rotate_key(storage: Storage, key_file: Path, drop_old: bool = False, progress: Progress | None = None) -> Key:
    """Encrypt every object of a store with a new key, which is put before the others in the key file.

    It can be interrupted and run again at any time. A store that is not encrypted becomes so. The other keys stay in
    the file, because another store may need them.

    Args:
        storage: the store, as it lies in the storage; it is taken, so no other writer is at work.
        key_file: where the keys are kept; it is made where it is missing.
        drop_old: whether the keys that were in the file are removed from it in the end: no other store needs them.
        progress: told how far it is.

    Raises:
        StoreError: it is no store, another writer has it, or an object cannot be decrypted.
        OSError: the storage or the key file failed.
    """
    held = _check_store(storage).key_id
    if held is not None and read_key_file(key_file).find(held) is None:
        raise StoreError(Trouble.KEY, storage.url, "", f"is encrypted with key {held}, which {key_file} does not have")
    with taken(storage) as found:
        assert found is not None
        key = Key.new()
        before = change_keys(key_file, lambda keys: (key, *keys))
        keys = KeyRing((key, *before), str(key_file))
        write_description(storage, found.model_copy(update={"key_id": key.id}))
        names = [name for name in sorted(storage.sizes(), key=_markers_last) if name != STORE_FILE]
        for done, name in enumerate(names, 1):
            _encrypt_anew(storage, found.id, keys, name)
            if progress is not None:
                progress(done, len(names))
        if drop_old:
            change_keys(key_file, lambda keys: tuple(each for each in keys if each not in before))
    storage.release()
    return key


def _check_store(storage: Storage) -> StoreFile:
    """Return what a store says of itself; raise `StoreError` before anything is touched where it may not be changed."""
    storage.check_access()
    return read_description(storage)


def _markers_last(name: str) -> tuple[str, bool, str]:
    folder, rest, last = marker_first(name)
    return folder, not rest, last


def _encrypt_anew(storage: Storage, store_id: str, keys: KeyRing, name: str) -> None:
    data = storage.get(name, storage.size(name))
    plain_name = name.removesuffix(SEALED_SUFFIX)
    if name.endswith(SEALED_SUFFIX):
        if key_id_of(data) == keys.primary.id:
            return
        data = decrypt(keys, storage.url, store_id, plain_name, data)
    storage.put(plain_name + SEALED_SUFFIX, encrypt(keys.primary, store_id, plain_name, [data]), sync=True)
    if not name.endswith(SEALED_SUFFIX):
        storage.retire(name)


def purge(storage: Storage, progress: Progress | None = None) -> int:
    """Remove everything that a store holds, and nothing else; return the number of objects.

    What is overwritten on a flash drive or in an object store with versions may still exist there: where that matters,
    encrypt the store and destroy its key.

    Raises:
        StoreError: another writer has the store, or it is none.
        OSError: the storage failed.
    """
    _check_store(storage)
    with taken(storage):
        # The description last: what an interrupted run leaves is still a store, which can be purged.
        names = sorted(storage.sizes(), key=marker_first)
        for done, name in enumerate(names, 1):
            if name != STORE_FILE:
                storage.retire(name)
            if progress is not None:
                progress(done, len(names))
        storage.erase()
    storage.release()
    return len(names)
