"""The shadow node: capture -> place -> complete -> apply -> publish: a checkpoint of every iteration."""

from shadow_rx.durable.api import open_store, recoverable, restore
from shadow_rx.durable.errors import StoreError

__all__ = ["StoreError", "open_store", "recoverable", "restore"]
