"""Where objects are kept: the interface of all storages.

A name is a relative path with ``/`` (`shadow_rx.store.names`); what has another name is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from shadow_rx.store.storage.files import Parts


class Objects(Protocol):
    """Objects by name. Methods raise `StoreError`, or `OSError` where the storage itself fails."""

    @property
    def url(self) -> str:
        """The store's path or URL, for messages: without passwords."""

    def put(self, name: str, data: Parts, sync: bool) -> None:
        """Store an object under a new name or an old one: whole or not at all, as far as the storage can.

        With `sync` it is on storage when the method returns.
        """

    def put_folder(self, folder: str, files: Iterable[tuple[str, Parts]], sync: bool) -> None:
        """Store a folder of objects that belong together, by name and in order.

        The last one must be `MANIFEST_FILE`: it marks the folder complete.
        """

    def get(self, name: str, limit: int) -> bytes:
        """Return an object; one of more than `limit` bytes is damaged, and not read."""

    def size(self, name: str) -> int:
        """Return the bytes of an object as it lies in the storage, 0 where there is none."""

    def exists(self, name: str) -> bool:
        """Tell whether an object or a folder has this name."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder ("" is the top), sorted, but for those with a dot; none when it is missing."""

    def retire(self, name: str) -> None:
        """Remove an object, or what marks a base complete; `sweep` takes the rest. One that is not there is fine."""


class Storage(Objects, Protocol):
    """Where objects are kept, and what is done with all of them: objects lie here as they are, encrypted or not."""

    def check_access(self) -> None:
        """Refuse a store that others than its owner can read."""

    def strangers(self) -> list[str]:
        """Return what lies at the top that a store which has no description yet does not put there."""

    def acquire(self) -> None:
        """Make ready for writing, and keep other writers out."""

    def release(self) -> None:
        """Let other writers in."""

    def tidy(self) -> None:
        """Remove what a writer that died left unfinished; only for who has acquired the storage."""

    def move(self, source: str, target: str) -> None:
        """Give an epoch's folder a new name, which nothing has; what is not the store's stays where it is."""

    def sweep(self) -> None:
        """Remove the rest of bases that were retired."""

    def erase(self) -> None:
        """Remove what marks it as a store, and the folders in which nothing is left."""

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every object by name."""
