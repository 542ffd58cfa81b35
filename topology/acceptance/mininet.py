"""A run in Mininet, with real processes, sockets and storage; checked like a run in the simulation."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from checkmate_common.files.private_files import make_private_folder, write_private
from checkmate_common.recovery.point import RecoveryPointError
from checkmate_common.recovery.reasons import GapReason
from checkmate_common.sidechannel.side_channel_pb2 import Status
from controlplane.desired import desired_state
from controlplane.errors import ControlPlaneError
from controlplane.target import Target
from jobspec.model import Job
from nccl_emu.errors import EmulatorError, SideChannelError
from nccl_emu.shadow_client.side_channel import GrpcSideChannel
from shadow_rx.store.api import open_store
from shadow_rx.store.export import write_point
from topology.acceptance.excuses import untimed_excuses
from topology.acceptance.plan import RunLength, RunPlan, draw_plan
from topology.acceptance.record import ReportedGap, RunRecord, StepNumbers
from topology.acceptance.scenarios import NETWORK, Injection, Scenario
from topology.acceptance.step_state import StepState, point_difference, reference_states
from topology.acceptance.store_check import check_store
from topology.errors import TestbedError
from topology.fabric.base import TrainingPlan
from topology.fabric.mininet_fabric import MininetFabric
from topology.fabric.mininet_injections import MininetInjections, read_stats
from topology.fabric.participants import Participants
from topology.fabric.run_files import RunFiles
from topology.processes.switch_events import EventKind, SwitchEvent
from topology.processes.switch_supervisor import ELECTION_ID
from topology.reference_run import reference_run
from topology.simulation.links import Impairments, LinkStats

FABRIC = "mininet"
LENGTH = RunLength(steps=12, steps_after_restart=3)
"""Longer than in the simulation: processes and disks need more steps to show a fault."""
_TIMEOUT_S = 60.0
_SETTLE_S = 5.0
"""Seconds to wait for the last step to settle; records lost with killed ranks never do."""
_MAX_RESTARTS = 2
"""How often the shadow node may have to be restarted meanwhile: once after the torn write, once as a reserve."""
_PROBE_S = 0.5
"""Timeout of a status call during training, in seconds."""
_SLOW_BITS, _SHORT_QUEUE = 1e6, 4000
"""Bits per second and bytes: too slow for this job's replicas even on a busy machine."""
_DISK_BYTES = 16 << 20
_NOT_HERE = {
    Injection.SIDE_CHANNEL: "gRPC's connections between the namespaces are streams, which lose no call; they end "
    "where the shadow node is killed, which other rows do",
    Injection.STORAGE_ERRORS: "a real file system that fails at will needs a block device of its own; the full disk "
    "fails here as well",
    Injection.SLOW_STORAGE: "a real file system that is slow at will needs a block device of its own",
}
"""Faults that cannot be injected on this fabric, with the reason."""


@dataclass(frozen=True)
class MininetTask:
    """A run to make."""

    scenario: Scenario
    """The fault row."""
    seed: int
    """The seed."""
    out: Path
    """Folder for everything that the run writes."""


def run_mininet(task: MininetTask) -> RunRecord:
    """Make a run; errors are in its record."""
    started = time.monotonic()
    record = RunRecord(task.scenario.name, FABRIC, task.seed, LENGTH.steps)
    plan = injectable_plan(draw_plan(task.scenario, task.seed, LENGTH), task.scenario)
    record.left_out = dict(plan.unused)
    orderly = plan.orderly and Injection.RANK_RESTART not in plan.injections
    record.excuses = untimed_excuses(plan.injections, LENGTH.steps, plan.job.store.every, orderly=orderly)
    if not plan.injections:
        record.skipped = "; ".join(plan.unused.values())
        return record
    try:
        with ExitStack() as stack:
            # Files of an earlier run would be taken for this one's.
            shutil.rmtree(task.out, ignore_errors=True)
            make_private_folder(task.out)
            _Run(plan, task.out, record, stack).make()
    except (TestbedError, ControlPlaneError, EmulatorError, RecoveryPointError, OSError) as error:
        record.error = f"{type(error).__name__}: {error}"
    record.seconds = time.monotonic() - started
    return record


def injectable_plan(plan: RunPlan, scenario: Scenario) -> RunPlan:
    """Return the plan without the faults that cannot be injected here, or not together.

    Ranks that are killed at the end may not have sent the last records, and a shadow node that is down then has nothing
    to catch up with. So they are not killed if every step must become durable or the node is killed.
    """
    chosen, unused = set(plan.injections), dict(plan.unused)
    for injection in chosen & _NOT_HERE.keys():
        unused[injection] = _NOT_HERE[injection]
    if Injection.SWITCH_FAILOVER in chosen and chosen & {*NETWORK, Injection.CONGESTION}:
        unused[Injection.SWITCH_FAILOVER] = "an impaired link leads to one switch only"
    chosen -= {Injection(name) for name in unused}
    orderly = plan.orderly or scenario.complete or bool(chosen & {Injection.SHADOW_RESTART, Injection.TORN_WRITE})
    return replace(plan, injections=frozenset(chosen), unused=unused, orderly=orderly)


class _Run:
    """A run in progress."""

    def __init__(self, plan: RunPlan, out: Path, record: RunRecord, stack: ExitStack) -> None:
        """Prepare; `stack` releases what the run acquires."""
        self.plan, self.out, self.record, self.stack = plan, out, record, stack
        self.job: Job = plan.job
        self.group = self.job.groups[0]
        self.files = RunFiles(out, Participants(self.job))
        self.store = self.files.checkpoints(self.group.shadows[0])
        self.expected: dict[int, StepState] = reference_states(self.job, plan.seed, plan.length.total)
        trained = reference_run(self.job, self.group, plan.seed, plan.length.total)
        self.hashes = {s: hashlib.sha256(ranks[0].state_safetensors()).hexdigest() for s, ranks in trained}
        self.epoch = 0
        self.compared: set[tuple[int, int]] = set()
        self.rank_kills = 0

    def make(self) -> None:
        """Train with the faults, check, restart from the newest durable step, check again."""
        plan, length = self.plan, self.plan.length
        write_private(self.out / "job.yaml", yaml.safe_dump(self.job.model_dump(mode="json"), sort_keys=False))
        self.disk = self.stack.enter_context(_disk(self.store, Injection.FULL_DISK in plan.injections))
        events = self._events()
        self.fabric = MininetFabric(
            self.job, self.out / "job.yaml", self.out, "softswitch", plan.seed, _TIMEOUT_S, events,
            injections=self._injections(),
        )  # fmt: skip
        with self.fabric:
            self.probe = GrpcSideChannel(self.fabric.side_channels[self.group.shadows[0]], _PROBE_S)
            self.stack.callback(self.probe.close)
            if all(event.kind is EventKind.RESTART_SHADOW for event in events):
                self._install()
            if Injection.RANK_RESTART in plan.injections:
                self._train(length.steps, kill_after=length.steps - 2)
                self.rank_kills += 1
            difference = self._train(length.steps, kill_after=None if plan.orderly else length.steps)
            self.record.training = self.record.training or difference
            self.disk.free()
            status = self._settled(length.steps)
            numbers = StepNumbers(length.steps, status.trained_step, status.replica_step, status.durable_step)
            self.record.at_end = numbers
            self.record.numbers.append(numbers)
            self._check_steps({gap.step: ReportedGap(gap.step, gap.reason, gap.detail) for gap in status.gaps})
            self.record.restart = self._train(length.total)
            self.fabric.settle(length.total)
        check_store(self.store, self.job, self.expected, self._stored(), self.record)
        self._count()

    def _settled(self, step: int) -> Status:
        """Wait until `step` is settled, restarting the shadow node if it is down; return its status.

        Raises:
            SideChannelError: the node stays down.
        """
        patient = GrpcSideChannel(self.probe.address, _TIMEOUT_S)
        self.stack.callback(patient.close)
        for _ in range(_MAX_RESTARTS):
            self.fabric.restart_dead_shadow(step)
            with suppress(SideChannelError):  # killed in its torn write just now
                return patient.wait_for_step(self.group.name, step, _SETTLE_S)
        return patient.wait_for_step(self.group.name, step, _SETTLE_S)

    def _install(self) -> None:
        switch = self.job.switch
        address = self.fabric.targets[switch.name]
        with Target.connect(address, switch.device_id, election_id=ELECTION_ID) as target:
            target.install(desired_state([self.job], switch.name))

    def _injections(self) -> MininetInjections:
        plan, links = self.plan, dict[str, tuple[Impairments, Impairments]]()
        if plan.injections & {*NETWORK}:
            links = dict.fromkeys(self.group.ring, (plan.links.uplink, plan.links.downlink))
        if plan.injections & {*NETWORK, Injection.CONGESTION} - {Injection.LOSS_BEFORE}:
            replica = plan.links.replica
            if Injection.CONGESTION in plan.injections:
                replica = replace(replica, rate=_SLOW_BITS, queue_bytes=_SHORT_QUEUE)
            links[self.group.shadows[0]] = (Impairments(), replica)
        program: tuple[str, ...] = ("shadow_rx",)
        if Injection.TORN_WRITE in plan.injections and plan.torn_write is not None:
            whole, share, _ = plan.torn_write
            program = ("topology.acceptance.torn_write_shadow", str(whole), str(share))
        return MininetInjections(links, program)

    def _events(self) -> list[SwitchEvent]:
        """Return the events of switch and shadow node, one a step, before ranks are killed."""
        kinds = {
            Injection.SHADOW_RESTART: EventKind.RESTART_SHADOW,
            Injection.SWITCH_RESTART: EventKind.RESTART,
            Injection.SWITCH_FAILOVER: EventKind.FAILOVER,
        }
        chosen = [kind for injection, kind in kinds.items() if injection in self.plan.injections]
        return [SwitchEvent(kind, 3 + 3 * index) for index, kind in enumerate(chosen)]

    def _train(self, last: int, kill_after: int | None = None) -> str | None:
        """Train an epoch from the newest durable step on; return the first difference from the run without faults."""
        self.epoch += 1
        logs, resume, first = self.out / f"epoch-{self.epoch}", dict[str, Path](), 1
        if self.epoch > 1:
            with suppress(RecoveryPointError):
                point = open_store(self.store).latest(self.group.name)
                resume = {self.group.name: self.out / "restored" / str(self.epoch)}
                write_point(point, resume[self.group.name])
                first = point.manifest.step + 1
            self.record.restarted_from = first - 1
        if first > last:
            return None
        self.fabric.train(TrainingPlan(self.epoch, first, last, logs, resume, kill_after), self._on_step)
        steps = Counter[int]()
        for rank in range(len(self.group.ring)):
            for line in _lines(self.files.rank_logs(logs, self.group) / f"rank-{rank}.jsonl"):
                steps[line["step"]] += 1
                if line["state_sha256"] != self.hashes[line["step"]]:
                    return f"epoch {self.epoch}, step {line['step']}: rank {rank} has another state"
        # Of the step in which they are killed, only some ranks may have logged the result.
        complete = range(first, last + 1) if kill_after is None else range(first, kill_after)
        incomplete = [step for step in complete if steps[step] != len(self.group.ring)]
        return f"epoch {self.epoch}: steps {incomplete} were not trained by all ranks" if incomplete else None

    def _on_step(self, step: int, loss: float) -> None:
        """Record the shadow node's status during training; fill and free the disk."""
        if self.plan.full_disk is not None and self.epoch == 1:
            # A node that is down meanwhile writes nothing: the disk stays full until a write has failed.
            first, last, _ = self.plan.full_disk
            last = max(last, first + 2)
            longer = last < step <= self.plan.length.steps - 2 and not _storage_errors(self._shadow_events())
            self.disk.fill() if first <= step <= last or longer else self.disk.free()
        with suppress(SideChannelError):  # the node is down or busy
            status = self.probe.status(self.group.name)
            newest = max(step, status.trained_step)  # ranks may be a step ahead of this callback
            self.record.numbers.append(
                StepNumbers(newest, status.trained_step, status.replica_step, status.durable_step)
            )
            if status.replica_step:
                point = self.probe.recovery_point(self.group.name, status.replica_step)
                self._compare(point.manifest.epoch, status.replica_step, point)

    def _compare(self, epoch: int, step: int, point: Any) -> None:
        if (epoch, step) in self.compared:
            return
        self.compared.add((epoch, step))
        self.record.verified += 1
        found = point_difference(self.expected[step], point, self.job, epoch)
        if found is not None:
            self.record.wrong.append(f"epoch {epoch}, step {step}, of the side channel: {found}")

    def _check_steps(self, gaps: Mapping[int, ReportedGap]) -> None:
        """Record which steps are not on storage, and the reported reasons."""
        from_events = {
            event["step"]: ReportedGap(event["step"], event["reason"], event["detail"])
            for event in reversed(self._shadow_events()) if event["event"] in ("lost", "not_stored")
        }  # fmt: skip
        durable = check_store(self.store, self.job, self.expected, self._stored(), self.record)
        for step in range(1, self.plan.length.steps + 1):
            if step in durable:
                continue
            reported = from_events.get(step) or gaps.get(step) or self._ask(step)
            if reported is not None and reported.detail:
                self.record.reported.append(reported)
            else:
                self.record.unexplained.append(step)

    def _ask(self, step: int) -> ReportedGap | None:
        """Request a recovery point; return the reason with which the shadow node refuses."""
        try:
            self.probe.recovery_point(self.group.name, step)
        except SideChannelError as error:
            reason = next((reason.value for reason in GapReason if f": {reason.value}: " in str(error)), None)
            return ReportedGap(step, reason, str(error)) if reason is not None else None
        return None

    def _stored(self) -> set[tuple[int, int]]:
        return {(e["epoch"], e["step"]) for e in self._shadow_events() if e["event"] == "stored"}

    def _shadow_events(self) -> list[dict[str, Any]]:
        return list(_lines(self.files.events(self.group.shadows[0])))

    def _count(self) -> None:
        """Record how often each fault happened, from the files of the processes."""
        hosts, replica = list[LinkStats](), LinkStats()
        for name in (*self.group.ring, self.group.shadows[0]):
            up, down = read_stats(self.fabric.link_stats(name))
            if name in self.group.ring:
                hosts += [up, down]
            else:
                replica = down
        all_links, events = [*hosts, replica], self._shadow_events()
        event_log = " ".join(self.fabric.event_log)
        counts = {
            Injection.LOSS_BEFORE: sum(stats.lost for stats in hosts),
            Injection.LOSS_AFTER: replica.lost,
            Injection.REORDER: sum(stats.reordered for stats in all_links),
            Injection.DUPLICATE: sum(stats.duplicated for stats in all_links),
            Injection.CORRUPT: sum(stats.corrupted for stats in all_links),
            Injection.CONGESTION: replica.overflowed,
            Injection.SHADOW_RESTART: event_log.count(EventKind.RESTART_SHADOW),
            Injection.SWITCH_RESTART: event_log.count(EventKind.RESTART),
            Injection.SWITCH_FAILOVER: event_log.count(EventKind.FAILOVER),
            Injection.OPTIMIZER_CHANGE: len(self.job.workload.changes),
            Injection.RANK_RESTART: self.rank_kills,
            Injection.FULL_DISK: _storage_errors(events),
            Injection.TORN_WRITE: event_log.count("died by step"),
        }
        self.record.injected = {injection.value: count for injection, count in counts.items() if count}
        self.record.repaired = len({event["step"] for event in events if event["event"] == "repaired"})
        self.record.resynced = len({event["step"] for event in events if event["event"] == "resynced"})


def _storage_errors(events: Iterable[Mapping[str, Any]]) -> int:
    """Return how many steps were not stored because a write failed."""
    return sum(event["event"] == "not_stored" and event["reason"] == "storage_error" for event in events)


class _Disk:
    """The store's file system, which can be filled."""

    def __init__(self, folder: Path, small: bool) -> None:
        """Use the file system of `folder`; only a `small` one is ever filled."""
        self._ballast = folder / ".ballast"
        self._small = small

    def fill(self) -> None:
        """Use up all space."""
        if self._small and not self._ballast.exists():
            with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)) == 4096:
                    pass

    def free(self) -> None:
        """Free the space."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def _disk(folder: Path, small: bool) -> Iterator[_Disk]:
    """Mount a small file system on the store's folder if it is to be filled."""
    if not small:
        yield _Disk(folder, small=False)
        return
    make_private_folder(folder)
    options = f"size={_DISK_BYTES},mode=0700"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise TestbedError("disk", f"a small file system cannot be mounted: {done.stderr.strip()}")
    try:
        yield _Disk(folder, small=True)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file; an unfinished line of a killed process is skipped."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            yield json.loads(line)
