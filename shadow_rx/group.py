"""The replica of one data-parallel group: attach, collect, apply, and say where it is. A pure object."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from jobspec.layout import Layout
from jobspec.model import Flow, Group, Job
from jobspec.reasons import GapReason
from jobspec.recovery_point import RecoveryPointError, unpack_tensors
from jobspec.sidechannel import side_channel_pb2 as pb
from shadow_rx.assembler import Assembler
from shadow_rx.capture import Discard, Replica
from shadow_rx.description import OptimizerPlan, parse_layout, parse_optimizer
from shadow_rx.epoch import SHOWN_GAPS, Epoch
from shadow_rx.errors import Refusal, ShadowError, invalid, premature
from shadow_rx.history import History
from shadow_rx.options import ShadowOptions
from shadow_rx.records import RecordBook
from shadow_rx.replay import Replay, Tensors, tensor_bytes
from shadow_rx.slots import plan_slots
from shadow_rx.snapshot import Snapshot
from shadow_rx.status import Event, Gap, GroupStatus, StepLost, StepReplicated, StepReport


class GroupReplica:
    """Follows one group step by step.

    Memory (stated bound): ``window`` times (gradient + 64 bytes a frame) for collecting, twice that while
    an attach replaces the buffers; ``1 + hold`` times the model's state (parameters and optimizer); records
    of at most ``pending_records`` steps.
    """

    def __init__(self, job: Job, group: Group, flows: Sequence[Flow], options: ShadowOptions) -> None:
        """Follow `group` of `job`, whose replicas arrive on `flows`."""
        self._job = job
        self._group = group
        self._flows = {flow.id: flow for flow in flows}
        self._options = options
        self.history = History()
        """Which steps are recovery points, on storage, or lost; the driver notes what happens on storage."""
        self._epoch: Epoch | None = None
        self._replay: Replay | None = None
        self._base: Tensors = {}
        self._applied = 0
        self._trained = 0
        self._held: deque[Snapshot] = deque(maxlen=options.hold)
        self._used_ports: dict[int, set[int]] = {flow.id: set() for flow in flows}
        self._events: list[Event] = []
        self._packets = 0
        self._payload_bytes = 0
        self._discarded: Counter[Discard] = Counter()
        self.last_replica_at: float | None = None
        """Time of the newest intact replica."""

    # ---- side channel ----

    def attach(self, message: pb.AttachRequest) -> bool:
        """Begin an epoch; tell whether the state before its first step has to be uploaded.

        The shadow's own state is good enough only when it is a recovery point of step ``first_step - 1``: a state
        that was uploaded but never advanced may be another run's, whose step numbers only look the same.

        Raises:
            ShadowError: the description is not usable, the epoch is not newer, or memory would not suffice.
        """
        layout = self._check_attach(message)
        optimizer = parse_optimizer(message.optimizer, layout)
        first = message.first_step
        # First without planning the frames, which takes time and memory in proportion to the gradient.
        self._check_memory("layout_json", layout.nbytes * self._options.window)
        bound = plan_slots(layout, list(self._flows.values())).nbytes * self._options.window
        self._check_memory("layout_json", bound)
        try:
            assembler = Assembler(
                layout=layout, flows=list(self._flows.values()), job=self._job.id, group=self._group.id,
                epoch=message.epoch, first_step=first, window=self._options.window,
            )  # fmt: skip
        except MemoryError as error:
            raise ShadowError(Refusal.RESOURCE_EXHAUSTED, "layout_json", f"no memory for {bound} bytes") from error
        ranks = len(self._group.ring)
        book = RecordBook(optimizer, ranks, first, self._options.pending_records, self._job.digests)
        keeps = self._holds(first - 1, layout, optimizer)
        self._close_epoch()
        self.history.begin(message.epoch, first)
        self._epoch = Epoch(message.epoch, layout, optimizer, assembler, book)
        self._trained = first - 1
        if not keeps:
            self._replay = None
            self._base = {}
        return not keeps

    def _check_attach(self, message: pb.AttachRequest) -> Layout:
        if message.job != self._job.name:
            raise invalid("job", f"{message.job!r}, this shadow serves job {self._job.name!r}")
        newest = self._epoch.number if self._epoch else 0
        if message.epoch <= newest:
            raise premature("epoch", f"{message.epoch} is not newer than epoch {newest}; expected {newest + 1} or more")
        if message.first_step < 1:
            raise invalid("first_step", "is 0, expected 1 or more")
        return parse_layout(message.layout_json)

    def _check_memory(self, field: str, need: int) -> None:
        limit = self._options.memory_limit
        if need > limit:
            message = f"needs {need} bytes, the limit is {limit}; raise it, or use a smaller window"
            raise ShadowError(Refusal.RESOURCE_EXHAUSTED, field, message)

    def _holds(self, step: int, layout: Layout, optimizer: OptimizerPlan) -> bool:
        old = self._epoch
        return (
            old is not None
            and self._replay is not None
            and self._applied == step
            and self.history.is_replicated(step)
            and [slot.param for slot in old.layout.slots] == [slot.param for slot in layout.slots]
            and optimizer.same_state(old.optimizer)
        )

    def upload(self, epoch: int, data: bytes, now: float | None = None) -> None:
        """Take the state before the epoch's first step: a safetensors file; `now` as in `on_replica`.

        Raises:
            ShadowError: another epoch, a step of it is applied already, or the state does not fit the
            description.
        """
        current = self._current(epoch)
        first = current.assembler.first_step
        if current.assembler.next_step > first:
            raise premature("epoch", f"step {first} of epoch {epoch} is applied already; the state cannot be replaced")
        try:
            state = unpack_tensors(data)
        except RecoveryPointError as error:
            raise invalid("data", str(error)) from error
        need = tensor_bytes(state) * (2 + self._options.hold)
        self._check_memory("data", need + current.assembler.plan.nbytes * self._options.window)
        replay = Replay(current.layout, current.optimizer, state)
        base = replay.snapshot()
        self._replay, self._base, self._applied = replay, base, first - 1
        self._advance(now)

    def open_flow(self, epoch: int, flow_id: int, source_port: int) -> None:
        """Learn the source port of a flow's connection in this epoch.

        Raises:
            ShadowError: another epoch, a flow of another group, or a port that the flow used in an earlier
            epoch (late
                segments of that connection could not be told from new ones) or has changed within the epoch.
        """
        current = self._current(epoch)
        if flow_id not in self._flows:
            raise invalid("flow_id", f"{flow_id} is not a flow of group {self._group.name!r}")
        if not 1 <= source_port <= 65535:
            raise invalid("source_port", f"{source_port}, expected 1..65535")
        port = current.assembler.port_of(flow_id)
        if port == source_port:
            return
        if port is not None:
            raise premature(
                "source_port",
                f"flow {flow_id} has port {port} in epoch {epoch}; a new connection needs a new epoch",
            )
        if source_port in self._used_ports[flow_id]:
            raise premature(
                "source_port", f"flow {flow_id} used port {source_port} in an earlier epoch; choose another"
            )
        self._used_ports[flow_id].add(source_port)
        current.assembler.open(flow_id, source_port)

    def record(self, message: pb.StepRecord, now: float | None = None) -> None:
        """Take a rank's record of a step; `now` as in `on_replica`.

        Raises:
            ShadowError: another epoch, a field is wrong, or another record of this rank and step came before.
        """
        current = self._current(message.epoch)
        if not current.book.add(message):
            return
        self._trained = max(self._trained, message.step)
        self._advance(now)

    def _current(self, epoch: int) -> Epoch:
        if self._epoch is None:
            raise premature("epoch", f"group {self._group.name!r} has not attached yet")
        if epoch != self._epoch.number:
            raise premature("epoch", f"{epoch} is not the present epoch {self._epoch.number}")
        return self._epoch

    # ---- replicas ----

    def on_replica(self, replica: Replica, now: float) -> None:
        """Place an intact replica of one of the group's flows at time `now` (seconds)."""
        self._packets += 1
        self._payload_bytes += len(replica.payload)
        self.last_replica_at = now
        current = self._epoch
        if current is None:
            self._discarded[Discard.UNKNOWN_CONNECTION] += 1
        elif current.lost is not None:
            self._discarded[Discard.RESYNC_PENDING] += 1
        elif current.assembler.place(replica, now):
            self._advance(now)

    def on_damaged(self, replica: Replica) -> None:
        """Remember that a replica of the group failed a checksum; it is not placed."""
        if self._epoch is not None and self._epoch.lost is None:
            self._epoch.assembler.note_damaged(replica)

    # ---- advancing ----

    def _advance(self, now: float | None) -> None:
        """Apply every step that is ready, in order; notice when the oldest one can no longer become so."""
        current = self._epoch
        while current is not None and current.lost is None:
            gap = current.verdict()
            if gap is None:
                if not current.ready or self._replay is None:
                    return
                gap = self._apply(current, self._replay, now)
            if gap is not None:
                self._lose(current, gap)

    def _apply(self, current: Epoch, replay: Replay, now: float | None) -> Gap | None:
        """Apply one complete step and publish it, or leave the state of the step before and say why."""
        step = current.assembler.next_step
        records = current.book.get(step)
        expected = next((record.digest for record in records if record.digest), b"")
        try:
            replay.apply(current.assembler.slot(step), records[0].options)
            tensors = replay.snapshot()
            digest = replay.parameter_digest() if expected else b""
        except Exception as error:  # whatever torch raises, the step before stays valid
            replay.restore(self._base)
            return Gap(step, GapReason.DIGEST_MISMATCH, f"the optimizer step cannot be replayed: {error}")
        if digest != expected:
            replay.restore(self._base)
            detail = f"parameters have digest {digest.hex()}, the ranks' have {expected.hex()}"
            return Gap(step, GapReason.DIGEST_MISMATCH, detail)
        snapshot = Snapshot(
            self._job.name, self._group.name, current.number, step, current.layout, current.optimizer,
            tuple(records), tensors,
        )  # fmt: skip
        slot = current.assembler.slot(step)
        applied_at = now if now is not None else slot.complete_at or 0.0
        report = StepReport(current.number, step, slot.received_bytes, slot.first_byte_at, slot.complete_at, applied_at)
        self._base, self._applied = tensors, step
        self._held.append(snapshot)
        self.history.replicated(report)
        current.assembler.release()
        current.book.release(step)
        self._events.append(StepReplicated(snapshot, report))
        return None

    def _lose(self, current: Epoch, gap: Gap) -> None:
        current.lost = gap
        current.book.drop()
        self.history.lost(gap)
        self._events.append(StepLost(self._group.name, current.number, gap))

    def _close_epoch(self) -> None:
        """Note every step that the ending epoch leaves incomplete."""
        if self._epoch is not None:
            self._discarded.update(self._epoch.assembler.discarded)
            for gap in self._epoch.unfinished(self._trained):
                self.history.lost(gap)

    # ---- telling ----

    def explain(self, step: int) -> Gap | None:
        """Return why `step` is no recovery point on storage; None when it is, or was until newer came."""
        if self.history.is_replicated(step):
            return self.history.storage_gap(step)
        current = self._epoch
        if current is not None and step >= current.assembler.next_step:
            if step <= max(self._trained, current.assembler.newest_seen):
                return current.explain(step)
            unannounced = Gap(step, GapReason.SIDE_CHANNEL_MISSING, "has not been announced by any rank")
            return self.history.loss(step) or unannounced
        loss = self.history.loss(step)
        return loss or Gap(step, GapReason.RESYNC_PENDING, "lies before the steps that this shadow was told of")

    def settled(self, step: int) -> bool:
        """Tell whether `step` is a recovery point, or can never be one in the present epoch."""
        if self.history.is_replicated(step):
            return True
        current = self._epoch
        return current is not None and (step < current.assembler.next_step or current.lost is not None)

    def status(self) -> GroupStatus:
        """Return the three step numbers, the gaps and the counters."""
        current = self._epoch
        gaps: dict[int, Gap] = {gap.step: gap for gap in self.history.losses()}
        gaps.update((gap.step, gap) for gap in self.history.storage_gaps())
        discarded = Counter(self._discarded)
        if current is not None:
            discarded.update(current.assembler.discarded)
            gaps.update((gap.step, gap) for gap in current.explain_until(self._trained))
        newest = sorted(gaps.values(), key=lambda gap: -gap.step)
        return GroupStatus(
            group=self._group.name,
            epoch=current.number if current else 0,
            trained_step=self._trained,
            replica_step=self.history.replica_step,
            durable_step=self.history.durable_step,
            gaps=tuple(newest[:SHOWN_GAPS]),
            replica_packets=self._packets,
            replica_payload_bytes=self._payload_bytes,
            discarded={str(cause): count for cause, count in sorted(discarded.items()) if count},
            pending_bytes=current.pending_bytes() if current is not None else {},
        )

    def reports(self) -> list[StepReport]:
        """Return how the remembered recovery points of the present history came about, oldest first."""
        return self.history.reports()

    def held(self, step: int) -> Snapshot | None:
        """Return a recovery point of the present history from memory (0: the newest), None when not there."""
        wanted = step or self.history.replica_step
        if not self.history.is_replicated(wanted):
            return None
        return next((snapshot for snapshot in reversed(self._held) if snapshot.step == wanted), None)

    def take_events(self) -> list[Event]:
        """Return what happened since the last call."""
        events, self._events = self._events, []
        return events
