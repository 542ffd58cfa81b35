"""Memory for the states that are being uploaded: one budget for all of them, asked before anything is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from shadow_rx.errors import Refusal, ShadowError


@dataclass(frozen=True, eq=False)
class Reservation:
    """Room for one state."""

    group: str
    """Whose state."""
    nbytes: int
    """Its bytes."""
    cancel: Callable[[], object]
    """Ends the upload."""


class UploadBudget:
    """Gives out room for states, to one upload of a group at a time; may be used from several threads."""

    def __init__(self, limit: int) -> None:
        """Give out at most `limit` bytes."""
        self._limit = limit
        self._lock = threading.Lock()
        self._running: dict[str, Reservation] = {}

    def begin(self, group: str, nbytes: int, cancel: Callable[[], object]) -> Reservation:
        """Reserve `nbytes` for an upload of `group`; an older one of it, whose trainer has given it up, is ended.

        Raises:
            ShadowError: other groups' uploads leave no room at the moment.
        """
        with self._lock:
            older = self._running.get(group)
            used = sum(item.nbytes for item in self._running.values() if item is not older)
            if used + nbytes > self._limit:
                message = f"{nbytes} bytes, while other uploads have {used} of {self._limit}; send it again later"
                raise ShadowError(Refusal.UNAVAILABLE, "header.state_bytes", message)
            reserved = self._running[group] = Reservation(group, nbytes, cancel)
        if older is not None:
            older.cancel()
        return reserved

    def end(self, reserved: Reservation) -> bool:
        """Give the room back; tell whether the upload was still the newest of its group."""
        with self._lock:
            newest = self._running.get(reserved.group) is reserved
            if newest:
                del self._running[reserved.group]
            return newest
