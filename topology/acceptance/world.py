"""A training in the simulation with faults, of which everything is watched: each state, point, number and reason."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from checkmate_common.recovery.point import RecoveryPoint, RecoveryPointError
from checkmate_common.recovery.reasons import GapReason
from nccl_emu.errors import SideChannelError
from nccl_emu.shadow_client.restore import restore_trainer
from nccl_emu.shadow_client.shadow_session import ShadowSession
from nccl_emu.training.digits import Digits
from nccl_emu.training.trainer import DataParallelTrainer
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.publish.snapshot import to_recovery_point
from shadow_rx.publish.store_queue import STORE_COPIES
from shadow_rx.status.events import Event, StepLost, StepNotStored, StepReplicated, StepResynced, StepStored
from shadow_rx.status.group_status import Gap
from shadow_rx.store.api import open_store
from topology.acceptance.background import TimedSender
from topology.acceptance.excuses import AFTER_LATE, AFTER_RESTART, Excuse, ExcuseBook
from topology.acceptance.plan import COMPUTE_S, Moment, TrialPlan
from topology.acceptance.record import RunRecord, StepNumbers
from topology.acceptance.scenarios import Injection
from topology.acceptance.shadow import LossyChannel, RestartableShadow
from topology.acceptance.truth import StepTruth, point_difference, truth_of
from topology.fabric.roles import place_of
from topology.processes.switch_pair import Failure, SwitchPair
from topology.simulation.event_loop import Simulation
from topology.simulation.links import Impairments, Link
from topology.simulation.ring_simulation import RingSimulation
from topology.simulation.simulated_switch import InstalledSwitch, SimulatedSwitch

_DEPTH = 4
"""Points that may wait for storage, as by default of a node."""
_FRAMES_BYTES = 1 << 13
"""What a step's buffer has besides the gradient, at most."""
_SETTLE_S = 1.0
"""Virtual seconds after which everything that was killed for a while is there again."""


class AcceptanceWorld:
    """The network of one run, its shadow node, and its ranks over all epochs."""

    def __init__(self, plan: TrialPlan, truth: dict[int, StepTruth], root: Path, record: RunRecord) -> None:
        """Build the network; nothing is sent yet.

        Args:
            plan: what happens when.
            truth: what training must give, by step.
            root: folder of the shadow node's store.
            record: takes what is found out.
        """
        self.plan, self.record = plan, record
        self.job, self.group = plan.job, plan.job.groups[0]
        self.stored: set[tuple[int, int]] = set()
        """Epoch and step of every recovery point that was called durable."""
        self.gaps: dict[int, Gap] = {}
        """First reason that was given for a step in the epoch that it belongs to."""
        self.excuses = ExcuseBook(plan.injections)
        """What the faults may have cost."""
        self._first = self._at = 1
        self._truth, self._root = truth, root
        self._rng = random.Random(f"world/{plan.scenario}/{plan.seed}")
        self._repaired: set[int] = set()
        self._resynced: set[int] = set()
        self._pair = SwitchPair(self.job, plan.seed) if plan.switch_death is not None else None
        self._switch: SimulatedSwitch = self._pair or InstalledSwitch(self.job)
        try:
            self._build()
        except BaseException:
            self._switch.close()
            raise

    def _build(self) -> None:
        plan = self.plan
        self.simulation = Simulation({self.job.switch.name: self._switch.forward})
        slow = plan.slow_storage
        rng = random.Random(f"storage/{plan.scenario}/{plan.seed}")
        self.shadow = RestartableShadow(
            self.job, self._root, self.simulation, self._observe, self._shadow_lives, rng,
            self._little_memory() if slow is not None and slow.little_memory else ShadowOptions(),
            slow.depth if slow is not None else _DEPTH,
        )  # fmt: skip
        if plan.torn_write is not None:
            whole, share, self.shadow.torn_downtime = plan.torn_write
            self.shadow.files.tear = whole, share
        self.channel = LossyChannel(self.shadow, random.Random(f"side channel/{plan.scenario}/{plan.seed}"))
        rng = random.Random(f"replica/{plan.scenario}/{plan.seed}")
        self._replica_link = self._slow_link = Link(plan.links.replica, rng)
        if plan.congestion is not None:
            narrow = replace(plan.links.replica, rate=plan.congestion.rate, queue_bytes=plan.congestion.queue_bytes)
            self._slow_link = Link(narrow, rng)
        self._shadow_place = place_of(self.job, self.job.shadow(self.group.shadows[0]))
        there = Link(Impairments(), random.Random(0))
        self.simulation.attach(self._shadow_place, self.shadow, there, self._replica_link)
        self._senders_rng = random.Random(f"senders/{plan.scenario}/{plan.seed}")
        self._digits = Digits.load()
        self._epoch = 0
        self._rings: list[RingSimulation] = []
        self._pending = {(kind, moment) for kind, moments in (
            (Injection.SHADOW_RESTART, plan.shadow_restarts), (Injection.RANK_RESTART, plan.rank_restarts),
        ) for moment in moments}  # fmt: skip
        self._frames_before = 0

    @property
    def ring(self) -> RingSimulation:
        """The ranks."""
        return self._rings[-1]

    def begin(self, point: RecoveryPoint | None = None) -> None:
        """Begin an epoch with new ranks: from a recovery point alone, or from the seed.

        Raises:
            TestbedError: the connections do not come up.
        """
        trainers = [
            DataParallelTrainer(self.job, self.group, rank, self.plan.seed, self._digits)
            if point is None else restore_trainer(point, self.job, self.group, rank, self._digits)
            for rank in range(len(self.group.ring))
        ]  # fmt: skip
        self._epoch += 1
        self._first = self._at = trainers[0].step + 1
        self.channel.calls.trouble = 0.0
        if not self._rings:
            self._rings.append(RingSimulation(
                self.job, self.group, self.simulation, [self.channel], f"{self.plan.scenario}/{self.plan.seed}",
                self.plan.links, on_lost=self._refused, make_sender=self._sender,
            ))  # fmt: skip
        harm = self._harm
        self.ring.begin(trainers, self._epoch)
        if self._harm > harm:
            self.excuses.hole(self._at)  # a lost SYN may cost what follows it
        # These steps are trained again: why the epoch before had lost them is no reason any more.
        self.gaps = {step: gap for step, gap in self.gaps.items() if step < self._at}
        self.channel.calls.trouble = self.plan.side_channel_trouble

    def train(self, last: int) -> None:
        """Train up to step `last`, with all that is planned.

        Raises:
            TestbedError: training does not go on.
        """
        while (step := self.ring.trainers[0].step + 1) <= last:
            self._at = step
            self._note_late_records()
            if any(change.step == step for change in self.job.workload.changes):
                self.excuses.change(step)
            self._set_disk(step)
            self._set_link(step)
            self._arm_switch(step)
            frames, harm, died = self._frames, self._harm, self._switch_died
            if not self._train_step(step):
                continue
            if self._harm - harm > 1 or self._switch_died > died:
                self.excuses.hole(step)
            self._frames_before = self._frames - frames
            self._record_step(step)

    def _train_step(self, step: int) -> bool:
        """Train a step, with the deaths that are planned; tell whether it was finished."""
        due = sorted((entry for entry in self._pending if entry[1].step == step), key=lambda entry: entry[1].delay)
        passed, begun = -COMPUTE_S, False
        for kind, moment in due:
            if moment.delay >= 0 and not begun:
                self.simulation.drain(-passed)
                self.ring.compute(step)
                passed, begun = 0.0, True
            self.simulation.drain(moment.delay - passed)
            passed = moment.delay
            self._pending.remove((kind, moment))
            if kind is Injection.RANK_RESTART:
                self._restart_ranks(moment)
                return False
            if self.shadow.node is not None:
                self.shadow.kill(moment.lasts)
        if not begun:
            self.simulation.drain(-passed)
            self.ring.compute(step)
        self.ring.finish(step)
        return True

    def end(self, *, orderly: bool = True) -> None:
        """Close the connections in good order, with the trouble of side channel and disk at its end; or crash.

        Raises:
            TestbedError: the connections do not end.
        """
        self.simulation.drain(_SETTLE_S)
        if not orderly:
            self.ring.crash(silent=self._rng.random() < 0.5)
            self.simulation.drain(_SETTLE_S)
            self._sample(self.ring.trainers[0].step)
            return
        self.channel.calls.trouble = 0.0
        self._mend_disk()
        self.ring.end()
        self.simulation.drain(_SETTLE_S)
        self._sample(self.ring.trainers[0].step)

    def newest_durable(self) -> RecoveryPoint | None:
        """Return the newest recovery point as a user reads it from the store, None where there is none yet."""
        try:
            return open_store(self._root).latest(self.group.name)
        except RecoveryPointError:
            return None

    def explanation(self, step: int) -> Gap | None:
        """Return why a step is not on storage, as it was told first.

        That a recovery point is still on its way is no explanation when storage has nothing left to do, except where
        it waits for later ones to share a flush with, as the job wants it.
        """
        if step in self.gaps:
            return self.gaps[step]

        def ask(node: ShadowNode) -> Gap | None:
            history = node.core.group(self.group.name).ledger.history
            if history.is_replicated(step) and step <= history.replica_step - (self.job.store.every - 1):
                return None
            return node.explain(self.group.name, step)

        return self.shadow.alive(ask)

    def count(self) -> None:
        """Note how often each fault has happened."""
        self.record.excuses = self.excuses.all(self.plan.length.steps)
        every = self.job.store.every - 1
        if every:
            last = self.record.at_end.replica if self.record.at_end is not None else self.plan.length.steps
            self.record.excuses.append(Excuse("store.every", last - every + 1, last, (GapReason.OVERLOAD.value,)))
        hosts = [self.simulation.downlink(place_of(self.job, node.host)).stats for node in self.ring.nodes]
        hosts += [self.simulation.uplink(place_of(self.job, node.host)).stats for node in self.ring.nodes]
        replica, files, plan = self._replica_link.stats, self.shadow.files, self.plan
        everywhere = [*hosts, replica, *([self._slow_link.stats] if self._slow_link is not self._replica_link else [])]
        death = plan.switch_death
        died = self._switch_died
        counts = {
            Injection.LOSS_BEFORE: sum(stats.lost for stats in hosts),
            Injection.LOSS_AFTER: sum(stats.lost for stats in everywhere[len(hosts) :]),
            Injection.REORDER: sum(stats.reordered for stats in everywhere),
            Injection.DUPLICATE: sum(stats.duplicated for stats in everywhere),
            Injection.CORRUPT: sum(stats.corrupted for stats in everywhere),
            Injection.CONGESTION: self._slow_link.stats.overflowed,
            Injection.SIDE_CHANNEL: self.channel.calls.failed,
            Injection.SHADOW_RESTART: self.shadow.deaths - files.torn,
            Injection.OPTIMIZER_CHANGE: sum(
                change.step <= self.ring.trainers[0].step for change in self.job.workload.changes
            ),
            Injection.SWITCH_RESTART: died * (death is not None and death.downtime is not None),
            Injection.SWITCH_FAILOVER: died * (death is not None and death.downtime is None),
            Injection.RANK_RESTART: len(plan.rank_restarts)
            - sum(kind is Injection.RANK_RESTART for kind, _ in self._pending),
            Injection.FULL_DISK: files.refused,
            Injection.STORAGE_ERRORS: files.failed,
            Injection.SLOW_STORAGE: files.slow,
            Injection.TORN_WRITE: files.torn,
        }
        self.record.injected = {injection.value: counts[injection] for injection in Injection if counts[injection]}
        self.record.repaired, self.record.resynced = len(self._repaired), len(self._resynced)

    def close(self) -> None:
        """Stop everything."""
        self.shadow.close()
        self._switch.close()

    # ---- faults ----

    @property
    def _frames(self) -> int:
        return self._pair.frames if self._pair is not None else 0

    @property
    def _switch_died(self) -> int:
        return int(self._pair is not None and self._pair.has_failed)

    @property
    def _harm(self) -> int:
        """Replicas that did not arrive as they were sent."""
        links = {id(link): link.stats for link in (self._replica_link, self._slow_link)}.values()
        return sum(stats.lost + stats.overflowed + stats.corrupted for stats in links)

    @property
    def _oldest_open(self) -> int:
        """Oldest step of the epoch that is neither on storage nor explained yet; the present one where none is."""
        steps = range(self._first, self._at)
        return next((s for s in steps if (self._epoch, s) not in self.stored and s not in self.gaps), self._at)

    def _sender(self, session: ShadowSession) -> TimedSender:
        return TimedSender(session, self.simulation.after, self._senders_rng)

    def _little_memory(self) -> ShadowOptions:
        """Return the bounds of a node that has memory for as many points as it needs to work, and few more."""
        options = ShadowOptions(store_copies=STORE_COPIES)
        gradient = max(_nbytes(truth, "param/") for truth in self._truth.values())
        state = max(_nbytes(truth, "param/") + _nbytes(truth, "optim/") for truth in self._truth.values())
        point = max(_nbytes(truth, "") for truth in self._truth.values()) + gradient
        collecting = 2 * options.window * (2 * gradient + _FRAMES_BYTES)
        held = (2 + options.hold) * state + options.hold * gradient
        return replace(options, memory_limit=collecting + held + STORE_COPIES * point)

    def _set_disk(self, step: int) -> None:
        files, plan = self.shadow.files, self.plan
        if plan.full_disk is not None:
            first, last, left = plan.full_disk
            if not self._within(Injection.FULL_DISK, first, last, step):
                files.free = None
            elif files.free is None:
                files.free = left
        if plan.storage_errors is not None:
            first, last, chance = plan.storage_errors
            files.failing = chance if self._within(Injection.STORAGE_ERRORS, first, last, step) else 0.0
        slow = plan.slow_storage
        if slow is not None:
            if slow.first <= step <= slow.last:
                self._begin(Injection.SLOW_STORAGE)
                files.longest = slow.longest
            else:
                files.longest = None
                publisher = self.shadow.publisher
                if publisher is None or publisher.idle:
                    self.excuses.end(Injection.SLOW_STORAGE, step - 1)

    def _within(self, injection: Injection, first: int, last: int, step: int) -> bool:
        """Tell whether a fault of steps `first` to `last` is on in a step, and note when it begins and ends."""
        if first <= step <= last:
            self._begin(injection)
            return True
        self.excuses.end(injection, step - 1)
        return False

    def _begin(self, injection: Injection) -> None:
        if not self.excuses.is_open(injection):
            self.excuses.begin(injection, self._oldest_open)

    def _mend_disk(self) -> None:
        files = self.shadow.files
        files.free, files.failing, files.longest = None, 0.0, None

    def _note_late_records(self) -> None:
        """Note from when to when ranks have not told the step before the present one."""
        if any(sender.session.waiting for sender in self.ring.senders):
            if not self.excuses.is_open(Injection.SIDE_CHANNEL) and Injection.SIDE_CHANNEL in self.plan.injections:
                self._begin(Injection.SIDE_CHANNEL)
        else:
            self.excuses.end(Injection.SIDE_CHANNEL, self._at + AFTER_LATE)

    def _shadow_lives(self, alive: bool) -> None:
        """Note from when to when the shadow node is dead."""
        for injection in (Injection.SHADOW_RESTART, Injection.TORN_WRITE):
            if injection in self.plan.injections:
                if alive:
                    self.excuses.end(injection, self._at + AFTER_RESTART)
                else:
                    self._begin(injection)

    def _set_link(self, step: int) -> None:
        slow = self.plan.congestion
        if slow is not None:
            link = self._slow_link if slow.first <= step <= slow.last else self._replica_link
            self.simulation.replace_downlink(self._shadow_place, link)

    def _arm_switch(self, step: int) -> None:
        death = self.plan.switch_death
        if death is not None and self._pair is not None and step == death.step and not self._pair.has_failed:
            frames = max(1, int(death.share * self._frames_before))
            self._pair.arm(Failure(frames, death.downtime, death.torn))

    def _restart_ranks(self, moment: Moment) -> None:
        """Kill the ranks, and start them again from the newest durable recovery point."""
        self.ring.crash(silent=moment.silent)
        self.simulation.drain(_SETTLE_S)
        self.begin(self.newest_durable())

    # ---- what is found out ----

    def _refused(self, step: int, reason: str) -> None:
        """Go on where the shadow node refuses what it is told, as after a lost announcement: it will say why."""

    def _observe(self, event: Event) -> None:
        if isinstance(event, StepReplicated):
            self._compare(to_recovery_point(event.snapshot), event.report.epoch, event.report.step, "in memory")
            if event.report.repaired_bytes:
                self._repaired.add(event.report.step)
        elif isinstance(event, StepStored):
            newer = [step for epoch, step in self.stored if epoch == event.epoch and step > event.step]
            if newer:
                self.record.wrong.append(f"epoch {event.epoch}: step {event.step} was stored after step {max(newer)}")
            self.stored.add((event.epoch, event.step))
        elif isinstance(event, StepResynced):
            self._resynced.add(event.step)
        elif isinstance(event, StepLost | StepNotStored):
            self.gaps.setdefault(event.gap.step, event.gap)

    def _compare(self, point: RecoveryPoint, epoch: int, step: int, where: str) -> None:
        self.record.verified += 1
        truth = self._truth.get(step)
        found = point_difference(truth, point, self.job, epoch) if truth is not None else "it was never trained"
        if found is not None:
            self.record.wrong.append(f"epoch {epoch}, step {step}, {where}: {found}")

    def _record_step(self, step: int) -> None:
        found = self._truth[step].difference(truth_of(self.ring.trainers))
        if self.record.training is None and found is not None:
            self.record.training = f"epoch {self._epoch}, {found}"
        self._sample(step)

    def _sample(self, step: int) -> None:
        """Note the three numbers, and compare the newest point as the side channel gives it."""
        try:
            status = self.channel.status(self.group.name)
            numbers = StepNumbers(step, status.trained_step, status.replica_step, status.durable_step)
            self.record.numbers.append(numbers)
            if status.replica_step and status.epoch == self._epoch:
                point = self.channel.recovery_point(self.group.name, status.replica_step)
                self._compare(point, point.manifest.epoch, status.replica_step, "of the side channel")
        except SideChannelError as error:
            if error.code != "UNAVAILABLE":  # it is dead at present
                raise


def _nbytes(truth: StepTruth, prefix: str) -> int:
    """Return the bytes of the tensors whose names begin with `prefix`."""
    return sum(len(data) for name, (_, _, data) in truth.tensors.items() if name.startswith(prefix))
