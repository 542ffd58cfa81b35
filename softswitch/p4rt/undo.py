"""Undoing updates: every successful update returns one of these."""

from __future__ import annotations

from collections.abc import Callable

Undo = Callable[[], None]
"""Restores the state before one update; called at most once, in reverse order of the updates."""


def nothing() -> None:
    """Undo an update that changed nothing."""
