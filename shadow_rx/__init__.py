"""The shadow node: capture -> place -> complete -> apply -> publish: a checkpoint of every iteration."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shadow_rx.store.api import open_store, recoverable, restore
    from shadow_rx.store.errors import StoreError

__all__ = ["StoreError", "open_store", "recoverable", "restore"]

_PLACES = {
    "StoreError": "shadow_rx.store.errors",
    "open_store": "shadow_rx.store.api",
    "recoverable": "shadow_rx.store.api",
    "restore": "shadow_rx.store.api",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: all of it needs torch, which takes seconds, and other modules of ours do not."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
