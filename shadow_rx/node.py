"""A shadow node ready for use: the core behind one lock, its publisher, and calls that wait."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from jobspec.reasons import GapReason
from jobspec.recovery_point import RecoveryPointError
from jobspec.sidechannel import side_channel_pb2 as pb
from packets.batch import PacketBatch
from shadow_rx.apply.model import tensor_bytes
from shadow_rx.apply.upload import PreparedState, UploadPlan, check_header, check_transfer, prepare
from shadow_rx.core import ShadowCore
from shadow_rx.errors import Refusal, ShadowError, invalid
from shadow_rx.peers.frames import PeerRepair, PeerRequest
from shadow_rx.publish.publisher import Publisher, Written
from shadow_rx.publish.snapshot import EncodedPoint, Snapshot, encode
from shadow_rx.status.group_status import (
    Event,
    Gap,
    GroupStatus,
    OverloadChanged,
    StateAdopted,
    StateUploaded,
    StepNotStored,
    StepReplicated,
    StepStored,
)
from shadow_rx.status.health import Part
from shadow_rx.status.load_meter import LoadMeter
from shadow_rx.store.policy import Point

PIECE_BYTES = 1 << 20
"""Bytes of a frame in one message to another shadow node."""
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
        self._meters = {group: LoadMeter(core.job.store.base_every) for group in core.groups}
        # Reentrant, because a DirectPublisher reports while the lock is held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._parts: list[Callable[[], Part]] = []
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
            began = self._clock()
            for frame in frames:
                events = self._core.on_frame(frame, now)
                if events:
                    began = self._charge(events[0], began)
                    self._handle(events)
            self._charge(None, began)

    def on_batch(self, batch: PacketBatch) -> None:
        """Take captured packets; their memory is free again afterwards."""
        now = self._clock()
        with self._lock:
            began = self._clock()
            for name, segments in self._core.segments(batch):
                began = self._charge(None, began)
                replica = self._core.group(name)
                replica.on_segments(segments, now)
                after = self._clock()
                self._meters[name].worked(after - began)
                began = after
                self._handle(replica.take_events())
            self._charge(None, began)

    def count_kernel_drops(self, count: int) -> None:
        """Add `count` frames that the kernel dropped before they could be captured."""
        with self._lock:
            self._core.count_kernel_drops(count)

    def attach(self, message: pb.AttachRequest) -> bool:
        """See `ShadowCore.attach`."""
        with self._changed:
            need_state = self._core.attach(message)
            self._handle(self._core.group(message.group).take_events())
            self._changed.notify_all()
            return need_state

    def plan_upload(self, header: pb.StateHeader) -> UploadPlan:
        """Look at the header of a state before any of it is kept; return what the state has to be.

        Raises:
            ShadowError: no digest, too large, or see `ShadowCore.plan_upload`.
        """
        check_header(header, self._core.options.memory_limit)
        with self._lock:
            return self._core.plan_upload(header.group, header.epoch, header.step)

    def upload(self, header: pb.StateHeader, data: bytes) -> bool:
        """Take the state after a step, a safetensors file; tell whether it was of use.

        Raises:
            ShadowError: `data` are not the bytes that were sent, or see `plan_upload`, `apply.upload.prepare` and
                `ShadowCore.take_upload`.
        """
        plan = self.plan_upload(header)
        try:
            # Without the lock: frames come in meanwhile.
            check_transfer(header, data)
            state = prepare(plan, data)
        except BaseException:
            self.expect_no_state(header.group, header.epoch)
            raise
        return self._take_upload(header, data, state)

    def _take_upload(self, header: pb.StateHeader, data: bytes, state: PreparedState) -> bool:
        with self._lock:
            began = self._clock()
            events = self._core.take_upload(header.group, state, began, final=header.final)
            if any(isinstance(event, StepReplicated) for event in events):
                self._meters[header.group].worked(self._clock() - began)
            self._handle(events)
            return any(isinstance(event, StateUploaded) for event in events)

    def change(self, message: pb.ChangeRequest) -> None:
        """See `ShadowCore.change`."""
        with self._lock:
            self._core.change(message)

    def expect_no_state(self, group: str, epoch: int) -> None:
        """See `ShadowCore.expect_no_state`; nothing where the epoch is over."""
        with self._lock, contextlib.suppress(ShadowError):
            self._core.expect_no_state(group, epoch)

    def adopt(self, snapshot: Snapshot, peer: str) -> None:
        """See `ShadowCore.adopt`."""
        with self._changed:
            self._handle(self._core.adopt(snapshot, peer, self._clock()))

    def asks(self, group: str, rank: int) -> pb.RecordReply:
        """See `ShadowCore.asks`."""
        with self._lock:
            return self._core.asks(group, rank)

    def open_flow(self, message: pb.OpenFlowRequest) -> None:
        """See `ShadowCore.open_flow`."""
        with self._lock:
            self._core.open_flow(message)

    def record(self, message: pb.StepRecord) -> None:
        """See `ShadowCore.record`."""
        with self._lock:
            began = self._clock()
            events = self._core.record(message, began)
            self._meters[message.group].worked(self._clock() - began)
            self._handle(events)

    def use_peers(self, names: Iterable[str], grace: float = 0.0) -> None:
        """Have what is lost asked of the shadow nodes `names` (`peer_driver`) before a step is given up.

        Args:
            names: shadow nodes; those that share no group with this one are ignored.
            grace: seconds that bytes may be late before they count as lost.
        """
        known = set(names) - {self._core.shadow}
        with self._lock:
            for group in self._core.job.groups:
                if group.name in self._core.groups and known.intersection(group.shadows):
                    self._core.group(group.name).use_peers(PeerRepair(grace))

    def use_no_peers(self) -> None:
        """Wait for other shadow nodes no longer: nobody asks them any more."""
        with self._changed:
            for name in self._core.groups:
                replica = self._core.group(name)
                replica.use_no_peers(self._clock())
                self._handle(replica.take_events())

    def peer_request(self, group: str) -> PeerRequest | None:
        """See `GroupReplica.peer_request`."""
        with self._changed:
            replica = self._core.group(group)
            request = replica.peer_request(self._clock())
            self._handle(replica.take_events())
            return request

    def give_frames(self, request: pb.FramesRequest) -> Iterator[pb.FrameBytes]:
        """Yield what is here of the frames of `request`, in pieces.

        Raises:
            ShadowError: another job or epoch, or an unknown group.
        """
        if request.job != self._core.job.name:
            raise invalid("job", f"{request.job!r}, this shadow serves job {self._core.job.name!r}")
        for key in request.frames:
            # One frame at a time: a step may be larger than what should be in memory twice.
            with self._lock:
                replica = self._core.group(request.group)
                found = replica.give_frames(request.epoch, request.step, [(key.flow_id, key.index)])
            for _, first, data in found:
                for at in range(0, len(data), PIECE_BYTES):
                    yield pb.FrameBytes(frame=key, start=first + at, data=data[at : at + PIECE_BYTES])

    def take_frame(self, request: PeerRequest, piece: pb.FrameBytes) -> int:
        """Take what another shadow node gave for `request`; return how many bytes were missing."""
        with self._changed:
            replica = self._core.group(request.group)
            key = (piece.frame.flow_id, piece.frame.index)
            now = self._clock()
            placed = replica.take_frame(request.epoch, request.step, key, piece.start, piece.data, now)
            self._handle(replica.take_events())
            return placed

    def status(self, group: str) -> GroupStatus:
        """See `ShadowCore.status`; with what waits for storage, and how busy the node is."""
        with self._lock:
            return self._status(group)

    def _status(self, group: str) -> GroupStatus:
        status, meter = self._core.status(group, self._clock()), self._meters[group]
        buffers = status.health.buffers
        if self._publisher is not None:
            buffers = replace(buffers, store=self._publisher.status(group))
        health = replace(
            status.health,
            buffers=buffers,
            load=meter.load(self._core.group(group).step_seconds),
            overloaded=meter.overloaded,
            apply_seconds=meter.apply_seconds,
            store_seconds=meter.store_seconds,
        )
        return replace(status, health=health)

    def watch(self, look: Callable[[], Part]) -> None:
        """Have `parts` tell of what `look` returns."""
        self._parts.append(look)

    def parts(self) -> list[Part]:
        """Return how the parts are that work beside the replication."""
        return [look() for look in self._parts]

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
            return self._status(group)

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
            self._tell(event)
            if isinstance(event, StateAdopted):
                self._store(event.snapshot)
            elif isinstance(event, StepReplicated):
                snapshot = event.snapshot
                self._meters[snapshot.group].replicated(len(snapshot.gradient or b""), tensor_bytes(snapshot.tensors))
                self._look(snapshot.group)
                self._store(snapshot)
        if events:
            self._changed.notify_all()

    def _store(self, snapshot: Snapshot) -> None:
        if self._publisher is not None:
            self._publisher.offer(snapshot, self._core.group(snapshot.group).room())
        else:
            gap = Gap(snapshot.step, GapReason.STORAGE_ERROR, "this shadow was given no storage")
            self._core.history(snapshot.group).not_stored(snapshot.epoch, gap)

    def _charge(self, event: Event | None, began: float) -> float:
        """Charge the time since `began` to the group of `event` (None: to all alike); return the present time."""
        now = self._clock()
        if event is not None:
            group = event.snapshot.group if isinstance(event, StepReplicated | StateAdopted) else event.group
            self._meters[group].worked(now - began)
        else:
            for meter in self._meters.values():
                meter.worked((now - began) / len(self._meters))
        return now

    def _look(self, group: str) -> None:
        """Tell when the node or its storage begins to fall behind training, and when it no longer does."""
        replica, meter = self._core.group(group), self._meters[group]
        load = meter.load(replica.step_seconds)
        overloaded = load.overloaded(meter.overloaded)
        if overloaded != meter.overloaded:
            meter.overloaded = overloaded
            history = self._core.history(group)
            self._tell(OverloadChanged(group, history.epoch, history.replica_step, overloaded, load))

    def _tell(self, event: Event) -> None:
        if self._observe is not None:
            self._observe(event)

    def _published(self, written: Written | Point) -> None:
        with self._changed:
            if isinstance(written, Written):
                self._note(written)
            else:
                group, epoch, step = written
                load = self._meters[group].load(self._core.group(group).step_seconds)
                detail = f"was skipped because storage was slower than training: {load.describe()}"
                self._not_stored(group, epoch, Gap(step, GapReason.OVERLOAD, detail))
            self._changed.notify_all()

    def _note(self, written: Written) -> None:
        result = written.result
        self._meters[result.point[0]].wrote(written.nbytes, written.seconds)
        here = () if result.waiting else (result.point,)
        for group, epoch, step in (*result.together, *(here if result.error is None else ())):
            self._core.history(group).stored(epoch, step)
            self._tell(StepStored(group, epoch, step))
        if result.error is not None:
            for group, epoch, step in (*result.failed, *here):
                self._not_stored(group, epoch, Gap(step, GapReason.STORAGE_ERROR, result.error))
        for group, epoch, step in result.removed:
            self._core.history(group).removed(epoch, step)
        self._look(result.point[0])

    def _not_stored(self, group: str, epoch: int, gap: Gap) -> None:
        self._core.history(group).not_stored(epoch, gap)
        self._tell(StepNotStored(group, epoch, gap))
