"""Bounds of a shadow node, set by its operator."""

from __future__ import annotations

from dataclasses import dataclass

from shadow_rx.errors import Refusal, ShadowError

_GIB = 1 << 30


@dataclass(frozen=True)
class ShadowOptions:
    """How much a shadow node may keep."""

    window: int = 4
    """Steps whose bytes are collected at a time; at least 2, because ranks are up to one step apart."""
    hold: int = 2
    """Newest recovery points that are kept in memory, at least 1."""
    pending_records: int = 1024
    """Steps, from the oldest that is not applied, whose side-channel records are kept."""
    memory_limit: int = 8 * _GIB
    """Most bytes of one group's buffers and state; an attach or upload beyond it is refused."""

    store_copies: int = 0
    """Recovery points for which there must be memory beside that, so that they can wait for storage and be written."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: a bound is too small; the message names it.
        """
        for name, value, least in (
            ("window", self.window, 2),
            ("memory points", self.hold, 1),
            ("pending records", self.pending_records, 1),
            ("memory limit", self.memory_limit, 1),
            ("store copies", self.store_copies, 0),
        ):
            if value < least:
                raise ValueError(f"{name}: {value}, expected at least {least}")

    def check_memory(self, field: str, need: int) -> None:
        """Refuse what needs more bytes than the limit; `field` of the request is named.

        Raises:
            ShadowError: it does.
        """
        if need > self.memory_limit:
            message = f"needs {need} bytes, the limit is {self.memory_limit}; raise it, or use a smaller window"
            raise ShadowError(Refusal.RESOURCE_EXHAUSTED, field, message)
