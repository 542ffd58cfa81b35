"""A simulated training run with injected faults."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from checkmate_common.recovery.point import RecoveryPoint, RecoveryPointError
from nccl_emu.shadow_client.restore import restore_trainer
from nccl_emu.shadow_client.shadow_session import ShadowSession
from nccl_emu.training.digits import Digits
from nccl_emu.training.trainer import DataParallelTrainer
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.publish.store_queue import STORE_COPIES
from shadow_rx.status.group_status import Gap
from shadow_rx.store.api import open_store
from topology.acceptance.excuses import AFTER_LATE, AFTER_RESTART, ExcuseTracker, flush_excuses
from topology.acceptance.plan import COMPUTE_S, Crash, RunPlan
from topology.acceptance.record import RunRecord
from topology.acceptance.scenarios import Injection
from topology.acceptance.simulated_run.observer import RunObserver
from topology.acceptance.simulated_run.restartable_shadow import RestartableShadow, RestartableShadowChannel
from topology.acceptance.simulated_run.timed_drivers import TimedSender
from topology.acceptance.step_state import StepState
from topology.fabric.participants import switch_port
from topology.simulation.event_loop import Simulation
from topology.simulation.links import Impairments, Link
from topology.simulation.ring_simulation import RingSimulation
from topology.simulation.simulated_switch import InstalledSwitch, SimulatedSwitch
from topology.simulation.switch_pair import Failure, SwitchPair

_DEPTH = 4
"""Most points that may wait for storage; a node's default."""
_FRAMES_BYTES = 1 << 13
"""Most bytes of a step's buffer besides the gradient."""
_SETTLE_S = 1.0
"""Virtual seconds after which everything that was killed is up again."""


class FaultSimulation:
    """The network, the shadow node and the ranks of one run, over all epochs."""

    def __init__(self, plan: RunPlan, expected: dict[int, StepState], root: Path, record: RunRecord) -> None:
        """Build the network; nothing is sent yet.

        Args:
            plan: the faults and when they happen.
            expected: state after each step of a run without faults.
            root: folder of the shadow node's store.
            record: receives the results.
        """
        self.plan, self.record = plan, record
        self.job, self.group = plan.job, plan.job.groups[0]
        self.observer = RunObserver(self.job, expected, record)
        """Checks what the shadow node and the ranks produce."""
        self.excuses = ExcuseTracker(plan.injections)
        """Steps that the faults may have cost."""
        self._first_step = self._step = 1
        self._expected, self._root = expected, root
        self._rng = random.Random(f"world/{plan.scenario}/{plan.seed}")
        self._switch_pair = SwitchPair(self.job, plan.seed) if plan.switch_crash is not None else None
        self._switch: SimulatedSwitch = self._switch_pair or InstalledSwitch(self.job)
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
            self.job, self._root, self.simulation, self.observer.on_event, self._on_shadow_up, rng,
            self._low_memory() if slow is not None and slow.low_memory else ShadowOptions(),
            slow.depth if slow is not None else _DEPTH,
        )  # fmt: skip
        if plan.torn_write is not None:
            whole, share, self.shadow.torn_downtime = plan.torn_write
            self.shadow.files.tear = whole, share
        self.channel = RestartableShadowChannel(self.shadow, random.Random(f"side channel/{plan.scenario}/{plan.seed}"))
        rng = random.Random(f"replica/{plan.scenario}/{plan.seed}")
        self._replica_link = self._slow_link = Link(plan.links.replica, rng)
        if plan.congestion is not None:
            narrow = replace(plan.links.replica, rate=plan.congestion.rate, queue_bytes=plan.congestion.queue_bytes)
            self._slow_link = Link(narrow, rng)
        self._shadow_port = switch_port(self.job, self.job.shadow(self.group.shadows[0]))
        uplink = Link(Impairments(), random.Random(0))
        self.simulation.attach(self._shadow_port, self.shadow, uplink, self._replica_link)
        self._senders_rng = random.Random(f"senders/{plan.scenario}/{plan.seed}")
        self._digits = Digits.load()
        self._rings: list[RingSimulation] = []
        self._pending = {(kind, crash) for kind, crashes in (
            (Injection.SHADOW_RESTART, plan.shadow_restarts), (Injection.RANK_RESTART, plan.rank_restarts),
        ) for crash in crashes}  # fmt: skip
        self._frames_before = 0

    @property
    def ring(self) -> RingSimulation:
        """The ranks."""
        return self._rings[-1]

    def begin(self, point: RecoveryPoint | None = None) -> None:
        """Begin an epoch with new ranks, from `point` alone or from the seed.

        Raises:
            TestbedError: the connections do not come up.
        """
        trainers = [
            DataParallelTrainer(self.job, self.group, rank, self.plan.seed, self._digits)
            if point is None else restore_trainer(point, self.job, self.group, rank, self._digits)
            for rank in range(len(self.group.ring))
        ]  # fmt: skip
        self.observer.epoch += 1
        self._first_step = self._step = trainers[0].step + 1
        self.channel.fault_probability = 0.0
        if not self._rings:
            self._rings.append(RingSimulation(
                self.job, self.group, self.simulation, [self.channel], f"{self.plan.scenario}/{self.plan.seed}",
                self.plan.links, on_lost=self._on_refused, make_sender=self._sender,
            ))  # fmt: skip
        damaged = self._damaged_replicas
        self.ring.begin(trainers, self.observer.epoch)
        if self._damaged_replicas > damaged:
            self.excuses.replicas_lost(self._step)  # a lost SYN may cost the replicas that follow it
        self.observer.forget_gaps(self._step)  # these steps are trained again
        self.channel.fault_probability = self.plan.side_channel_fault_probability

    def train(self, last: int) -> None:
        """Train up to step `last`, with the planned faults.

        Raises:
            TestbedError: training makes no progress.
        """
        while (step := self.ring.trainers[0].step + 1) <= last:
            self._step = step
            self._excuse_late_records()
            if any(change.step == step for change in self.job.workload.changes):
                self.excuses.optimizer_changed(step)
            self._set_disk(step)
            self._set_link(step)
            self._arm_switch(step)
            frames, damaged, failed = self._frames, self._damaged_replicas, self._switch_failed
            if not self._train_step(step):
                continue
            if self._damaged_replicas - damaged > 1 or self._switch_failed > failed:
                self.excuses.replicas_lost(step)
            self._frames_before = self._frames - frames
            self.observer.check_training(self.ring.trainers)
            self.observer.sample_status(self.channel, step)

    def _train_step(self, step: int) -> bool:
        """Train a step, with the planned crashes; return whether it was completed."""
        due = sorted((entry for entry in self._pending if entry[1].step == step), key=lambda entry: entry[1].delay)
        passed, begun = -COMPUTE_S, False
        for kind, crash in due:
            if crash.delay >= 0 and not begun:
                self.simulation.run_for(-passed)
                self.ring.compute(step)
                passed, begun = 0.0, True
            self.simulation.run_for(crash.delay - passed)
            passed = crash.delay
            self._pending.remove((kind, crash))
            if kind is Injection.RANK_RESTART:
                self._restart_ranks(crash)
                return False
            if self.shadow.node is not None:
                self.shadow.kill(crash.downtime)
        if not begun:
            self.simulation.run_for(-passed)
            self.ring.compute(step)
        self.ring.finish(step)
        return True

    def end(self, *, orderly: bool = True) -> None:
        """Clear the faults of side channel and disk and close the connections in order; or crash the ranks.

        Raises:
            TestbedError: the connections do not close.
        """
        self.simulation.run_for(_SETTLE_S)
        if not orderly:
            self.ring.crash(silent=self._rng.random() < 0.5)
            self.simulation.run_for(_SETTLE_S)
            self.observer.sample_status(self.channel, self.ring.trainers[0].step)
            return
        self.channel.fault_probability = 0.0
        self._clear_disk_faults()
        self.ring.end()
        self.simulation.run_for(_SETTLE_S)
        self.observer.sample_status(self.channel, self.ring.trainers[0].step)

    def newest_durable(self) -> RecoveryPoint | None:
        """Return the newest recovery point in the store; None if there is none yet."""
        try:
            return open_store(self._root).latest(self.group.name)
        except RecoveryPointError:
            return None

    def explain(self, step: int) -> Gap | None:
        """Return why a step is not on storage, as first reported.

        A point that still waits is not explained when storage is idle, unless it waits for later ones to share a flush
        with, as the job asks for.
        """
        if step in self.observer.gaps:
            return self.observer.gaps[step]

        def explain_now(node: ShadowNode) -> Gap | None:
            history = node.core.group(self.group.name).ledger.history
            if history.is_replicated(step) and step <= history.replica_step - (self.job.store.every - 1):
                return None
            return node.explain(self.group.name, step)

        return self.shadow.call(explain_now)

    def count(self) -> None:
        """Record the excuses and how often each fault happened."""
        last = self.record.at_end.replica if self.record.at_end is not None else self.plan.length.steps
        self.record.excuses = self.excuses.all(self.plan.length.steps) + flush_excuses(self.job.store.every, last)
        hosts = [self.simulation.downlink(switch_port(self.job, node.host)).stats for node in self.ring.nodes]
        hosts += [self.simulation.uplink(switch_port(self.job, node.host)).stats for node in self.ring.nodes]
        replica, files, plan = self._replica_link.stats, self.shadow.files, self.plan
        all_links = [*hosts, replica, *([self._slow_link.stats] if self._slow_link is not self._replica_link else [])]
        crash = plan.switch_crash
        failed = self._switch_failed
        counts = {
            Injection.LOSS_BEFORE: sum(stats.lost for stats in hosts),
            Injection.LOSS_AFTER: sum(stats.lost for stats in all_links[len(hosts) :]),
            Injection.REORDER: sum(stats.reordered for stats in all_links),
            Injection.DUPLICATE: sum(stats.duplicated for stats in all_links),
            Injection.CORRUPT: sum(stats.corrupted for stats in all_links),
            Injection.CONGESTION: self._slow_link.stats.overflowed,
            Injection.SIDE_CHANNEL: self.channel.lost,
            Injection.SHADOW_RESTART: self.shadow.kills - files.torn,
            Injection.OPTIMIZER_CHANGE: sum(
                change.step <= self.ring.trainers[0].step for change in self.job.workload.changes
            ),
            Injection.SWITCH_RESTART: failed * (crash is not None and crash.downtime is not None),
            Injection.SWITCH_FAILOVER: failed * (crash is not None and crash.downtime is None),
            Injection.RANK_RESTART: len(plan.rank_restarts)
            - sum(kind is Injection.RANK_RESTART for kind, _ in self._pending),
            Injection.FULL_DISK: files.no_space,
            Injection.STORAGE_ERRORS: files.errors,
            Injection.SLOW_STORAGE: files.slow_writes,
            Injection.TORN_WRITE: files.torn,
        }
        self.record.injected = {injection.value: counts[injection] for injection in Injection if counts[injection]}
        self.record.repaired, self.record.resynced = len(self.observer.repaired), len(self.observer.resynced)

    def close(self) -> None:
        """Stop everything."""
        self.shadow.close()
        self._switch.close()

    # ---- faults ----

    @property
    def _frames(self) -> int:
        return self._switch_pair.frames if self._switch_pair is not None else 0

    @property
    def _switch_failed(self) -> int:
        return int(self._switch_pair is not None and self._switch_pair.has_failed)

    @property
    def _damaged_replicas(self) -> int:
        """Replicas lost or corrupted so far."""
        links = {id(link): link.stats for link in (self._replica_link, self._slow_link)}.values()
        return sum(stats.lost + stats.overflowed + stats.corrupted for stats in links)

    @property
    def _oldest_unresolved(self) -> int:
        """Oldest step of the epoch that is neither on storage nor explained; the current step if there is none."""
        steps = range(self._first_step, self._step)
        return next((s for s in steps if not self.observer.is_resolved(s)), self._step)

    def _sender(self, session: ShadowSession) -> TimedSender:
        return TimedSender(session, self.simulation.call_later, self._senders_rng)

    def _low_memory(self) -> ShadowOptions:
        """Return the limits of a node with little more memory than it needs to work."""
        options = ShadowOptions(store_copies=STORE_COPIES)
        gradient = max(_nbytes(state, "param/") for state in self._expected.values())
        trained = max(_nbytes(state, "param/") + _nbytes(state, "optim/") for state in self._expected.values())
        point = max(_nbytes(state, "") for state in self._expected.values()) + gradient
        collecting = 2 * options.window * (2 * gradient + _FRAMES_BYTES)
        held = (2 + options.hold) * trained + options.hold * gradient
        return replace(options, memory_limit=collecting + held + STORE_COPIES * point)

    def _set_disk(self, step: int) -> None:
        files, plan = self.shadow.files, self.plan
        if plan.full_disk is not None:
            first, last, left = plan.full_disk
            if not self._active(Injection.FULL_DISK, first, last, step):
                files.free_bytes = None
            elif files.free_bytes is None:
                files.free_bytes = left
        if plan.storage_errors is not None:
            first, last, probability = plan.storage_errors
            files.error_probability = probability if self._active(Injection.STORAGE_ERRORS, first, last, step) else 0.0
        slow = plan.slow_storage
        if slow is not None:
            if slow.first <= step <= slow.last:
                self._excuse_from_now(Injection.SLOW_STORAGE)
                files.slowest_s = slow.slowest_s
            else:
                files.slowest_s = None
                publisher = self.shadow.publisher
                if publisher is None or publisher.idle:
                    self.excuses.end(Injection.SLOW_STORAGE, step - 1)

    def _active(self, injection: Injection, first: int, last: int, step: int) -> bool:
        """Return whether a fault of steps `first` to `last` is active in a step; excuse its steps."""
        if first <= step <= last:
            self._excuse_from_now(injection)
            return True
        self.excuses.end(injection, step - 1)
        return False

    def _excuse_from_now(self, injection: Injection) -> None:
        if not self.excuses.is_open(injection):
            self.excuses.begin(injection, self._oldest_unresolved)

    def _clear_disk_faults(self) -> None:
        files = self.shadow.files
        files.free_bytes, files.error_probability, files.slowest_s = None, 0.0, None

    def _excuse_late_records(self) -> None:
        """Excuse the steps during which records of earlier steps have not been sent."""
        if any(sender.session.waiting for sender in self.ring.senders):
            if Injection.SIDE_CHANNEL in self.plan.injections:
                self._excuse_from_now(Injection.SIDE_CHANNEL)
        else:
            self.excuses.end(Injection.SIDE_CHANNEL, self._step + AFTER_LATE)

    def _on_shadow_up(self, up: bool) -> None:
        """Excuse the steps during which the shadow node is down."""
        for injection in (Injection.SHADOW_RESTART, Injection.TORN_WRITE):
            if injection in self.plan.injections:
                if up:
                    self.excuses.end(injection, self._step + AFTER_RESTART)
                else:
                    self._excuse_from_now(injection)

    def _set_link(self, step: int) -> None:
        slow = self.plan.congestion
        if slow is not None:
            link = self._slow_link if slow.first <= step <= slow.last else self._replica_link
            self.simulation.replace_downlink(self._shadow_port, link)

    def _arm_switch(self, step: int) -> None:
        crash = self.plan.switch_crash
        if (
            crash is not None
            and self._switch_pair is not None
            and step == crash.step
            and not self._switch_pair.has_failed
        ):
            frames = max(1, int(crash.share * self._frames_before))
            self._switch_pair.arm(Failure(frames, crash.downtime, crash.torn))

    def _restart_ranks(self, crash: Crash) -> None:
        """Crash the ranks and restart them from the newest durable recovery point."""
        self.ring.crash(silent=crash.silent)
        self.simulation.run_for(_SETTLE_S)
        self.begin(self.newest_durable())

    def _on_refused(self, step: int, reason: str) -> None:
        """Ignore that the shadow node refused a record, as after a lost announcement: it reports the reason itself."""


def _nbytes(state: StepState, prefix: str) -> int:
    """Return the bytes of the tensors whose names begin with `prefix`."""
    return sum(len(data) for name, (_, _, data) in state.tensors.items() if name.startswith(prefix))
