"""The replica of one data-parallel group: its parts, and what the trainer tells them. A pure object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checkmate_common.recovery.reasons import GapReason
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.stream.layout import Layout
from jobspec.model import Flow, Group, Job
from shadow_rx.apply.model import tensor_bytes
from shadow_rx.apply.upload import PreparedState, UploadPlan, prepare
from shadow_rx.errors import check_step, invalid, wrong_state
from shadow_rx.group.arrivals import Arrivals
from shadow_rx.group.epoch import Epoch, begin_epoch
from shadow_rx.group.ledger import Ledger
from shadow_rx.group.progress import EXPLAINED, Progress
from shadow_rx.group.survey import buffers, survey
from shadow_rx.options import ShadowOptions
from shadow_rx.peers.exchange import PeerExchange
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.events import Attached, StateAdopted
from shadow_rx.status.group_status import Gap, GroupStatus, StepReport
from shadow_rx.status.step_times import StepTimes
from shadow_rx.trainer.declared import StateCheck
from shadow_rx.trainer.description import parse_layout


class GroupReplica:
    """Follows one group step by step. What a call brings about is told by the ledger's events.

    Memory (stated bound): ``window`` times (gradient + 64 bytes for each copy of a frame) for collecting, twice that
    while an attach replaces the buffers; ``1 + hold`` times the model's state (parameters and optimizer); records
    of at most ``pending_records`` steps.
    """

    def __init__(self, job: Job, group: Group, flows: Sequence[Flow], options: ShadowOptions) -> None:
        """Follow `group` of `job`, whose replicas arrive on `flows`."""
        self._job, self._group, self._flows, self._options = job, group, flows, options
        self._used_ports: dict[int, set[int]] = {flow.id: set() for flow in flows}
        self._check = StateCheck(job.state_manifest)
        self.ledger = Ledger(group.name, options.hold)
        """What became of its steps, and the events that tell of it."""
        self.times = StepTimes()
        """When its steps were announced."""
        self._adopted: StateAdopted | None = None
        self.progress = Progress(job.name, group.name, flows, self._check, self.ledger)
        """Where the group is, and why no further."""
        self.arrivals = Arrivals(self.progress)
        """Takes replicas."""
        self.peers = PeerExchange(job, group, self.progress, self.ledger)
        """Fills holes from other shadow nodes, and theirs from here."""

    # ---- questions ----

    def needs(self, rank: int) -> pb.RecordReply:
        """Return what this shadow needs of `rank`."""
        current, state_from = self.progress.epoch, self.progress.state_from
        return pb.RecordReply(
            state_wanted=state_from is not None,
            state_from=state_from or 0,
            flows_unknown=rank in {flow.rank for flow in self.progress.unknown_flows()},
            list_wanted=current is not None and current.book.wants_list(rank),
        )

    def status(self, now: float | None = None) -> GroupStatus:
        """Return the three step numbers, the gaps and the counters at time `now` (None: the newest that was told)."""
        now = max(self.times.tell(now), self.arrivals.last_at or 0.0)
        waiting_since = self.times.since(self.ledger.history.replica_step + 1)
        return survey(self._group.name, self.progress, self.ledger, self.arrivals, self._options, waiting_since, now)

    def room(self) -> int:
        """Return the bytes that storing may take: what the limit leaves beside collecting, applying and holding."""
        used = buffers(self.progress, self.ledger.points, self._options)
        return max(0, used.memory_limit - used.reserved_bytes)

    # ---- before the first attach ----

    def resume(self, points: Iterable[tuple[int, int]], losses: Iterable[tuple[int, Gap]] = ()) -> None:
        """Learn which recovery points, as (epoch, step), are on storage, and what was lost.

        The points are durable at once. A communicator of the newest of these epochs that attaches with `rejoin` goes
        on from them; another one of such an epoch begins a new history.
        """
        for epoch, step in sorted(points):
            self.ledger.history.resume(epoch, step)
        for epoch, gap in losses:
            self.ledger.history.resume_loss(epoch, gap)
        self.progress.trained = self.ledger.history.replica_step

    def adopt(self, snapshot: Snapshot, peer: str, now: float) -> None:
        """Take at time `now`, after `resume`, a recovery point that shadow node `peer` gave.

        It is a recovery point here as it is there, not on storage yet; a communicator that attaches with `rejoin` goes
        on from it as from one that was on storage.

        Raises:
            ShadowError: the group has attached, the point is not newer than what is here, or memory would not suffice.
        """
        if self.progress.epoch is not None:
            raise wrong_state("epoch", f"group {self._group.name!r} has attached already")
        here, point = (self.ledger.history.epoch, self.ledger.history.replica_step), (snapshot.epoch, snapshot.step)
        if point <= here:
            raise wrong_state("step", f"step {point[1]} of epoch {point[0]} is not newer than {here[1]} of {here[0]}")
        nbytes = tensor_bytes(snapshot.tensors) + tensor_bytes(snapshot.constants)
        self._options.check_memory("data", nbytes * (1 + self._options.store_copies))
        since = here[1] + 1 if here[0] == snapshot.epoch else 1
        self._adopted = StateAdopted(snapshot, peer, since)
        self.ledger.adopted(self._adopted, StepReport(snapshot.epoch, snapshot.step, 0, None, None, now))
        self.progress.trained = snapshot.step

    # ---- epochs ----

    def attach(self, message: pb.AttachRequest) -> bool:
        """Begin an epoch; tell whether the state before its first step has to be uploaded.

        The same communicator may attach again: it learns what is still needed. One that runs already (`rejoin`)
        attaches to a shadow that was started again meanwhile; that one asks for a state as after a loss.

        The shadow's own state is good enough only when it is a recovery point of step ``first_step - 1``: a state
        that was uploaded but never advanced may be another run's, whose step numbers only look the same.

        Raises:
            ShadowError: the description is not usable, the epoch is not newer, or memory would not suffice.
        """
        present, state = self.progress.epoch, self.progress.state
        if present is not None and self._repeats(message, present):
            return not state.usable and present.lost is None
        layout = self._check_attach(message)
        begun = begin_epoch(self._job, self._group, self._flows, message, layout, self._options)
        begun.peers = self.peers.started
        listed = self._check.listed(message)
        # Until now nothing has changed, and from here on nothing can be refused.
        first = message.first_step
        keeps = (
            present is not None
            and not message.rejoin
            and state.step == first - 1
            and self.ledger.history.is_replicated(first - 1)
            and state.leads_to(layout, begun.optimizer, present.timeline)
            and self._check.holds(listed, state.constants)
        )
        self.arrivals.end_epoch()
        self.progress.begin(begun, keep_state=keeps)
        self._check.begin(listed)
        trained = max(first - 1, message.current_step) if message.rejoin else first - 1
        need_state = not keeps and not message.rejoin
        undeclared = self._check.undeclared(listed, layout)
        self.ledger.add(Attached(self._group.name, message.epoch, trained, need_state, message.rejoin, undeclared))
        self.times.begin(trained)
        if message.rejoin:
            self._rejoin(begun, message.current_step)
        else:
            self.ledger.begin(message.epoch, first)
            self.progress.trained = first - 1
        return need_state

    def _repeats(self, message: pb.AttachRequest, present: Epoch) -> bool:
        same = (message.epoch, message.communicator) == (present.number, present.communicator)
        return same and message.job == self._job.name and message.communicator != ""

    def _check_attach(self, message: pb.AttachRequest) -> Layout:
        if message.job != self._job.name:
            raise invalid("job", f"{message.job!r}, this shadow serves job {self._job.name!r}")
        newest = self.progress.epoch.number if self.progress.epoch else 0
        if message.epoch <= newest:
            expected = f"expected {newest + 1} or more"
            raise wrong_state("epoch", f"{message.epoch} is not newer than epoch {newest}; {expected}")
        stored = self.ledger.history.epoch
        if message.rejoin and message.epoch < stored:
            raise wrong_state("epoch", f"{message.epoch} is over: recovery points of {stored} are stored")
        if message.first_step < 1:
            raise invalid("first_step", "is 0, expected 1 or more")
        check_step("first_step", message.first_step)
        check_step("current_step", message.current_step)
        return parse_layout(message.layout_json)

    def _rejoin(self, current: Epoch, trained: int) -> None:
        """Go on in an epoch that this shadow was not there for: report its steps so far, await a state."""
        first = current.assembler.first_step
        self.ledger.history.rejoin(current.number, first)
        self._report_absence(current)
        stored = max(first - 1, self.ledger.history.replica_step)
        self.progress.trained = max(stored, trained)
        current.slide(self.progress.trained + 1)
        detail = "the shadow node was started again, and was not there when the step was trained"
        current.lost = Gap(stored + 1, GapReason.RESYNC_PENDING, detail)
        # The newest step's state may still be uploaded; not so those of the steps before it.
        steps = range(max(stored + 1, self.progress.trained - EXPLAINED), self.progress.trained)
        self.ledger.lost(current.number, [Gap(step, GapReason.RESYNC_PENDING, detail) for step in steps])

    def _report_absence(self, current: Epoch) -> None:
        """Report the steps between the newest point of this node's own and the one that another node gave."""
        adopted = self._adopted
        if adopted is None or adopted.epoch != current.number:
            return
        last = adopted.step
        detail = f"the shadow node was started again without it, with the state of step {last} of {adopted.peer}"
        steps = range(max(current.assembler.first_step, adopted.since, last - EXPLAINED), last)
        self.ledger.lost(current.number, [Gap(step, GapReason.RESYNC_PENDING, detail) for step in steps])

    def open_flow(self, message: pb.OpenFlowRequest) -> None:
        """Learn the source port of a flow's connection in this epoch.

        Raises:
            ShadowError: another epoch, a flow of another group, or a port that the flow used in an earlier epoch (late
                segments of that connection could not be told from new ones) or has changed within the epoch.
        """
        current, flow_id, source_port = self.progress.present(message.epoch), message.flow_id, message.source_port
        if flow_id not in self._used_ports:
            raise invalid("flow_id", f"{flow_id} is not a flow of group {self._group.name!r}")
        if not 1 <= source_port <= 65535:
            raise invalid("source_port", f"{source_port}, expected 1..65535")
        port = current.assembler.port_of(flow_id)
        if port == source_port:
            return
        if port is not None:
            problem = f"flow {flow_id} has port {port} in epoch {message.epoch}; a new connection needs a new epoch"
            raise wrong_state("source_port", problem)
        if source_port in self._used_ports[flow_id]:
            problem = f"flow {flow_id} used port {source_port} in an earlier epoch; choose another"
            raise wrong_state("source_port", problem)
        self._used_ports[flow_id].add(source_port)
        current.assembler.open(flow_id, source_port)

    def change(self, message: pb.ChangeRequest) -> None:
        """Learn that layout or optimizer are others from a step on that is not settled yet.

        Raises:
            ShadowError: another epoch, not usable, or late; or memory would not suffice.
        """
        self.progress.present(message.epoch).change(message, self._flows, self._options)

    # ---- steps ----

    def record(self, message: pb.StepRecord, now: float | None = None) -> None:
        """Take a rank's record of a step at time `now`.

        Raises:
            ShadowError: another epoch, a field is wrong, or another record of this rank and step came before.
        """
        current, progress = self.progress.present(message.epoch), self.progress
        if not current.book.add(message) and not message.state_objects:
            return
        progress.trained = max(progress.trained, message.step)
        self.times.announced(progress.trained, self.times.tell(now))
        if current.lost is not None and current.resyncs:
            # Ranks are at most one step apart: bytes of this step and of the next one may be on their way.
            current.slide(progress.trained + 2 - current.assembler.window)
        progress.advance(now)

    # ---- uploaded states ----

    def upload(self, epoch: int, data: bytes, now: float | None = None, step: int = 0, *, final: bool = False) -> bool:
        """Take the state after a step, a safetensors file that came whole: the three calls below in one.

        Raises:
            ShadowError: as they do.
        """
        return self.take_upload(prepare(self.plan_upload(epoch, step), data), now, final=final)

    def plan_upload(self, epoch: int, step: int) -> UploadPlan:
        """Return what the state after `step` has to be (any step before the first means the one before that).

        From now on what is collected from ``step + 1`` on is kept: the state is on its way, until `take_upload` or
        `cancel_upload`. Between them `shadow_rx.apply.upload.prepare` works without this object.

        Raises:
            ShadowError: another epoch, or a first state when a step is applied already.
        """
        current, options = self.progress.present(epoch), self._options
        first = current.assembler.first_step
        if step < first and current.assembler.next_step > first:
            raise wrong_state(
                "epoch", f"step {first} of epoch {epoch} is applied already; the state cannot be replaced"
            )
        if step:
            current.uploading = step
        at = max(step, first - 1)
        in_force = current.timeline.at(at)
        gradients = in_force.layout.nbytes * (options.hold + options.store_copies)
        room = options.memory_limit - gradients - current.assembler.plan.nbytes * options.window
        copies = 2 + options.hold + options.store_copies
        constants = self._check.needed(in_force.layout)
        return UploadPlan(epoch, at, in_force.layout, in_force.optimizer, constants, copies, room)

    def take_upload(self, state: PreparedState, now: float | None = None, *, final: bool = False) -> bool:
        """Take a state that was prepared as `plan_upload` said.

        Args:
            state: the state.
            now: the time.
            final: no step will be trained after it: of use even where it was not asked for.

        Returns:
            Whether the shadow goes on from it; it does not where it has gone on by itself.

        Raises:
            ShadowError: what was planned holds no longer.
        """
        plan, current = state.plan, self.progress.present(state.plan.epoch)
        current.uploading = None
        in_force = current.timeline.at(plan.step)
        if (in_force.layout, in_force.optimizer) != (plan.layout, plan.optimizer):
            raise wrong_state("step", f"a change of step {plan.step} was announced while its state was uploaded")
        return self.progress.take_state(state, now, final=final)

    def cancel_upload(self, epoch: int) -> None:
        """Learn that the state that was planned does not come.

        Raises:
            ShadowError: another epoch.
        """
        self.progress.present(epoch).uploading = None
