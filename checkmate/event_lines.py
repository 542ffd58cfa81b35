"""Lines on standard output that never block the program, even if the reader is slow or gone."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from types import TracebackType
from typing import Self

MAX_WAITING = 10_000
"""Maximum number of lines that wait for a slow reader; the oldest are dropped first."""
_END_S = 1.0
"""Seconds that a reader may take for the last lines at exit."""


class EventLines:
    """Writes lines from its own thread; a context manager.

    It writes to the file descriptor directly: a thread stuck in Python's own buffer would keep the program from
    exiting.

    Args:
        descriptor: file descriptor; standard output by default.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Prepare; entering the context starts the thread."""
        self._descriptor = sys.stdout.fileno() if descriptor is None else descriptor
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="event-lines", daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait briefly for the last lines, and stop."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(_END_S)

    def put(self, line: str) -> None:
        """Queue a line; never waits and never fails."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(f"{line}\n".encode(errors="backslashreplace"))
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while (line := self._next()) is not None:
                while line:
                    line = line[os.write(self._descriptor, line) :]
        except OSError as error:  # the reader is gone, or the disk is full
            self._warn(f"events are not shown any more ({error.strerror}); the controller continues")

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending)
            if self._dropped:
                self._warn(f"{self._dropped} events were not shown, because nobody read them in time")
                self._dropped = 0
            return self._waiting.popleft() if self._waiting else None

    @staticmethod
    def _warn(text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads standard error either
            os.write(sys.stderr.fileno(), f"{text}\n".encode())
