"""The store from Python: open it, say what can be recovered, and restore a recovery point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from checkmate_common.recovery.point import RecoveryPoint
from shadow_rx.store.opening import open_for_reading, storage_of
from shadow_rx.store.recover import StoreReader
from shadow_rx.store.storage.crypto import KeyRing, find_keys
from shadow_rx.store.verify import Progress, StoreReport, verify_store


def open_store(url: str | Path, key: KeyRing | Path | None = None, allow_open_permissions: bool = False) -> StoreReader:
    """Open a store for reading; a writer may be at work at the same time.

    Args:
        url: directory, or a URL that fsspec knows.
        key: keys, or the path of a key file; None: those of ``$CHECKMATE_STORE_KEY``, if any.
        allow_open_permissions: whether a directory that others than its owner can read is accepted.

    Raises:
        StoreError: there is no store, it is open to others, or the key is missing or wrong.
    """
    ring = key if isinstance(key, KeyRing) else find_keys(key, os.environ)
    return StoreReader(open_for_reading(storage_of(url, allow_open=allow_open_permissions), ring))


def recoverable(
    url: str | Path,
    key: KeyRing | Path | None = None,
    allow_open_permissions: bool = False,
    progress: Progress | None = None,
) -> StoreReport:
    """Check everything in a store, and say which steps can be recovered; see `open_store` for the arguments.

    Raises:
        StoreError: see `open_store`.
    """
    return verify_store(open_store(url, key, allow_open_permissions), progress)


def restore(
    url: str | Path,
    step: int | Literal["latest"] = "latest",
    group: str | None = None,
    key: KeyRing | Path | None = None,
    allow_open_permissions: bool = False,
) -> RecoveryPoint:
    """Return a recovery point, equal bit for bit to the trainer's state after that step.

    Args:
        url: directory, or a URL that fsspec knows.
        step: the step, or ``"latest"``.
        group: the DP group; None where there is only one.
        key: see `open_store`.
        allow_open_permissions: see `open_store`.

    Raises:
        StoreError: see `open_store`; or the step is not there or cannot be recovered, with the reason.
    """
    reader = open_store(url, key, allow_open_permissions)
    name = reader.the_group(group)
    return reader.latest(name) if step == "latest" else reader.point(name, step)
