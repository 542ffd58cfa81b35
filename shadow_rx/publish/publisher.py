"""Publishers take recovery points from the node and store them: at once, or in a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from checkmate_common.supervised import OnDeath, SupervisedThread
from shadow_rx.publish.core import PublisherCore, Report, Work
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.health import Part, StoreStatus
from shadow_rx.store.writer import RecoveryStore


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
    """Stores each point before `offer` returns: for replays and tests."""

    def __init__(self, store: RecoveryStore) -> None:
        """Write to `store`."""
        self.store = store
        self._core = PublisherCore(store, 1)
        self._report: Report | None = None

    def start(self, report: Report) -> None:
        """Report results through `report`."""
        self._report = report
        self._core.start()

    def offer(self, snapshot: Snapshot, room: int | None = None) -> None:
        """Store `snapshot` now; as it never waits, it needs no room.

        Raises:
            RuntimeError: the publisher was not started, or is closed.
        """
        self._core.offer(snapshot)
        self._work()

    def status(self, group: str) -> StoreStatus:
        """Return what is held of `group`: steps that wait for a common flush."""
        return StoreStatus(log_bytes=self.store.log_bytes(group))

    def close(self) -> None:
        """Commit what waits for others, and give the store back."""
        self._core.close()
        self._work()
        self.store.close()

    def _work(self) -> None:
        while (work := self._core.take()) is not None:
            try:
                done = self._core.write(work)
            except BaseException:  # an interrupt; `close` still has to write what waits and give the store back
                self._core.abandon()
                raise
            for written in self._core.finish(done, 0.0):
                if self._report is not None:
                    self._report(written)


class BackgroundPublisher:
    """Stores points in a thread, from a queue that is bounded in number and bytes: a driver of `PublisherCore`.

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
        self._core = PublisherCore(store, depth)
        self._clock = clock
        self._changed = threading.Condition()
        self._report: Report | None = None
        self._thread: SupervisedThread | None = None
        self._on_death = on_death

    def start(self, report: Report) -> None:
        """Start the thread; `report` is called from it, and from `offer` for points that are dropped."""
        self._report = report
        self._core.start()
        self._thread = SupervisedThread("publisher", lambda: self._run(report), self._on_death)
        self._thread.start()

    def offer(self, snapshot: Snapshot, room: int | None = None) -> None:
        """Queue `snapshot`; thin out what waits when the queue is full.

        Raises:
            RuntimeError: the publisher was not started, or is closed.
        """
        with self._changed:
            dropped = self._core.offer(snapshot, room)
            self._changed.notify_all()
        assert self._report is not None, "it is running"
        for point in dropped:
            self._report(point)

    def status(self, group: str) -> StoreStatus:
        """Return what is held of `group`."""
        with self._changed:
            return self._core.status(group)

    def part(self) -> Part:
        """Return how the thread is."""
        return Part("publisher", self._thread.trouble if self._thread is not None else None)

    def close(self) -> None:
        """Store what waits, then stop the thread and give the store back."""
        with self._changed:
            self._core.close()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.store.close()

    def _run(self, report: Report) -> None:
        while (work := self._await_work()) is not None:
            started = self._clock()
            done = self._core.write(work)
            with self._changed:
                written = self._core.finish(done, self._clock() - started)
            for each in written:
                report(each)

    def _await_work(self) -> Work | None:
        with self._changed:
            self._changed.wait_for(lambda: self._core.has_work)
            return self._core.take()
