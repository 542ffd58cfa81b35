"""The one exception type of stores: what is wrong with which object of which store."""

from __future__ import annotations

from enum import StrEnum

from checkmate_common.recovery.point import RecoveryPointError
from shadow_rx.redaction import redacted, shown


class Trouble(StrEnum):
    """Kinds of trouble with a store."""

    MISSING = "missing"
    """The store, group, step or object is not there."""
    DAMAGED = "damaged"
    """An object is torn, changed or not what it says."""
    KEY = "key"
    """An object is encrypted and the key is missing or wrong, or it is not encrypted and should be."""
    PERMISSIONS = "permissions"
    """Others than the owner can read the store."""
    IN_USE = "in_use"
    """Another writer has the store."""
    OCCUPIED = "occupied"
    """Other things are where a store is to be made."""
    FORMAT = "format"
    """Written by a newer program."""
    STORAGE = "storage"
    """The storage itself failed."""


class StoreError(RecoveryPointError):
    """A store, or an object in it, that cannot be used."""

    def __init__(self, kind: Trouble, store: str, name: str, message: str) -> None:
        """Keep the kind, the store's URL or path, the object's name ("" for the store itself) and the reason.

        Passwords are left out, and what a terminal would take for more than text.
        """
        self.kind = kind
        self.store = redacted(store)
        self.name = shown(name)
        self.reason = shown(redacted(message))
        where = f"{self.store.rstrip('/')}/{self.name}" if name else self.store
        super().__init__(None, f"{where}: {self.reason}")


def damaged(store: str, name: str, message: str) -> StoreError:
    """Return the error for an object that is not as it was written."""
    return StoreError(Trouble.DAMAGED, store, name, message)


def missing(store: str, name: str, message: str) -> StoreError:
    """Return the error for something that is not there."""
    return StoreError(Trouble.MISSING, store, name, message)
