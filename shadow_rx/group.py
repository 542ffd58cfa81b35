"""The replica of one data-parallel group: attach, collect, apply, and say where it is. A pure object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jobspec.reasons import GapReason
from jobspec.recovery_point import RecoveryPointError, unpack_tensors
from jobspec.sidechannel import side_channel_pb2 as pb
from shadow_rx.assembler import Assembler
from shadow_rx.capture import Discard, Replica
from shadow_rx.changes import carried_over
from shadow_rx.description import parse_optimizer
from shadow_rx.diagnosis import diagnose, disagreement, unknown_layout
from shadow_rx.epoch import Epoch
from shadow_rx.errors import Refusal, ShadowError, invalid, premature
from shadow_rx.group_state import GroupState
from shadow_rx.history import History
from shadow_rx.peer import FrameKey, PeerRepair, PeerRequest, Piece, give_applied, give_collected
from shadow_rx.rank_step import RankStep
from shadow_rx.records import RecordBook
from shadow_rx.replay import Replay, tensor_bytes
from shadow_rx.slots import plan_slots
from shadow_rx.snapshot import Snapshot
from shadow_rx.status import (
    Attached,
    Gap,
    StateUploaded,
    StepReplicated,
    StepReport,
    StepResynced,
)

_EXPLAINED = 4096
"""Most steps that one loss is reported for, the newest ones."""


class GroupReplica(GroupState):
    """Follows one group step by step.

    Memory (stated bound): ``window`` times (gradient + 64 bytes for each copy of a frame) for collecting, twice that
    while an attach replaces the buffers; ``1 + hold`` times the model's state (parameters and optimizer); records
    of at most ``pending_records`` steps.
    """

    # ---- side channel ----

    def attach(self, message: pb.AttachRequest) -> bool:
        """Begin an epoch; tell whether the state before its first step has to be uploaded.

        The same communicator may attach again: it learns what is still needed. One that runs already (`rejoin`)
        attaches to a shadow that was started again meanwhile; that one asks for a state as after a loss.

        The shadow's own state is good enough only when it is a recovery point of step ``first_step - 1``: a state
        that was uploaded but never advanced may be another run's, whose step numbers only look the same.

        Raises:
            ShadowError: the description is not usable, the epoch is not newer, or memory would not suffice.
        """
        if self._repeats(message):
            return self._replay is None and self._epoch is not None and self._epoch.lost is None
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
        listed = self._accounts.listed(message)
        ranks = len(self._group.ring)
        book = RecordBook(optimizer, ranks, first, self._options.pending_records, self._job.digests)
        keeps = not message.rejoin and self._holds(first - 1, layout, optimizer) and self._accounts.holds(listed)
        self._close_epoch()
        self._epoch = Epoch(
            message.epoch, layout, optimizer, assembler, book,
            communicator=message.communicator, resyncs=message.uploads_on_demand,
            peers=self._repair is not None,
        )  # fmt: skip
        self._accounts.begin(listed)
        if not keeps:
            self._replay = None
            self._base = {}
        for change in message.changes:
            self._change(self._epoch, change)
        trained = max(first - 1, message.current_step) if message.rejoin else first - 1
        need_state = not keeps and not message.rejoin
        undeclared = self._accounts.undeclared(layout)
        self._events.append(Attached(self._group.name, message.epoch, trained, need_state, message.rejoin, undeclared))
        self._times.begin(trained)
        if message.rejoin:
            self._rejoin(self._epoch, message.current_step)
            return False
        if message.epoch <= self.history.epoch:
            # Another run's points were found on storage: its steps are not this one's.
            self.history = History()
        self.history.begin(message.epoch, first)
        self._trained = first - 1
        return not keeps

    def _rejoin(self, current: Epoch, trained: int) -> None:
        """Go on in an epoch that this shadow was not there for: report its steps so far, await a state."""
        first = current.assembler.first_step
        self.history.rejoin(current.number, first)
        stored = max(first - 1, self.history.replica_step)
        self._trained = max(stored, trained)
        current.slide(self._trained + 1)
        detail = "the shadow node was started again, and was not there when the step was trained"
        current.lost = Gap(stored + 1, GapReason.RESYNC_PENDING, detail)
        # The newest step's state may still be uploaded; not so those of the steps before it.
        for step in range(max(stored + 1, self._trained - _EXPLAINED), self._trained):
            self._report_loss(current, Gap(step, GapReason.RESYNC_PENDING, detail))

    def resume(self, points: Iterable[tuple[int, int]], losses: Iterable[tuple[int, Gap]] = ()) -> None:
        """Learn before the first attach which recovery points, as (epoch, step), are on storage, and what was lost.

        The points are durable at once. A communicator of the newest of these epochs that attaches with `rejoin` goes
        on from them; another one of such an epoch begins a new history.
        """
        for epoch, step in sorted(points):
            self.history.resume(epoch, step)
        for epoch, gap in losses:
            self.history.resume_loss(epoch, gap)
        self._trained = self.history.replica_step

    def upload(self, epoch: int, data: bytes, now: float | None = None, step: int = 0, *, final: bool = False) -> bool:
        """Take the state after `step`, or before the epoch's first step: a safetensors file.

        Args:
            epoch: the present epoch.
            data: the file.
            now: as in `on_replica`.
            step: step after which the state is valid; any before the first step means the one before that.
            final: no step will be trained after it: of use even where it was not asked for.

        Returns:
            Whether the shadow goes on from it; it does not where it has gone on by itself.

        Raises:
            ShadowError: another epoch, a first state when a step is applied already, or a state that does not fit
                the description.
        """
        current = self._current(epoch)
        current.coming = None
        first = current.assembler.first_step
        if step < first:
            if current.assembler.next_step > first:
                message = f"step {first} of epoch {epoch} is applied already; the state cannot be replaced"
                raise premature("epoch", message)
            self._take_state(current, first - 1, self._unpack(current, data, first - 1))
        elif not self._usable(current, step, final):
            return False
        else:
            self._resync(current, step, self._unpack(current, data, step), now)
        self._advance(now)
        return True

    def change(self, message: pb.ChangeRequest) -> None:
        """Learn that layout or optimizer are others from a step on that is not settled yet.

        Raises:
            ShadowError: another epoch, not usable, or late; or memory would not suffice.
        """
        self._change(self._current(message.epoch), message)

    def _change(self, current: Epoch, message: pb.ChangeRequest) -> None:
        change = current.timeline.parse(message, current.oldest)
        if change is None:
            return
        if change.layout != current.timeline.last.layout:
            need = plan_slots(change.layout, list(self._flows.values())).nbytes * self._options.window
            self._check_memory("layout_json", need + current.assembler.plan.nbytes * self._options.window)
            try:
                current.assembler.change(change.step, change.layout)
            except MemoryError as error:
                raise ShadowError(Refusal.RESOURCE_EXHAUSTED, "layout_json", f"no memory for {need} bytes") from error
        current.book.change(change.step, change.optimizer)
        current.timeline.add(change)

    def expect_state(self, epoch: int, step: int | None) -> None:
        """Keep what is collected from ``step + 1`` on, because the state after `step` is on its way (None: not so).

        Raises:
            ShadowError: another epoch.
        """
        self._current(epoch).coming = step

    def _unpack(self, current: Epoch, data: bytes, step: int) -> Replay:
        try:
            state = unpack_tensors(data)
        except RecoveryPointError as error:
            raise invalid("data", str(error)) from error
        layout = current.timeline.at(step).layout
        need = tensor_bytes(state) * (2 + self._options.hold) + layout.nbytes * self._options.hold
        need += (tensor_bytes(state) + layout.nbytes) * self._options.store_copies
        self._check_memory("data", need + current.assembler.plan.nbytes * self._options.window)
        in_force = current.timeline.at(step)
        replayed, constants = self._accounts.split(state, in_force.layout)
        replay = Replay(in_force.layout, in_force.optimizer, replayed)
        self._accounts.constants = constants
        return replay

    def _take_state(self, current: Epoch, step: int, replay: Replay) -> None:
        self._replay, self._base, self._applied = replay, replay.snapshot(), step
        in_force = current.timeline.at(step)
        uploaded = StateUploaded(
            self._group.name, current.number, step, in_force.layout, in_force.optimizer, self._base,
            self._accounts.constants,
        )  # fmt: skip
        self._events.append(uploaded)

    def _usable(self, current: Epoch, step: int, final: bool) -> bool:
        """Tell whether the state after `step` lets the shadow go on."""
        if self.history.is_replicated(step):
            return False
        collecting = current.assembler.next_step
        if current.lost is not None:
            return current.resyncs and step >= max(current.lost.step, collecting - 1)
        return step >= collecting and (final or (current.resyncs and current.overtaken))

    def _resync(self, current: Epoch, step: int, replay: Replay, now: float | None) -> None:
        """Go on from the state after `step`; what was collected of later steps stays."""
        first = current.oldest
        if current.lost is None and first < step:
            gap = diagnose(current.assembler, current.book, first)
            self._lose(current, gap or Gap(first, GapReason.RESYNC_PENDING, f"the state after step {step} came first"))
        for lost in range(max(first, step - _EXPLAINED), step):
            self._report_loss(current, current.explain(lost))
        if current.uploaded is not None:
            self._report_loss(current, current.explain(current.uploaded))
        current.lost = None
        current.assembler.skip_to(step + 1)
        current.book.release(step - 1)
        current.requests.adopted(step)
        current.uploaded = step
        self._take_state(current, step, replay)
        self._events.append(StepResynced(self._group.name, current.number, step, first))
        self.count(resyncs=1)

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
        if not current.book.add(message) and not message.state_objects:
            return
        self._trained = max(self._trained, message.step)
        self._times.announced(self._trained, self._times.tell(now))
        if current.lost is not None and current.resyncs:
            # Ranks are at most one step apart: bytes of this step and of the next one may be on their way.
            current.slide(self._trained + 2 - current.assembler.window)
        self._advance(now)

    # ---- replicas ----

    def on_replica(self, replica: Replica, now: float) -> None:
        """Place an intact replica of one of the group's flows at time `now` (seconds)."""
        self._packets += 1
        self._payload_bytes += len(replica.payload)
        self.last_replica_at = now
        current = self._epoch
        if current is None:
            self._discarded[Discard.UNKNOWN_CONNECTION] += 1
        elif current.lost is not None and not current.resyncs:
            self._discarded[Discard.RESYNC_PENDING] += 1
        elif current.assembler.place(replica, now):
            self._advance(now)
            beyond = current.assembler.next_step + current.assembler.window
            if current.lost is not None and current.assembler.overrun and current.assembler.overrun[0] == beyond:
                # While a state is awaited the newest steps are the ones to keep. One step at a time: a damaged
                # position may name any. What moves the window further are the ranks' records.
                current.slide(current.assembler.next_step + 1)
                current.assembler.place(replica, now)

    def on_damaged(self, replica: Replica) -> None:
        """Remember that a replica of the group failed a checksum; it is not placed."""
        if self._epoch is not None and (self._epoch.lost is None or self._epoch.resyncs):
            self._epoch.assembler.note_damaged(replica)

    def on_dropped(self, count: int) -> None:
        """Remember that replicas, of this group or of another one, were dropped for want of buffer space."""
        if self._epoch is not None:
            self._epoch.assembler.note_dropped(count)

    # ---- other shadow nodes ----

    def use_peers(self, repair: PeerRepair) -> None:
        """Have other shadow nodes asked, as `repair` decides, before a step is given up."""
        self._repair = repair
        if self._epoch is not None:
            self._epoch.peers = True

    def peer_request(self, now: float) -> PeerRequest | None:
        """Return what to ask the other shadow nodes of the group for at time `now`, None for nothing."""
        current = self._epoch
        if self._repair is None or current is None:
            return None
        request = self._repair.request(self._group.name, current, now)
        if request is None:
            self._advance(now)  # the peers may just have been given up
        return request

    def give_frames(self, epoch: int, step: int, keys: Sequence[FrameKey]) -> list[Piece]:
        """Return what is here of the frames `keys` of a step.

        Raises:
            ShadowError: another epoch.
        """
        current = self._current(epoch)
        first = current.assembler.next_step
        if current.lost is None and first <= step < first + current.assembler.window:
            return give_collected(current, step, keys)
        snapshot = self.held(step)
        if snapshot is None or snapshot.epoch != epoch:
            return []
        return give_applied(snapshot, current.assembler.plan, self._job.id, self._group.id, keys)

    def take_frame(self, epoch: int, step: int, key: FrameKey, start: int, data: bytes, now: float) -> int:
        """Take bytes of a frame that another shadow node gave; return how many were missing.

        They are verified as replicas are. What is of no use any more is ignored.
        """
        current = self._epoch
        if current is None or current.number != epoch or current.lost is not None:
            return 0
        placed = current.assembler.place_given(step, *key, start, memoryview(data), now)
        self._advance(now)
        return placed

    # ---- advancing ----

    def _advance(self, now: float | None) -> None:
        """Apply every step that is ready, in order; notice when the oldest one can no longer become so."""
        current = self._epoch
        if current is not None and current.uploaded is not None:
            self._join(current, current.uploaded, now)
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
        slot = current.assembler.slot(step)
        records = current.book.get(step)
        unknown = self._accounts.before(step, current.book, records, current.timeline.at(step).optimizer)
        if unknown is not None:
            return unknown
        expected = next((record.digest for record in records if record.digest), b"")
        change, constants = current.timeline.begins(step), self._accounts.constants
        try:
            if change is not None:
                # A replay of its own, so that the one of the step before is there should this step fail.
                before = current.timeline.at(step - 1).optimizer
                replay, constants = carried_over(change, before, self._base, constants)
            replay.apply(slot, records[0].update)
            tensors = replay.snapshot()
            digest = replay.parameter_digest() if expected else b""
        except Exception as error:  # whatever torch raises, the step before stays valid
            self._undo(replay)
            return Gap(step, GapReason.DIGEST_MISMATCH, f"the optimizer step cannot be replayed: {error}")
        if digest != expected:
            self._undo(replay)
            detail = f"parameters have digest {digest.hex()}, the ranks' have {expected.hex()}"
            return Gap(step, GapReason.DIGEST_MISMATCH, detail)
        applied_at = now if now is not None else slot.complete_at or 0.0
        report = StepReport(
            current.number, step, slot.received_bytes, slot.first_byte_at, slot.complete_at, applied_at,
            repaired_bytes=slot.repaired_bytes, peer_bytes=slot.peer_bytes,
        )  # fmt: skip
        self._replay, self._accounts.constants = replay, constants
        self._base, self._applied = tensors, step
        self._publish(current, records, report, slot.gradient())
        current.assembler.release()
        current.requests.progressed()
        return None

    def _undo(self, replay: Replay) -> None:
        if replay is self._replay:
            replay.restore(self._base)

    def _publish(self, current: Epoch, records: Sequence[RankStep], report: StepReport, gradient: bytes | None) -> None:
        """Make the present state, which is that after the report's step, a recovery point.

        Not where an object of the trainer's state is not accounted for; the shadow goes on from the state all the same.
        """
        in_force = current.timeline.at(report.step)
        gap = self._accounts.after(report.step, current.book, records, in_force.layout, self._base)
        if gap is not None:
            current.book.release(report.step)
            self._report_loss(current, gap)
            return
        snapshot = Snapshot(
            self._job.name, self._group.name, current.number, report.step, in_force.layout, in_force.optimizer,
            tuple(records), self._base, gradient, self._accounts.constants,
        )  # fmt: skip
        self._held.append(snapshot)
        self.history.replicated(report)
        self.count(replicated_steps=1, repaired_bytes=report.repaired_bytes, peer_bytes=report.peer_bytes)
        current.book.release(report.step)
        self._events.append(StepReplicated(snapshot, report))

    def _join(self, current: Epoch, step: int, now: float | None) -> None:
        """Publish the uploaded state of `step` once all ranks' records of it are there, or give it up."""
        gap: Gap | None = None
        if current.book.missing(step) or current.book.unlisted(step):
            # Where the next step is complete already this one's records are late by a step: they were lost.
            if not (current.lost is None and current.ready):
                return
            gap = current.explain(step)
        else:
            gap = disagreement(current.book, step) or unknown_layout(current.assembler, current.book, step)
            optimizer = current.timeline.at(step).optimizer
            gap = gap or self._accounts.before(step, current.book, current.book.get(step), optimizer)
            gap = gap or self._digest_gap(current, step)
            if gap is not None:
                # Nothing may follow from a state that is not the ranks'.
                self._replay = None
        current.uploaded = None
        if gap is None:
            report = StepReport(current.number, step, 0, None, None, now if now is not None else 0.0)
            self._publish(current, current.book.get(step), report, None)
            return
        self._report_loss(current, gap)
        if self._replay is None and current.lost is None:
            detail = f"the state that was uploaded of step {step} is not the ranks'"
            self._lose(current, Gap(current.assembler.next_step, GapReason.RESYNC_PENDING, detail))

    def _lose(self, current: Epoch, gap: Gap) -> None:
        current.lost = gap
        if not current.resyncs:
            current.book.drop()
        self._report_loss(current, gap)
