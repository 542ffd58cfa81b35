"""What is known of one data-parallel group: its epoch, its history, what it is waiting for, and what it tells."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace

from jobspec.layout import Layout
from jobspec.model import Flow, Group, Job
from jobspec.reasons import GapReason
from jobspec.sidechannel import side_channel_pb2 as pb
from placement.discard import Discard
from shadow_rx.apply.model import Replay, Tensors, digest_difference
from shadow_rx.errors import Refusal, ShadowError, check_step, invalid, premature
from shadow_rx.group.epoch import SHOWN_GAPS, Epoch
from shadow_rx.group.history import History
from shadow_rx.options import ShadowOptions
from shadow_rx.peers.frames import PeerRepair
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.group_status import Event, Gap, GroupStatus, StateAdopted, StepLost, StepReport
from shadow_rx.status.health import Health, Lag, Totals
from shadow_rx.status.step_times import StepTimes
from shadow_rx.status.survey import buffers, coverage, durable_lag, replica_lag
from shadow_rx.trainer.accounts import StateAccounts
from shadow_rx.trainer.description import OptimizerPlan, parse_layout


class GroupState:
    """The state of a group's replica, and the questions that it answers; `shadow_rx.group.replica` changes it."""

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
        self._accounts = StateAccounts(job.state_manifest)
        self._events: list[Event] = []
        self._times = StepTimes()
        self._totals = Totals()
        self._repair: PeerRepair | None = None
        self._adopted: StateAdopted | None = None
        self._packets = 0
        self._payload_bytes = 0
        self._discarded: Counter[Discard] = Counter()
        self.last_replica_at: float | None = None
        """Time of the newest intact replica."""

    def _current(self, epoch: int) -> Epoch:
        if self._epoch is None:
            raise premature("epoch", f"group {self._group.name!r} has not attached yet")
        if epoch != self._epoch.number:
            raise premature("epoch", f"{epoch} is not the present epoch {self._epoch.number}")
        return self._epoch

    def _report_loss(self, current: Epoch, gap: Gap) -> None:
        if self.history.lost(gap):
            self._events.append(StepLost(self._group.name, current.number, gap))

    def _close_epoch(self) -> None:
        """Note every step that the ending epoch leaves incomplete."""
        if self._epoch is not None:
            self._discarded.update(self._epoch.assembler.discarded)
            for gap in self._epoch.unfinished(self._trained):
                self._report_loss(self._epoch, gap)

    def explain(self, step: int) -> Gap | None:
        """Return why `step` is no recovery point on storage; None when it is, or was until newer came."""
        if self.history.is_replicated(step):
            return self.history.storage_gap(step)
        current = self._epoch
        if current is not None and (step >= current.oldest or step == current.uploaded):
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
        if current is None or step == current.uploaded:
            return False
        if current.lost is not None:
            # A state of a step that lies before the bytes that are collected would be of no use any more.
            return not current.resyncs or step < max(current.lost.step, current.assembler.next_step - 1)
        return step < current.assembler.next_step

    @property
    def state_from(self) -> int | None:
        """The trainer is asked for its state after a step from this one on; None while none is needed."""
        current = self._epoch
        if current is None or not current.resyncs or self._unknown_flows(current):
            return None
        if current.lost is None:
            if self._replay is None or not current.overtaken:
                return None
        elif current.lost.reason is GapReason.UNKNOWN_LAYOUT:
            return None  # the next step's bytes could not be placed either
        return max(current.oldest, current.assembler.next_step - 1, current.requests.earliest)

    def asks(self, rank: int) -> pb.RecordReply:
        """Return what this shadow needs of `rank`."""
        current, state_from = self._epoch, self.state_from
        return pb.RecordReply(
            state_wanted=state_from is not None,
            state_from=state_from or 0,
            flows_unknown=current is not None and rank in {flow.rank for flow in self._unknown_flows(current)},
            list_wanted=current is not None and current.book.wants_list(rank),
        )

    def _unknown_flows(self, current: Epoch) -> list[Flow]:
        return [flow for flow in self._flows.values() if current.assembler.port_of(flow.id) is None]

    def status(self, now: float | None = None) -> GroupStatus:
        """Return the three step numbers, the gaps and the counters at time `now` (None: the newest that was told)."""
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
            state_from=self.state_from,
            confirmed=self._confirmed(),
            health=self._health(max(self._times.tell(now), self.last_replica_at or 0.0)),
        )

    def _confirmed(self) -> tuple[str, ...]:
        newest = self.held(0)
        return newest.confirmed if newest is not None else ()

    def _health(self, now: float) -> Health:
        current, history = self._epoch, self.history
        assembler = current.assembler if current is not None else None
        behind = Lag()
        if current is not None and self._trained > history.replica_step:
            oldest = history.replica_step + 1
            gap, since = self.explain(oldest), self._times.since(oldest)
            behind = replica_lag(current, self._trained, history.replica_step, since, now, gap)
        return Health(
            replica_lag=behind,
            durable_lag=durable_lag(history, assembler.plan.layout.nbytes if assembler else 0, now),
            collecting=assembler.next_step if assembler is not None else 0,
            coverage=coverage(assembler) if assembler is not None else (),
            buffers=buffers(assembler, self._base, self._replay is not None, self._held, self._options),
            totals=replace(
                self._totals,
                stored_steps=history.stored_total,
                lost_steps={str(reason): count for reason, count in sorted(history.lost_total.items())},
                unstored_steps={str(reason): count for reason, count in sorted(history.unstored_total.items())},
            ),
        )

    @property
    def step_seconds(self) -> float:
        """Mean seconds from one announced step to the next, 0 where it is not known."""
        return self._times.step_seconds

    def count(self, **more: int) -> None:
        """Add to the totals."""
        self._totals = replace(
            self._totals, **{name: getattr(self._totals, name) + count for name, count in more.items()}
        )

    def room(self) -> int:
        """Return the bytes that storing may take: what the limit leaves beside collecting, applying and holding."""
        live = self._replay is not None
        assembler = self._epoch.assembler if self._epoch is not None else None
        used = buffers(assembler, self._base, live, self._held, self._options)
        return max(0, used.memory_limit - used.reserved_bytes)

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

    def _repeats(self, message: pb.AttachRequest) -> bool:
        current = self._epoch
        return (
            current is not None
            and message.job == self._job.name
            and message.communicator != ""
            and (message.epoch, message.communicator) == (current.number, current.communicator)
        )

    def _check_attach(self, message: pb.AttachRequest) -> Layout:
        if message.job != self._job.name:
            raise invalid("job", f"{message.job!r}, this shadow serves job {self._job.name!r}")
        newest = self._epoch.number if self._epoch else 0
        if message.epoch <= newest:
            raise premature("epoch", f"{message.epoch} is not newer than epoch {newest}; expected {newest + 1} or more")
        if message.rejoin and message.epoch < self.history.epoch:
            raise premature("epoch", f"{message.epoch} is over: recovery points of {self.history.epoch} are stored")
        if message.first_step < 1:
            raise invalid("first_step", "is 0, expected 1 or more")
        check_step("first_step", message.first_step)
        check_step("current_step", message.current_step)
        return parse_layout(message.layout_json)

    def _check_memory(self, field: str, need: int) -> None:
        limit = self._options.memory_limit
        if need > limit:
            message = f"needs {need} bytes, the limit is {limit}; raise it, or use a smaller window"
            raise ShadowError(Refusal.RESOURCE_EXHAUSTED, field, message)

    def _holds(self, step: int, layout: Layout, optimizer: OptimizerPlan) -> bool:
        old = self._epoch.timeline.at(step) if self._epoch is not None else None
        return (
            old is not None
            and self._replay is not None
            and self._applied == step
            and self.history.is_replicated(step)
            and [slot.param for slot in old.layout.slots] == [slot.param for slot in layout.slots]
            and optimizer.same_state(old.optimizer)
        )

    def _digest_gap(self, current: Epoch, step: int) -> Gap | None:
        if self._replay is None:
            return None
        differs = digest_difference(current.book.get(step), self._replay, self._base)
        return Gap(step, GapReason.DIGEST_MISMATCH, f"the uploaded {differs}") if differs is not None else None
