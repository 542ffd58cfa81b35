"""Publishers take recovery points from the node and store them: at once, or in a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jobspec.supervised import OnDeath, SupervisedThread
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.publish.store_queue import StoreQueue
from shadow_rx.status.health import Part, StoreStatus
from shadow_rx.store.names import Point
from shadow_rx.store.writer import RecoveryStore, StoreResult


@dataclass(frozen=True)
class Written:
    """What a publisher did with one point that storage was given."""

    result: StoreResult
    """What became of it."""
    nbytes: int
    """Bytes that were written; 0 where it was only taken, and waits for others."""
    seconds: float
    """How long that took."""


Report = Callable[[Written | Point], None]
"""Called with what was done with each point, or with the point itself when it was dropped unwritten."""


class Publisher(Protocol):
    """Where a node hands its recovery points to."""

    @property
    def store(self) -> RecoveryStore:
        """Where points are stored."""

    def start(self, report: Report) -> None:
        """Begin, and report what becomes of each point through `report`."""

    def offer(self, snapshot: Snapshot, room: int | None = None) -> None:
        """Take a recovery point; returns without waiting for other points.

        `room` are the bytes of memory that the group's points may take until they are written; None: any number.
        """

    def status(self, group: str) -> StoreStatus:
        """Return what is held of `group`."""

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

    def offer(self, snapshot: Snapshot, room: int | None = None) -> None:
        """Store `snapshot` now.

        Raises:
            RuntimeError: the publisher was not started.
        """
        if self._report is None:
            raise RuntimeError("the publisher has not been started; call start first")
        before = self.store.written_bytes
        result = self.store.publish(snapshot)
        self._report(Written(result, self.store.written_bytes - before, 0.0))

    def status(self, group: str) -> StoreStatus:
        """Return what is held of `group`: steps that wait for a common flush."""
        return StoreStatus(log_bytes=self.store.log_bytes(group))

    def close(self) -> None:
        """Commit what waits for others, and give the store back."""
        for result in self.store.flush():
            if self._report is not None:
                self._report(Written(result, 0, 0.0))
        self.store.close()


class BackgroundPublisher:
    """Stores points in a thread, from a queue that is bounded in number and bytes.

    When storage is slower than training, first several steps share a flush and bases are put off; then waiting points
    are thinned out (`StoreQueue`), never the newest one and never the one being written: fewer steps become durable,
    but memory stays bounded and the newest state gets to storage. The store writes a base where a step is missing
    before the next.
    """

    def __init__(
        self,
        store: RecoveryStore,
        depth: int = 4,
        clock: Callable[[], float] = time.monotonic,
        on_death: OnDeath | None = None,
    ) -> None:
        """Write to `store`; at most `depth` points of each group wait besides the one that is being written.

        Args:
            store: where to.
            depth: most points of each group that wait.
            clock: what writing is timed with.
            on_death: told where the thread ends by what nobody expected.

        Raises:
            ValueError: `depth` is below 1.
        """
        self.store = store
        self._queue = StoreQueue(depth)
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = False
        self._report: Report | None = None
        self._thread: SupervisedThread | None = None
        self._on_death = on_death

    def start(self, report: Report) -> None:
        """Start the thread; `report` is called from it, and from `offer` for points that are dropped."""
        self._report = report
        self._thread = SupervisedThread("publisher", lambda: self._run(report), self._on_death)
        self._thread.start()

    def offer(self, snapshot: Snapshot, room: int | None = None) -> None:
        """Queue `snapshot`; thin out what waits when the queue is full.

        Raises:
            RuntimeError: the publisher was not started, or is closed.
        """
        with self._changed:
            if self._report is None or self._closed:
                raise RuntimeError("the publisher is not running; call start first, and offer nothing after close")
            dropped = self._queue.offer(snapshot, room)
            self._changed.notify_all()
        for point in dropped:
            self._report(point)

    def status(self, group: str) -> StoreStatus:
        """Return what is held of `group`."""
        with self._changed:
            return self._queue.status(group)

    def part(self) -> Part:
        """Return how the thread is."""
        return Part("publisher", self._thread.trouble if self._thread is not None else None)

    def close(self) -> None:
        """Store what waits, then stop the thread and give the store back."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.store.close()

    def _run(self, report: Report) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self._queue) or self._closed)
                taken = self._queue.take()
            if taken is None:
                break
            started, before = self._clock(), self.store.written_bytes
            # Flushes thin out first when storage is slow: what waits shares them.
            result = self.store.publish(taken.snapshot, taken.hurry, taken.log_bytes)
            written = Written(result, self.store.written_bytes - before, self._clock() - started)
            with self._changed:
                self._queue.written(taken.snapshot.group, self.store.log_bytes(taken.snapshot.group))
            report(written)
        for result in self.store.flush():
            report(Written(result, 0, 0.0))
