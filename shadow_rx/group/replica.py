"""The replica of one data-parallel group: attach, collect, apply, and say where it is. A pure object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jobspec.reasons import GapReason
from jobspec.sidechannel import side_channel_pb2 as pb
from placement.assembler import Assembler
from placement.discard import Discard
from placement.plan import plan_slots
from placement.segments import Replica, Segments
from shadow_rx.apply.model import tensor_bytes
from shadow_rx.apply.upload import PreparedState, UploadPlan
from shadow_rx.errors import Refusal, ShadowError, invalid, premature
from shadow_rx.group.epoch import Epoch
from shadow_rx.group.history import History
from shadow_rx.group.progress import EXPLAINED, GroupProgress
from shadow_rx.peers.frames import FrameKey, PeerRepair, PeerRequest, Piece, give_applied, give_collected
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.group_status import Attached, Gap, StateAdopted, StepReport
from shadow_rx.trainer.description import parse_optimizer
from shadow_rx.trainer.records import RecordBook


class GroupReplica(GroupProgress):
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
        begun = Epoch(
            message.epoch, layout, optimizer, assembler, book,
            communicator=message.communicator, resyncs=message.uploads_on_demand,
            peers=self._repair is not None,
        )  # fmt: skip
        # The last thing that can be refused: until now nothing has changed.
        for change in message.changes:
            self._change(begun, change)
        self._close_epoch()
        self._epoch = begun
        self._accounts.begin(listed)
        if not keeps:
            self._replay = None
            self._base = {}
        trained = max(first - 1, message.current_step) if message.rejoin else first - 1
        need_state = not keeps and not message.rejoin
        undeclared = self._accounts.undeclared(layout)
        self._events.append(Attached(self._group.name, message.epoch, trained, need_state, message.rejoin, undeclared))
        self._times.begin(trained)
        if message.rejoin:
            self._rejoin(begun, message.current_step)
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
        self._report_absence(current)
        stored = max(first - 1, self.history.replica_step)
        self._trained = max(stored, trained)
        current.slide(self._trained + 1)
        detail = "the shadow node was started again, and was not there when the step was trained"
        current.lost = Gap(stored + 1, GapReason.RESYNC_PENDING, detail)
        # The newest step's state may still be uploaded; not so those of the steps before it.
        for step in range(max(stored + 1, self._trained - EXPLAINED), self._trained):
            self._report_loss(current, Gap(step, GapReason.RESYNC_PENDING, detail))

    def _report_absence(self, current: Epoch) -> None:
        """Report the steps between the newest point of this node's own and the one that another node gave."""
        adopted = self._adopted
        if adopted is None or adopted.snapshot.epoch != current.number:
            return
        last = adopted.snapshot.step
        detail = f"the shadow node was started again without it, with the state of step {last} of {adopted.peer}"
        for step in range(max(current.assembler.first_step, adopted.since, last - EXPLAINED), last):
            self._report_loss(current, Gap(step, GapReason.RESYNC_PENDING, detail))

    def adopt(self, snapshot: Snapshot, peer: str, now: float) -> None:
        """Take at time `now`, before the first attach and after `resume`, a point that shadow node `peer` gave.

        It is a recovery point here as it is there, not on storage yet; a communicator that attaches with `rejoin` goes
        on from it as from one that was on storage.

        Raises:
            ShadowError: the group has attached, the point is not newer than what is here, or memory would not suffice.
        """
        if self._epoch is not None:
            raise premature("epoch", f"group {self._group.name!r} has attached already")
        here, point = (self.history.epoch, self.history.replica_step), (snapshot.epoch, snapshot.step)
        if point <= here:
            raise premature("step", f"step {point[1]} of epoch {point[0]} is not newer than {here[1]} of {here[0]}")
        nbytes = tensor_bytes(snapshot.tensors) + tensor_bytes(snapshot.constants)
        self._check_memory("data", nbytes * (1 + self._options.store_copies))
        since = here[1] + 1 if here[0] == snapshot.epoch else 1
        self._adopted = StateAdopted(snapshot, peer, since)
        self._held.append(snapshot)
        self.history.adopt(StepReport(snapshot.epoch, snapshot.step, 0, None, None, now))
        self._trained = snapshot.step
        self._events.append(self._adopted)

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

    def plan_upload(self, epoch: int, step: int) -> UploadPlan:
        """Return what the state after `step` has to be (any step before the first means the one before that).

        From now on what is collected from ``step + 1`` on is kept: the state is on its way.

        Raises:
            ShadowError: another epoch, or a first state when a step is applied already.
        """
        current = self._current(epoch)
        first, options = current.assembler.first_step, self._options
        if step < first and current.assembler.next_step > first:
            raise premature("epoch", f"step {first} of epoch {epoch} is applied already; the state cannot be replaced")
        if step:
            current.coming = step
        at = max(step, first - 1)
        in_force = current.timeline.at(at)
        gradients = in_force.layout.nbytes * (options.hold + options.store_copies)
        room = options.memory_limit - gradients - current.assembler.plan.nbytes * options.window
        copies = 2 + options.hold + options.store_copies
        constants = self._accounts.needed(in_force.layout)
        return UploadPlan(epoch, at, in_force.layout, in_force.optimizer, constants, copies, room)

    def take_upload(self, state: PreparedState, now: float | None = None, *, final: bool = False) -> bool:
        """Take a state that was prepared as `plan_upload` said.

        Args:
            state: the state.
            now: as in `on_replica`.
            final: no step will be trained after it: of use even where it was not asked for.

        Returns:
            Whether the shadow goes on from it; it does not where it has gone on by itself.

        Raises:
            ShadowError: what was planned holds no longer.
        """
        plan = state.plan
        current = self._current(plan.epoch)
        current.coming = None
        first, in_force = current.assembler.first_step, current.timeline.at(plan.step)
        if (in_force.layout, in_force.optimizer) != (plan.layout, plan.optimizer):
            raise premature("step", f"a change of step {plan.step} was announced while its state was uploaded")
        if plan.step < first:
            if current.assembler.next_step > first:
                message = f"step {first} of epoch {plan.epoch} was applied while the state was uploaded"
                raise premature("epoch", message)
            self._take_state(current, state)
        elif not self._usable(current, plan.step, final):
            return False
        else:
            self._resync(current, state, now)
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

    def expect_no_state(self, epoch: int) -> None:
        """Learn that the state that was planned does not come.

        Raises:
            ShadowError: another epoch.
        """
        self._current(epoch).coming = None

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
            self._look(current, replica, now)

    def _look(self, current: Epoch, replica: Replica, now: float) -> None:
        """Go on where a step became complete, or where `replica`, which was placed last, lies beyond the window."""
        self._advance(now)
        beyond = current.assembler.next_step + current.assembler.window
        if current.lost is not None and current.assembler.overrun and current.assembler.overrun[0] == beyond:
            # While a state is awaited the newest steps are the ones to keep. One step at a time: a damaged
            # position may name any. What moves the window further are the ranks' records.
            current.slide(current.assembler.next_step + 1)
            current.assembler.place(replica, now)

    def on_segments(self, segments: Segments, now: float) -> None:
        """Do what `on_replica` and `on_damaged` do for each of `segments`, in order."""
        intact = len(segments) - int(np.count_nonzero(segments.damaged))
        self._packets += intact
        self._payload_bytes += int(segments.lengths.sum(where=~segments.damaged))
        if intact:
            self.last_replica_at = now
        at = 0
        while at < len(segments):
            current = self._epoch
            if current is None or (current.lost is not None and not current.resyncs):
                cause = Discard.UNKNOWN_CONNECTION if current is None else Discard.RESYNC_PENDING
                self._discarded[cause] += len(segments) - at - int(np.count_nonzero(segments.damaged[at:]))
                return
            at, look = current.assembler.place_segments(segments, at, now)
            if look:
                self._look(current, segments.replica(at - 1), now)

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

    def use_no_peers(self, now: float) -> None:
        """Wait for other shadow nodes no longer, from time `now` on."""
        self._repair = None
        if self._epoch is not None:
            self._epoch.peers = False
            self._advance(now)

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
