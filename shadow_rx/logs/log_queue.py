"""What is to be logged is taken at once, and written by a thread: no lock is held while a disk is slow."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from checkmate_common.supervised import SupervisedThread
from shadow_rx.status.health import Part

MOST_WAITING_BYTES = 64 << 20
"""When so much waits to be written nothing more is taken; one item may go beyond it."""
T = TypeVar("T")


class LogQueue(Generic[T]):
    """A thread that writes, and the queue before it. What cannot be written is counted; the next item is tried again.

    A full disk costs lines, never the replication.
    """

    def __init__(
        self, name: str, write: Callable[[T, int], None], most_waiting_bytes: int = MOST_WAITING_BYTES
    ) -> None:
        """Start the thread.

        Args:
            name: of the log.
            write: writes an item, told how many before it were lost; raises OSError where it cannot.
            most_waiting_bytes: bound of what waits.
        """
        self._name = name
        self._write = write
        self._most = most_waiting_bytes
        self._changed = threading.Condition()
        self._items: deque[tuple[T, int, int]] = deque()
        self._waiting = 0
        self._dropped = 0
        self._lost = 0
        self._closed = False
        self._trouble: str | None = None
        self._thread = SupervisedThread(name, self._run)
        self._thread.start()

    def put(self, item: T, nbytes: int) -> None:
        """Take an item of `nbytes` bytes; where too much waits it is lost."""
        with self._changed:
            if self._closed or self._thread.trouble is not None or self._waiting > self._most:
                self._dropped += 1
                self._lost += 1
                return
            self._items.append((item, nbytes, self._dropped))
            self._dropped = 0
            self._waiting += nbytes
            self._changed.notify_all()

    def part(self) -> Part:
        """Return how it is."""
        with self._changed:
            return Part(self._name, self._thread.trouble or self._trouble, self._lost)

    def close(self) -> None:
        """Write what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        failed = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._closed)
                if not self._items:
                    return
                item, nbytes, dropped = self._items.popleft()
            trouble = None
            try:
                self._write(item, failed + dropped)
                failed = 0
            except OSError as error:
                failed += dropped + 1
                trouble = str(error)
            with self._changed:
                self._waiting -= nbytes
                self._trouble = trouble
                self._lost += trouble is not None
