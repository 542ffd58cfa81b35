"""The publisher and the record sender in virtual time: their real cores, driven by events with seeded durations.

In a process, threads drive the same cores (`BackgroundPublisher`, `RecordSender`).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from nccl_emu.shadow_client.sender_core import SenderCore, Turn
from nccl_emu.shadow_client.shadow_session import ShadowSession
from shadow_rx.publish.core import Done, PublisherCore, Report, Work
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.health import StoreStatus
from shadow_rx.store.writer import RecoveryStore
from topology.acceptance.plan import COMPUTE_S

CallLater = Callable[[float, Callable[[], None]], None]
"""call_later(seconds, action) calls `action` in so many virtual seconds."""
_CALL_S = (1e-5, 0.2 * COMPUTE_S)
"""Shortest and longest side-channel call, in virtual seconds: a record, then a state, arrive during the next step."""
_RETRY_S = (0.05 * COMPUTE_S, 0.5 * COMPUTE_S)
"""Shortest and longest wait before retrying a shadow node that is down, in virtual seconds."""


class TimedPublisher:
    """Implements `Publisher`: drives a `PublisherCore` in virtual time."""

    def __init__(
        self, store: RecoveryStore, depth: int, call_later: CallLater, seconds: Callable[[], float], rng: random.Random
    ) -> None:
        """Write to `store`.

        Args:
            store: the store.
            depth: most points of a group that may wait.
            call_later: schedules an action, which is dropped if the process is killed first.
            seconds: draws how long a write takes, in virtual seconds.
            rng: decides whether a write reaches the disk when it begins or when it ends: a process killed in between
                may have stored a point that it never reported.
        """
        self.store = store
        self._core = PublisherCore(store, depth)
        self._call_later, self._seconds, self._rng = call_later, seconds, rng
        self._work: Work | None = None
        self._done: Done | None = None
        self._report: Report = lambda _: None

    def start(self, report: Report) -> None:
        """See `Publisher.start`."""
        self._report = report
        self._core.start()

    def offer(self, snapshot: Snapshot, room: int | None = None) -> None:
        """See `Publisher.offer`."""
        for point in self._core.offer(snapshot, room):
            self._report(point)
        self._start_write()

    def status(self, group: str) -> StoreStatus:
        """See `Publisher.status`."""
        return self._core.status(group)

    @property
    def idle(self) -> bool:
        """Whether no point waits or is being written."""
        return self._work is None

    def close(self) -> None:
        """See `Publisher.close`; takes no virtual time."""
        self._core.close()
        while self._work is not None or self._take():
            self._finish_write(0.0)
        self.store.close()

    def _take(self) -> bool:
        self._work = self._core.take()
        return self._work is not None

    def _start_write(self) -> None:
        if self._work is not None or not self._core.has_work or not self._take():
            return
        work, seconds = self._work, self._seconds()
        if self._rng.random() < 0.5:
            self._write()

        def end() -> None:
            if self._work is work:  # otherwise `close` has finished it
                self._finish_write(seconds)
                self._start_write()

        self._call_later(seconds, end)

    def _write(self) -> Done:
        if self._done is None:
            assert self._work is not None
            self._done = self._core.write(self._work)
        return self._done

    def _finish_write(self, seconds: float) -> None:
        done, self._work = self._write(), None
        self._done = None
        for written in self._core.finish(done, seconds):
            self._report(written)


class TimedSender:
    """Implements `ring_simulation.Sender`: drives a `SenderCore` in virtual time."""

    def __init__(self, session: ShadowSession, call_later: CallLater, rng: random.Random) -> None:
        """Send the records of `session`; `rng` draws how long each call takes."""
        self.session = session
        """The session with one shadow node."""
        self.core = SenderCore(session)
        """The records that wait."""
        self._call_later, self._rng = call_later, rng
        self._busy = False

    def wake(self) -> None:
        """Schedule the next call, if there is one to make."""
        turn = self.core.turn
        if self._busy or turn in (Turn.IDLE, Turn.OVER):
            return
        self._busy = True
        if turn is Turn.SEND:
            self._call_later(self._rng.uniform(*_CALL_S), lambda: self._run(self.core.send))
        else:
            self._call_later(self._rng.uniform(*_RETRY_S), lambda: self._run(self.core.retry))

    def _run(self, action: Callable[[], None]) -> None:
        self._busy = False
        if self.core.turn is not Turn.OVER:  # otherwise the rank was killed, with the calls in flight
            action()
            self.wake()
