"""A training in the simulation with faults, of which everything is watched: each state, point, number and reason."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from jobspec.recovery_point import RecoveryPoint, RecoveryPointError
from nccl_emu.digits import Digits
from nccl_emu.errors import SideChannelError
from nccl_emu.restore import restore_trainer
from nccl_emu.trainer import DataParallelTrainer
from shadow_rx.assembly import MakePublisher
from shadow_rx.publish.publisher import DirectPublisher
from shadow_rx.publish.snapshot import to_recovery_point
from shadow_rx.status.events import Event, StepLost, StepNotStored, StepReplicated, StepResynced, StepStored
from shadow_rx.status.group_status import Gap
from shadow_rx.store.api import open_store
from topology.acceptance.plan import Moment, TrialPlan
from topology.acceptance.record import RunRecord, StepNumbers
from topology.acceptance.scenarios import Injection
from topology.acceptance.shadow import MortalChannel, MortalShadow
from topology.acceptance.truth import StepTruth, point_difference, truth_of
from topology.links import Impairments, Link
from topology.ring_simulation import RingSimulation
from topology.roles import place_of
from topology.simulated_switch import InstalledSwitch, SimulatedSwitch
from topology.simulation import Simulation
from topology.switch_pair import Failure, SwitchPair

_SETTLE_S = 1.0
"""Virtual seconds after which everything that was killed for a while is there again."""


class AcceptanceWorld:
    """The network of one run, its shadow node, and its ranks over all epochs."""

    def __init__(
        self, plan: TrialPlan, truth: dict[int, StepTruth], root: Path, record: RunRecord,
        make_publisher: MakePublisher = DirectPublisher,
    ) -> None:  # fmt: skip
        """Build the network; nothing is sent yet.

        Args:
            plan: what happens when.
            truth: what training must give, by step.
            root: folder of the shadow node's store.
            record: takes what is found out.
            make_publisher: makes the publisher of the shadow node.
        """
        self.plan, self.record = plan, record
        self.job, self.group = plan.job, plan.job.groups[0]
        self.stored: set[tuple[int, int]] = set()
        """Epoch and step of every recovery point that was called durable."""
        self.gaps: dict[int, Gap] = {}
        """First reason that was given for a step."""
        self._truth, self._root = truth, root
        self._rng = random.Random(f"world/{plan.scenario}/{plan.seed}")
        self._repaired: set[int] = set()
        self._resynced: set[int] = set()
        self._pair = SwitchPair(self.job, plan.seed) if plan.switch_death is not None else None
        self._switch: SimulatedSwitch = self._pair or InstalledSwitch(self.job)
        try:
            self._build(make_publisher)
        except BaseException:
            self._switch.close()
            raise

    def _build(self, make_publisher: MakePublisher) -> None:
        plan = self.plan
        self.simulation = Simulation({self.job.switch.name: self._switch.forward})
        self.shadow = MortalShadow(self.job, self._root, lambda: self.simulation.now, self._observe, make_publisher)
        if plan.torn_write is not None:
            whole, share, self.shadow.torn_downtime = plan.torn_write
            self.shadow.files.tear = whole, share
        self.channel = MortalChannel(self.shadow, random.Random(f"side channel/{plan.scenario}/{plan.seed}"))
        rng = random.Random(f"replica/{plan.scenario}/{plan.seed}")
        self._replica_link = self._slow_link = Link(plan.links.replica, rng)
        if plan.congestion is not None:
            slow = replace(plan.links.replica, rate=plan.congestion.rate, queue_bytes=plan.congestion.queue_bytes)
            self._slow_link = Link(slow, rng)
        self._shadow_place = place_of(self.job, self.job.shadow(self.group.shadows[0]))
        there = Link(Impairments(), random.Random(0))
        self.simulation.attach(self._shadow_place, self.shadow, there, self._replica_link)
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
        self.channel.calls.trouble = 0.0
        if not self._rings:
            self._rings.append(RingSimulation(
                self.job, self.group, self.simulation, [self.channel], f"{self.plan.scenario}/{self.plan.seed}",
                self.plan.links, on_lost=self._refused,
            ))  # fmt: skip
        self.ring.begin(trainers, self._epoch)
        self.channel.calls.trouble = self.plan.side_channel_trouble

    def train(self, last: int) -> None:
        """Train up to step `last`, with all that is planned.

        Raises:
            TestbedError: training does not go on.
        """
        while (step := self.ring.trainers[0].step + 1) <= last:
            self._set_disk(step)
            self._set_link(step)
            self._arm_switch(step)
            before = self._frames
            self.ring.compute(step)
            self._kill_shadow(step)
            if self._kill_ranks(step):
                continue
            self.ring.finish(step)
            self._frames_before = self._frames - before
            self._note(step)

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
        self.shadow.files.free = None
        self.ring.end()
        self._sample(self.ring.trainers[0].step)

    def newest_durable(self) -> RecoveryPoint | None:
        """Return the newest recovery point as a user reads it from the store, None where there is none yet."""
        try:
            return open_store(self._root).latest(self.group.name)
        except RecoveryPointError:
            return None

    def explanation(self, step: int) -> Gap | None:
        """Return why a step is not on storage, as it was told first."""
        if step in self.gaps:
            return self.gaps[step]
        return self.shadow.alive(lambda node: node.explain(self.group.name, step))

    def count(self) -> None:
        """Note how often each fault has happened."""
        hosts = [self.simulation.downlink(place_of(self.job, node.host)).stats for node in self.ring.nodes]
        hosts += [self.simulation.uplink(place_of(self.job, node.host)).stats for node in self.ring.nodes]
        replica, files, plan = self._replica_link.stats, self.shadow.files, self.plan
        everywhere = [*hosts, replica, *([self._slow_link.stats] if self._slow_link is not self._replica_link else [])]
        death = plan.switch_death
        died = int(self._pair is not None and self._pair.has_failed)
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

    def _set_disk(self, step: int) -> None:
        if self.plan.full_disk is not None:
            first, last, left = self.plan.full_disk
            if not first <= step <= last:
                self.shadow.files.free = None
            elif self.shadow.files.free is None:
                self.shadow.files.free = left

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

    def _due(self, kind: Injection, step: int) -> list[Moment]:
        found = [moment for due, moment in self._pending if due is kind and moment.step == step]
        self._pending -= {(kind, moment) for moment in found}
        return sorted(found, key=lambda moment: moment.delay)

    def _kill_shadow(self, step: int) -> None:
        for moment in self._due(Injection.SHADOW_RESTART, step):
            self.simulation.drain(moment.delay)
            if self.shadow.node is not None:
                self.shadow.kill(moment.lasts)

    def _kill_ranks(self, step: int) -> bool:
        """Kill the ranks in the middle of a step, and start them again from the newest durable recovery point."""
        found = self._due(Injection.RANK_RESTART, step)
        for moment in found:
            self.simulation.drain(moment.delay)
            self.ring.crash(silent=moment.silent)
            self.simulation.drain(_SETTLE_S)
            self.begin(self.newest_durable())
        return bool(found)

    # ---- what is found out ----

    def _refused(self, step: int, reason: str) -> None:
        """Go on where the shadow node refuses what it is told, as after a lost announcement: it will say why."""

    def _observe(self, event: Event) -> None:
        if isinstance(event, StepReplicated):
            self._compare(to_recovery_point(event.snapshot), event.report.epoch, event.report.step, "in memory")
            if event.report.repaired_bytes:
                self._repaired.add(event.report.step)
        elif isinstance(event, StepStored):
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

    def _note(self, step: int) -> None:
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
