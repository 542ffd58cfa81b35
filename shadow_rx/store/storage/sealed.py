"""A storage whose objects are encrypted: between the store and the storage below it."""

from __future__ import annotations

from collections.abc import Iterable

from shadow_rx.store.errors import StoreError, Trouble
from shadow_rx.store.names import SEALED_SUFFIX
from shadow_rx.store.storage.crypto import KeyRing, decrypt, encrypt, sealed_size
from shadow_rx.store.storage.files import Parts
from shadow_rx.store.storage.interface import Objects


class SealedObjects:
    """Encrypts what is put and decrypts what is got; names do not change but for a suffix below.

    An object that is not encrypted is refused: it could be anybody's.
    """

    def __init__(self, inner: Objects, ring: KeyRing, store_id: str) -> None:
        """Keep encrypted objects in `inner`; `store_id` is part of what is authenticated."""
        self.inner = inner
        self._ring = ring
        self._store_id = store_id

    @property
    def url(self) -> str:
        return self.inner.url

    def _seal(self, name: str, data: Parts) -> Parts:
        return encrypt(self._ring.primary, self._store_id, name, data)

    def put(self, name: str, data: Parts, sync: bool) -> None:
        self.inner.put(name + SEALED_SUFFIX, self._seal(name, data), sync)

    def put_folder(self, folder: str, files: Iterable[tuple[str, Parts]], sync: bool) -> None:
        sealed = ((name + SEALED_SUFFIX, self._seal(f"{folder}/{name}", data)) for name, data in files)
        self.inner.put_folder(folder, sealed, sync)

    def get(self, name: str, limit: int) -> bytes:
        if not self.inner.exists(name + SEALED_SUFFIX) and self.inner.exists(name):
            message = "is not encrypted, and a key was given; encrypt the store with checkmate store rotate-key"
            raise StoreError(Trouble.KEY, self.url, name, message)
        return decrypt(
            self._ring, self.url, self._store_id, name, self.inner.get(name + SEALED_SUFFIX, sealed_size(limit))
        )

    def exists(self, name: str) -> bool:
        """One that is not encrypted is there, too: reading it says what is wrong."""
        return self.inner.exists(name + SEALED_SUFFIX) or self.inner.exists(name)

    def names(self, folder: str) -> list[str]:
        return sorted({name.removesuffix(SEALED_SUFFIX) for name in self.inner.names(folder)})

    def retire(self, name: str) -> None:
        sealed = name + SEALED_SUFFIX
        self.inner.retire(sealed if self.inner.exists(sealed) else name)

    def size(self, name: str) -> int:
        """As it lies below."""
        return max(self.inner.size(name + SEALED_SUFFIX), self.inner.size(name))
