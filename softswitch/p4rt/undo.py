"""How an update is taken back: every successful update hands out one of these."""

from __future__ import annotations

from collections.abc import Callable

Undo = Callable[[], None]
"""Restores the state before one update; called at most once, in reverse order of the updates."""


def nothing() -> None:
    """Take back an update that changed nothing."""
