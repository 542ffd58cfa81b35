"""Publisher and record sender of the simulation: their real cores, driven by seeded durations in virtual time.

What threads do in processes (`BackgroundPublisher`, `RecordSender`) happens here as events, between and during steps.
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

After = Callable[[float, Callable[[], None]], None]
"""Does something after so many virtual seconds."""
_QUICK_CALL_S = (1e-5, 0.2 * COMPUTE_S)
"""Shortest and longest call of the side channel: a record, and then a state, arrive while the next step computes."""
_RETRY_S = (0.05 * COMPUTE_S, 0.5 * COMPUTE_S)
"""Shortest and longest wait for a shadow node that is not there."""


class TimedPublisher:
    """Implements `Publisher` as a driver of `PublisherCore`."""

    def __init__(
        self, store: RecoveryStore, depth: int, after: After, seconds: Callable[[], float], rng: random.Random
    ) -> None:
        """Write to `store`.

        Args:
            store: where to.
            depth: most points of a group that wait.
            after: virtual time; what a dead process had planned does not happen.
            seconds: draws how long a write takes.
            rng: decides whether a write is on the disk when it begins or when it ends: a process that dies meanwhile
                has stored what it never told, or not.
        """
        self.store = store
        self._core = PublisherCore(store, depth)
        self._after, self._seconds, self._rng = after, seconds, rng
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
        self._begin()

    def status(self, group: str) -> StoreStatus:
        """See `Publisher.status`."""
        return self._core.status(group)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        return self._work is None

    def close(self) -> None:
        """See `Publisher.close`; takes no time."""
        self._core.close()
        while self._work is not None or self._take():
            self._end(0.0)
        self.store.close()

    def _take(self) -> bool:
        self._work = self._core.take()
        return self._work is not None

    def _begin(self) -> None:
        if self._work is not None or not self._core.has_work or not self._take():
            return
        work, seconds = self._work, self._seconds()
        if self._rng.random() < 0.5:
            self._write()

        def end() -> None:
            if self._work is work:  # else `close` has done it
                self._end(seconds)
                self._begin()

        self._after(seconds, end)

    def _write(self) -> Done:
        if self._done is None:
            assert self._work is not None
            self._done = self._core.write(self._work)
        return self._done

    def _end(self, seconds: float) -> None:
        done, self._work = self._write(), None
        self._done = None
        for written in self._core.finish(done, seconds):
            self._report(written)


class TimedSender:
    """A driver of `SenderCore` (`topology.simulation.ring_simulation.Sender`)."""

    def __init__(self, session: ShadowSession, after: After, rng: random.Random) -> None:
        """Send what `session` has; `rng` draws how long each call takes."""
        self.session = session
        """The session."""
        self.core = SenderCore(session)
        """What waits."""
        self._after, self._rng = after, rng
        self._busy = False

    def wake(self) -> None:
        """Look whether there is something to do; it is done later."""
        turn = self.core.turn
        if self._busy or turn in (Turn.IDLE, Turn.OVER):
            return
        self._busy = True
        if turn is Turn.SEND:
            self._after(self._rng.uniform(*_QUICK_CALL_S), lambda: self._go_on(self.core.send))
        else:
            self._after(self._rng.uniform(*_RETRY_S), lambda: self._go_on(self.core.retry))

    def _go_on(self, action: Callable[[], None]) -> None:
        self._busy = False
        if self.core.turn is not Turn.OVER:  # its rank has died meanwhile, and with it what was on its way
            action()
            self.wake()
