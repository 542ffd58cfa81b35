"""Publishers take recovery points from the node and store them: at once, or in a thread of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from shadow_rx.snapshot import Snapshot
from shadow_rx.store import Point, RecoveryStore, StoreResult

Report = Callable[[StoreResult | Point], None]
"""Called with the result of each point, or with the point itself when it was dropped unwritten."""


class Publisher(Protocol):
    """Where a node hands its recovery points to."""

    @property
    def store(self) -> RecoveryStore:
        """Where points are stored."""

    def start(self, report: Report) -> None:
        """Begin, and report what becomes of each point through `report`."""

    def offer(self, snapshot: Snapshot) -> None:
        """Take a recovery point; returns without waiting for other points."""

    def close(self) -> None:
        """Store what was taken, then stop."""


class DirectPublisher:
    """Stores each point before `offer` returns: for simulations and tests."""

    def __init__(self, store: RecoveryStore) -> None:
        """Write to `store`."""
        self.store = store
        self._report: Report | None = None

    def start(self, report: Report) -> None:
        """Report results through `report`."""
        self._report = report

    def offer(self, snapshot: Snapshot) -> None:
        """Store `snapshot` now.

        Raises:
            RuntimeError: the publisher was not started.
        """
        if self._report is None:
            raise RuntimeError("the publisher has not been started; call start first")
        self._report(self.store.publish(snapshot))

    def close(self) -> None:
        """Do nothing: everything is stored already."""


class BackgroundPublisher:
    """Stores points in a thread, from a queue of bounded length.

    When storage is slower than training the oldest waiting point is dropped, never a newer one and never
    the one being
    written: fewer steps become durable, but memory stays bounded and the newest state gets to storage.
    """

    def __init__(self, store: RecoveryStore, depth: int = 4) -> None:
        """Write to `store`; at most `depth` points wait besides the one that is being written.

        Raises:
            ValueError: `depth` is below 1.
        """
        if depth < 1:
            raise ValueError(f"depth is {depth}, expected at least 1")
        self.store = store
        self._depth = depth
        self._waiting: deque[Snapshot] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._report: Report | None = None
        self._thread: threading.Thread | None = None

    def start(self, report: Report) -> None:
        """Start the thread; `report` is called from it, and from `offer` for points that are dropped."""
        self._report = report
        self._thread = threading.Thread(target=self._run, args=(report,), name="shadow-publisher", daemon=True)
        self._thread.start()

    def offer(self, snapshot: Snapshot) -> None:
        """Queue `snapshot`; drop the oldest waiting one when the queue is full.

        Raises:
            RuntimeError: the publisher was not started, or is closed.
        """
        dropped: Snapshot | None = None
        with self._changed:
            if self._report is None or self._closed:
                raise RuntimeError("the publisher is not running; call start first, and offer nothing after close")
            if len(self._waiting) >= self._depth:
                dropped = self._waiting.popleft()
            self._waiting.append(snapshot)
            self._changed.notify_all()
        if dropped is not None:
            self._report((dropped.group, dropped.epoch, dropped.step))

    def close(self) -> None:
        """Store what waits, then stop the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self, report: Report) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                snapshot = self._waiting.popleft()
            report(self.store.publish(snapshot))
