"""A shadow node ready for use: the core behind one lock, its publisher, and calls that wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from jobspec.reasons import GapReason
from jobspec.recovery_point import RecoveryPointError
from jobspec.sidechannel import side_channel_pb2 as pb
from shadow_rx.core import ShadowCore
from shadow_rx.errors import Refusal, ShadowError
from shadow_rx.publisher import Publisher
from shadow_rx.snapshot import EncodedPoint, encode
from shadow_rx.status import Event, Gap, GroupStatus, StepReplicated
from shadow_rx.store import Point, StoreResult

Clock = Callable[[], float]
"""Seconds of a clock that does not run backwards."""
Observer = Callable[[Event], None]
"""Takes events as they happen."""


class ShadowNode:
    """Thread-safe shadow node: every call may come from any thread.

    Also the form to use in a single-threaded simulation, with a `DirectPublisher` and the simulation's clock.
    """

    def __init__(
        self,
        core: ShadowCore,
        clock: Clock,
        publisher: Publisher | None = None,
        observe: Observer | None = None,
    ) -> None:
        """Drive `core`.

        Args:
            core: the pure shadow node.
            clock: time that the core is driven with.
            publisher: takes recovery points; None: they stay in memory only.
            observe: told of every event; called with the lock held, so it must be quick.
        """
        self._observe = observe
        self._core = core
        self._clock = clock
        self._publisher = publisher
        # Reentrant, because a DirectPublisher reports while the lock is held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        if publisher is not None:
            publisher.start(self._published)

    @property
    def core(self) -> ShadowCore:
        """The core, for single-threaded callers that want to look at it."""
        return self._core

    def on_frames(self, frames: Iterable[bytes]) -> None:
        """Take captured frames (Ethernet, from the destination MAC on)."""
        now = self._clock()
        with self._lock:
            for frame in frames:
                events = self._core.on_frame(frame, now)
                if events:
                    self._handle(events)

    def count_kernel_drops(self, count: int) -> None:
        """Add `count` frames that the kernel dropped before they could be captured."""
        with self._lock:
            self._core.count_kernel_drops(count)

    def attach(self, message: pb.AttachRequest) -> bool:
        """See `ShadowCore.attach`."""
        with self._changed:
            need_state = self._core.attach(message)
            self._changed.notify_all()
            return need_state

    def upload(self, group: str, epoch: int, data: bytes) -> None:
        """See `ShadowCore.upload`."""
        with self._lock:
            self._handle(self._core.upload(group, epoch, data, self._clock()))

    def open_flow(self, message: pb.OpenFlowRequest) -> None:
        """See `ShadowCore.open_flow`."""
        with self._lock:
            self._core.open_flow(message)

    def record(self, message: pb.StepRecord) -> None:
        """See `ShadowCore.record`."""
        with self._lock:
            self._handle(self._core.record(message, self._clock()))

    def status(self, group: str) -> GroupStatus:
        """See `ShadowCore.status`."""
        with self._lock:
            return self._core.status(group)

    def explain(self, group: str, step: int) -> Gap | None:
        """See `ShadowCore.explain`."""
        with self._lock:
            return self._core.explain(group, step)

    def wait_for_step(self, group: str, step: int, timeout: float, active: Callable[[], bool]) -> GroupStatus:
        """Wait until `step` is settled, `timeout` seconds have passed, or `active` says no.

        `wake` makes waiting calls ask `active` again.
        """
        with self._changed:
            self._core.group(group)
            self._changed.wait_for(lambda: self._core.settled(group, step) or not active(), timeout)
            return self._core.status(group)

    def wake(self) -> None:
        """Let waiting calls look whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    def recovery_point(self, group: str, step: int) -> EncodedPoint:
        """Return a recovery point of the present history, from memory or storage (step 0: the newest).

        Raises:
            ShadowError: not there any more, never there (with the reason), or unreadable.
        """
        with self._lock:
            wanted = step or self._core.history(group).replica_step
            if not wanted:
                raise ShadowError(Refusal.NOT_FOUND, "step", f"group {group!r} has no recovery point yet")
            snapshot = self._core.held(group, wanted)
            epoch = self._core.history(group).stored_epoch(wanted)
            gap = self._core.explain(group, wanted)
        if snapshot is not None:
            return encode(snapshot)
        if self._publisher is not None and epoch is not None:
            try:
                return self._publisher.store.read(group, epoch, wanted)
            except RecoveryPointError as error:
                raise ShadowError(Refusal.NOT_FOUND, "step", f"step {wanted} cannot be read: {error}") from error
        why = f"{gap.reason}: {gap.detail}" if gap else "it is no longer kept"
        raise ShadowError(Refusal.NOT_FOUND, "step", f"step {wanted} of group {group!r} is not held: {why}")

    def close(self) -> None:
        """Store what waits for storage and stop the publisher."""
        if self._publisher is not None:
            self._publisher.close()

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            if self._observe is not None:
                self._observe(event)
            if not isinstance(event, StepReplicated):
                continue
            snapshot = event.snapshot
            if self._publisher is not None:
                self._publisher.offer(snapshot)
            else:
                gap = Gap(snapshot.step, GapReason.STORAGE_ERROR, "this shadow was given no storage")
                self._core.history(snapshot.group).not_stored(snapshot.epoch, gap)
        if events:
            self._changed.notify_all()

    def _published(self, result: StoreResult | Point) -> None:
        with self._changed:
            if isinstance(result, StoreResult):
                self._note(result)
            else:
                group, epoch, step = result
                gap = Gap(step, GapReason.OVERLOAD, "was skipped because storage was slower than training")
                self._core.history(group).not_stored(epoch, gap)
            self._changed.notify_all()

    def _note(self, result: StoreResult) -> None:
        group, epoch, step = result.point
        history = self._core.history(group)
        if result.error is None:
            history.stored(epoch, step)
        else:
            history.not_stored(epoch, Gap(step, GapReason.STORAGE_ERROR, result.error))
        for old_group, old_epoch, old_step in result.removed:
            self._core.history(old_group).removed(old_epoch, old_step)
