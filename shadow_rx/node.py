"""A shadow node ready for use: the core behind one lock, its publisher, and calls that wait."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from checkmate_common.recovery.point import RecoveryPointError
from checkmate_common.recovery.reasons import GapReason
from checkmate_common.sidechannel import side_channel_pb2 as pb
from packets.batch import PacketBatch
from shadow_rx.apply.model import tensor_bytes
from shadow_rx.apply.upload import UploadPlan, check_header, check_transfer, prepare
from shadow_rx.core import ShadowCore
from shadow_rx.errors import Refusal, ShadowError
from shadow_rx.group.replica import GroupReplica
from shadow_rx.logs.message_log import MessageLog
from shadow_rx.publish.core import Written
from shadow_rx.publish.publisher import Publisher
from shadow_rx.publish.snapshot import EncodedPoint, Snapshot, encode
from shadow_rx.status.events import (
    Event,
    OverloadChanged,
    StateAdopted,
    StepNotStored,
    StepReplicated,
    StepStored,
)
from shadow_rx.status.group_status import Gap, GroupStatus
from shadow_rx.status.health import Part
from shadow_rx.status.load import LoadMeter
from shadow_rx.store.names import Point

Clock = Callable[[], float]
"""Seconds of a clock that does not run backwards."""
Observer = Callable[[Event], None]
"""Takes events as they happen."""
T = TypeVar("T")


class ShadowNode:
    """Thread-safe shadow node: every call may come from any thread. Methods raise `ShadowError` where they refuse.

    Also the form to use in a single-threaded simulation, with a `DirectPublisher` and the simulation's clock.
    """

    def __init__(
        self,
        core: ShadowCore,
        clock: Clock,
        publisher: Publisher | None = None,
        observe: Observer | None = None,
        messages: MessageLog | None = None,
    ) -> None:
        """Drive `core`.

        Args:
            core: the pure shadow node.
            clock: time that the core is driven with.
            publisher: takes recovery points; None: they stay in memory only.
            observe: told of every event; called with the lock held, so it must be quick.
            messages: keeps the side channel's messages that were accepted, in that order; its caller's to close.
        """
        self.core = core
        """The core, for single-threaded callers that want to look at it."""
        self._observe = observe
        self.clock = clock
        """Time that the core is driven with."""
        self._publisher = publisher
        self._messages = messages
        self._meters = {group: LoadMeter(core.job.store.base_every) for group in core.groups}
        # Reentrant, because a DirectPublisher reports while the lock is held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._parts: list[Callable[[], Part]] = []
        if publisher is not None:
            publisher.start(self._published)

    @contextmanager
    def group(self, name: str, *, work: bool = False) -> Iterator[GroupReplica]:
        """Give a group's replica to this thread alone; what it brings about is handled afterwards.

        With `work` the time within counts as work on its steps.
        """
        with self._lock:
            replica, began = self.core.group(name), self.clock()
            yield replica
            if work:
                self._meters[name].worked(self.clock() - began)
            self._handle(replica.ledger.take_events())

    # ---- replicas ----

    def on_frames(self, frames: Iterable[bytes]) -> None:
        """Take captured frames (Ethernet, from the destination MAC on)."""
        now = self.clock()
        with self._lock:
            began = self.clock()
            for frame in frames:
                events = self.core.on_frame(frame, now)
                if events:
                    began = self._charge(events[0].group, began)
                    self._handle(events)
            self._charge(None, began)

    def on_batch(self, batch: PacketBatch) -> None:
        """Take captured packets; their memory is free again afterwards."""
        now = self.clock()
        with self._lock:
            began = self.clock()
            for name, segments in self.core.segments(batch):
                began = self._charge(None, began)
                replica = self.core.group(name)
                replica.arrivals.on_segments(segments, now)
                began = self._charge(name, began)
                self._handle(replica.ledger.take_events())
            self._charge(None, began)

    def _charge(self, group: str | None, began: float) -> float:
        """Charge the time since `began` to a group (None: to all alike); return the current time."""
        now = self.clock()
        charged = [self._meters[group]] if group is not None else list(self._meters.values())
        for meter in charged:
            meter.worked((now - began) / len(charged))
        return now

    def count_kernel_drops(self, count: int) -> None:
        """Add `count` frames that the kernel dropped before they could be captured."""
        with self._lock:
            self.core.count_kernel_drops(count)

    # ---- what the trainer tells ----

    def attach(self, message: pb.AttachRequest) -> bool:
        """Begin an epoch of a group; tell whether its state has to be uploaded (`GroupReplica.attach`)."""
        return self._accept(message, lambda replica: replica.attach(message))

    def open_flow(self, message: pb.OpenFlowRequest) -> None:
        """Learn a connection's source port."""
        self._accept(message, lambda replica: replica.open_flow(message))

    def change(self, message: pb.ChangeRequest) -> None:
        """Learn of another optimizer or layout."""
        self._accept(message, lambda replica: replica.change(message))

    def record(self, message: pb.StepRecord) -> pb.RecordReply:
        """Take a rank's record of a step; return what is needed of the rank."""

        def record(replica: GroupReplica) -> pb.RecordReply:
            replica.record(message, self.clock())
            return replica.needs(message.rank)

        return self._accept(message, record, work=True)

    def _accept(
        self,
        message: pb.AttachRequest | pb.OpenFlowRequest | pb.ChangeRequest | pb.StepRecord,
        take: Callable[[GroupReplica], T],
        *,
        work: bool = False,
    ) -> T:
        """Let the group of `message` take it, and log it where it is accepted."""
        # Prepared before the lock is taken, and before the caller can change the message.
        append = self._messages.prepare(message) if self._messages is not None else None
        with self.group(message.group, work=work) as replica:
            result = take(replica)
            if append is not None:
                append()
            return result

    def plan_upload(self, header: pb.StateHeader) -> UploadPlan:
        """Look at the header of a state before any of it is kept; return what the state has to be."""
        check_header(header, self.core.options.memory_limit)
        with self.group(header.group) as replica:
            return replica.plan_upload(header.epoch, header.step)

    def upload(self, header: pb.StateHeader, data: bytes) -> bool:
        """Take the state after a step, a safetensors file; tell whether it was of use."""
        plan = self.plan_upload(header)
        try:
            # Without the lock: frames come in meanwhile.
            check_transfer(header, data)
            state = prepare(plan, data)
        except BaseException:
            self.cancel_upload(header)
            raise
        append = self._messages.prepare_state(header, data) if self._messages is not None else None
        with self.group(header.group) as replica:
            began, newest = self.clock(), replica.ledger.history.replica_step
            taken = replica.take_upload(state, began, final=header.final)
            if taken and append is not None:  # the shadow refuses, or does not need, the others in a replay too
                append()
            if replica.ledger.history.replica_step != newest:
                self._meters[header.group].worked(self.clock() - began)
        return taken

    def cancel_upload(self, header: pb.StateHeader) -> None:
        """Learn that a state does not come; nothing where the epoch is over."""
        with contextlib.suppress(ShadowError), self.group(header.group) as replica:
            replica.cancel_upload(header.epoch)

    # ---- questions ----

    def status(self, group: str) -> GroupStatus:
        """Return a group's status, with what waits for storage, and how busy the node is."""
        with self._lock:
            return self._status(group)

    def _status(self, group: str) -> GroupStatus:
        status, meter = self.core.status(group, self.clock()), self._meters[group]
        buffers = status.health.buffers
        if self._publisher is not None:
            buffers = replace(buffers, store=self._publisher.status(group))
        health = replace(
            status.health,
            buffers=buffers,
            load=meter.load(self.core.group(group).times.step_seconds),
            overloaded=meter.overloaded,
            apply_seconds=meter.apply_seconds,
            store_seconds=meter.store_seconds,
        )
        return replace(status, health=health)

    def add_part(self, read: Callable[[], Part]) -> None:
        """Have `parts` tell of what `read` returns."""
        self._parts.append(read)

    def parts(self) -> list[Part]:
        """Return how the parts are that work beside the replication."""
        return [read() for read in self._parts]

    def explain(self, group: str, step: int) -> Gap | None:
        """Return why a step is not a recovery point on storage; None where it is, or was."""
        with self._lock:
            return self.core.group(group).progress.explain(step)

    def wait_for_step(self, group: str, step: int, timeout: float, active: Callable[[], bool]) -> GroupStatus:
        """Wait until `step` is settled, `timeout` seconds have passed, or `active` says no.

        `wake` makes waiting calls ask `active` again.
        """
        with self._changed:
            progress = self.core.group(group).progress
            self._changed.wait_for(lambda: progress.settled(step) or not active(), timeout)
            return self._status(group)

    def wake(self) -> None:
        """Let waiting calls look whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    def recovery_point(self, group: str, step: int) -> EncodedPoint:
        """Return a recovery point of the current history, from memory or storage (step 0: the newest).

        Raises:
            ShadowError: not there any more, never there (with the reason), or unreadable.
        """
        with self._lock:
            replica = self.core.group(group)
            wanted = step or replica.ledger.history.replica_step
            if not wanted:
                raise ShadowError(Refusal.NOT_FOUND, "step", f"group {group!r} has no recovery point yet")
            snapshot = replica.ledger.point(wanted)
            epoch = replica.ledger.history.stored_epoch(wanted)
            gap = replica.progress.explain(wanted)
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

    # ---- events, and what became of recovery points on storage ----

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            self._emit(event)
            if isinstance(event, StateAdopted):
                self._store(event.snapshot)
            elif isinstance(event, StepReplicated):
                snapshot = event.snapshot
                self._meters[snapshot.group].replicated(len(snapshot.gradient or b""), tensor_bytes(snapshot.tensors))
                self._check_overload(snapshot.group)
                self._store(snapshot)
        if events:
            self._changed.notify_all()

    def _emit(self, event: Event) -> None:
        if self._observe is not None:
            self._observe(event)

    def _store(self, snapshot: Snapshot) -> None:
        replica = self.core.group(snapshot.group)
        if self._publisher is not None:
            self._publisher.offer(snapshot, replica.room())
        else:
            gap = Gap(snapshot.step, GapReason.STORAGE_ERROR, "this shadow was given no storage")
            replica.ledger.history.not_stored(snapshot.epoch, gap)

    def _check_overload(self, group: str) -> None:
        """Tell when the node or its storage begins to fall behind training, and when it no longer does."""
        replica, meter = self.core.group(group), self._meters[group]
        load = meter.load(replica.times.step_seconds)
        overloaded = load.overloaded(meter.overloaded)
        if overloaded != meter.overloaded:
            meter.overloaded = overloaded
            history = replica.ledger.history
            self._emit(OverloadChanged(group, history.epoch, history.replica_step, overloaded, load))

    def _published(self, written: Written | Point) -> None:
        with self._changed:
            if isinstance(written, Written):
                self._written(written)
            else:
                group, epoch, step = written
                load = self._meters[group].load(self.core.group(group).times.step_seconds)
                detail = f"was skipped because storage was slower than training: {load.describe()}"
                self._not_stored(group, epoch, Gap(step, GapReason.OVERLOAD, detail))
            self._changed.notify_all()

    def _written(self, written: Written) -> None:
        result = written.result
        self._meters[result.point[0]].wrote(written.nbytes, written.seconds)
        here = () if result.waiting else (result.point,)
        for group, epoch, step in (*result.together, *(here if result.error is None else ())):
            self.core.group(group).ledger.history.stored(epoch, step)
            self._emit(StepStored(group, epoch, step))
        if result.error is not None:
            for group, epoch, step in (*result.failed, *here):
                self._not_stored(group, epoch, Gap(step, GapReason.STORAGE_ERROR, result.error))
        for group, epoch, step in result.removed:
            self.core.group(group).ledger.history.removed(epoch, step)
        self._check_overload(result.point[0])

    def _not_stored(self, group: str, epoch: int, gap: Gap) -> None:
        self.core.group(group).ledger.history.not_stored(epoch, gap)
        self._emit(StepNotStored(group, epoch, gap))
