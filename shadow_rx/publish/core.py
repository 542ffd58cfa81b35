"""How recovery points get to storage: what is written next, and what is told of each. Pure.

No threads, clocks or locks: a driver offers points, lets the one writer take work, write it and finish it, and
passes on what is told. `write` alone takes long, and changes nothing here: a driver with threads holds its lock for
all the other calls, and not for that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.publish.store_queue import StoreQueue, Taken
from shadow_rx.status.health import StoreStatus
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


@dataclass(frozen=True)
class Flush:
    """Work: to commit what waits in the store for others. The last one, as nothing is offered any more."""


Work = Taken | Flush
"""What the writer does at a time."""


@dataclass(frozen=True)
class Done:
    """Work that the store has done."""

    results: tuple[StoreResult, ...]
    """What became of it."""
    nbytes: int
    """Bytes that were written of a point; 0 for a flush."""


class PublisherCore:
    """Points on their way to a store, one of which is being written at a time."""

    def __init__(self, store: RecoveryStore, depth: int) -> None:
        """Write to `store`; at most `depth` points of each group wait besides the one that is being written.

        Raises:
            ValueError: `depth` is below 1.
        """
        self.store = store
        """Where points are stored."""
        self._queue = StoreQueue(depth)
        self._writing: Work | None = None
        self._running = self._over = False

    def start(self) -> None:
        """Take points from now on."""
        self._running = True

    def offer(self, snapshot: Snapshot, room: int | None = None) -> list[Point]:
        """Queue a point; return those that are dropped, which has to be told (`StoreQueue.offer`).

        Raises:
            RuntimeError: not started, or closed.
        """
        if not self._running:
            raise RuntimeError("the publisher is not running; call start first, and offer nothing after close")
        return self._queue.offer(snapshot, room)

    def close(self) -> None:
        """Take no more points; what waits is still written."""
        self._running = False

    @property
    def has_work(self) -> bool:
        """Whether `take` would return some; also where nothing is left to do for good, so that a writer looks."""
        return self._writing is None and (len(self._queue) > 0 or not self._running)

    def take(self) -> Work | None:
        """Return what is to be written next; None where nothing is: yet, or any more where the publisher is closed."""
        assert self._writing is None, "there is one writer"
        work: Work | None = self._queue.take()
        if work is None and not self._running and not self._over:
            self._over, work = True, Flush()
        self._writing = work
        return work

    def write(self, work: Work) -> Done:
        """Have the store do `work`. It fails within the results only (`RecoveryStore.publish`)."""
        if isinstance(work, Flush):
            return Done(tuple(self.store.flush()), 0)
        before = self.store.written_bytes
        # Flushes thin out first when storage is slow: what waits shares them.
        result = self.store.publish(work.snapshot, work.hurry, work.log_bytes)
        return Done((result,), self.store.written_bytes - before)

    def finish(self, done: Done, seconds: float) -> list[Written]:
        """Note that the work that was taken is done, and took `seconds`; return what has to be told."""
        took = 0.0 if isinstance(self._writing, Flush) else seconds  # a flush is no measure of what a step takes
        self._writing = None
        for result in done.results:
            group = result.point[0]
            self._queue.written(group, self.store.log_bytes(group))
        return [Written(result, done.nbytes, took) for result in done.results]

    def abandon(self) -> None:
        """Note that the work that was taken was interrupted, and will not be finished."""
        self._writing = None

    def status(self, group: str) -> StoreStatus:
        """Return what is held of `group`."""
        return self._queue.status(group)
