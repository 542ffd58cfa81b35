"""One run in Mininet: real processes, real sockets, a real store; judged as a run in the simulation is."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
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
from topology.acceptance.excuses import without_times
from topology.acceptance.plan import Length, TrialPlan, draw
from topology.acceptance.record import Reported, RunRecord, StepNumbers
from topology.acceptance.scenarios import NETWORK, Injection, Scenario
from topology.acceptance.stored import check_store
from topology.acceptance.truth import StepTruth, point_difference, reference_truth
from topology.errors import TestbedError
from topology.fabric.base import TrainingPlan
from topology.fabric.mininet_fabric import MininetFabric
from topology.fabric.mininet_injections import MininetInjections, read_stats
from topology.fabric.mininet_net import why_not
from topology.fabric.roles import Roles, RunFiles
from topology.processes.switch_events import EventKind, SwitchEvent
from topology.processes.switch_supervisor import ELECTION_ID
from topology.reference_run import reference_run
from topology.simulation.links import Impairments, LinkStats

FABRIC = "mininet"
LENGTH = Length(steps=12, more=3)
"""Processes and disks are slower than virtual time: what happens takes more steps."""
_TIMEOUT_S = 60.0
_SETTLE_S = 5.0
"""Seconds that what the ranks have told may take until it is settled; what they took with them never is."""
_DEATHS = 2
"""How often the shadow node may die meanwhile: once of the torn write, once more for safety."""
_LOOK_S = 0.5
"""Seconds that a look at the shadow node may take while training goes on."""
_SLOW_BITS, _SHORT_QUEUE = 1e6, 4000
"""Bits per second and bytes: too slow for this job's replicas, also where the machine is busy with other things."""
_DISK_BYTES = 16 << 20
_NOT_HERE = {
    Injection.SIDE_CHANNEL: "gRPC's connections between the namespaces are streams, which lose no call; they end "
    "where the shadow node is killed, which other rows do",
    Injection.STORAGE_ERRORS: "a real file system that fails at will needs a block device of its own; the full disk "
    "fails here as well",
    Injection.SLOW_STORAGE: "a real file system that is slow at will needs a block device of its own",
}
"""What cannot be injected on this fabric, and why."""


@dataclass(frozen=True)
class MininetTask:
    """One run to be made."""

    scenario: Scenario
    """What is injected."""
    seed: int
    """The seed."""
    out: Path
    """Folder for all that the run writes."""


def why_no_mininet() -> str | None:
    """Return why Mininet cannot be used here, None when it can."""
    return why_not()


def run_mininet(task: MininetTask) -> RunRecord:
    """Make a run; whatever goes wrong in it is in its record."""
    started = time.monotonic()
    record = RunRecord(task.scenario.name, FABRIC, task.seed, LENGTH.steps)
    plan = possible(draw(task.scenario, task.seed, LENGTH), task.scenario)
    record.left_out = dict(plan.unused)
    orderly = plan.orderly and Injection.RANK_RESTART not in plan.injections
    record.excuses = without_times(plan.injections, LENGTH.steps, orderly=orderly)
    if not plan.injections:
        record.skipped = "; ".join(plan.unused.values())
        return record
    try:
        with ExitStack() as stack:
            # What an earlier run left would pass for this one's.
            shutil.rmtree(task.out, ignore_errors=True)
            make_private_folder(task.out)
            _Run(plan, task.out, record, stack).make()
    except (TestbedError, ControlPlaneError, EmulatorError, RecoveryPointError, OSError) as error:
        record.error = f"{type(error).__name__}: {error}"
    record.seconds = time.monotonic() - started
    return record


def possible(plan: TrialPlan, scenario: Scenario) -> TrialPlan:
    """Return the plan without what cannot be injected here, or not together.

    Ranks that are killed at the end take records of the last step with them, and leave a shadow node that is not there
    yet nothing to catch up with: not where every step has to be on storage, or the node dies.
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

    def __init__(self, plan: TrialPlan, out: Path, record: RunRecord, stack: ExitStack) -> None:
        """Prepare; `stack` gives back what is taken."""
        self.plan, self.out, self.record, self.stack = plan, out, record, stack
        self.job: Job = plan.job
        self.group = self.job.groups[0]
        self.files = RunFiles(out, Roles(self.job))
        self.store = self.files.checkpoints(self.group.shadows[0])
        self.truth: dict[int, StepTruth] = reference_truth(self.job, plan.seed, plan.length.total)
        trained = reference_run(self.job, self.group, plan.seed, plan.length.total)
        self.hashes = {s: hashlib.sha256(ranks[0].state_safetensors()).hexdigest() for s, ranks in trained}
        self.epoch = 0
        self.compared: set[tuple[int, int]] = set()
        self.deaths: Counter[Injection] = Counter()

    def make(self) -> None:
        """Train with the faults, judge, start again from the newest durable step, judge."""
        plan, length = self.plan, self.plan.length
        write_private(self.out / "job.yaml", yaml.safe_dump(self.job.model_dump(mode="json"), sort_keys=False))
        self.disk = self.stack.enter_context(_disk(self.store, Injection.FULL_DISK in plan.injections))
        events = self._events()
        self.fabric = MininetFabric(
            self.job, self.out / "job.yaml", self.out, "softswitch", plan.seed, _TIMEOUT_S, events,
            injections=self._injections(),
        )  # fmt: skip
        with self.fabric:
            self.look = GrpcSideChannel(self.fabric.side_channels[self.group.shadows[0]], _LOOK_S)
            self.stack.callback(self.look.close)
            if all(event.kind is EventKind.RESTART_SHADOW for event in events):
                self._install()
            if Injection.RANK_RESTART in plan.injections:
                self._train(length.steps, dies_after=length.steps - 2)
                self.deaths[Injection.RANK_RESTART] += 1
            difference = self._train(length.steps, dies_after=None if plan.orderly else length.steps)
            self.record.training = self.record.training or difference
            self.disk.free()
            status = self._settled(length.steps)
            numbers = StepNumbers(length.steps, status.trained_step, status.replica_step, status.durable_step)
            self.record.at_end = numbers
            self.record.numbers.append(numbers)
            self._judge({gap.step: Reported(gap.step, gap.reason, gap.detail) for gap in status.gaps})
            self.record.restart = self._train(length.total)
            self.fabric.settle(length.total)
        check_store(self.store, self.job, self.truth, self._promised(), self.record)
        self._count()

    def _settled(self, step: int) -> Status:
        """Return where the shadow node is when what the ranks have told is settled; where it is dead, it is awaited.

        Raises:
            SideChannelError: it does not come back.
        """
        patient = GrpcSideChannel(self.look.address, _TIMEOUT_S)
        self.stack.callback(patient.close)
        for _ in range(_DEATHS):
            self.fabric.restart_dead_shadow(step)
            with suppress(SideChannelError):  # it has just died of its torn write
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
        """Return what happens to switch and shadow node; one thing a step, before ranks die."""
        kinds = {
            Injection.SHADOW_RESTART: EventKind.RESTART_SHADOW,
            Injection.SWITCH_RESTART: EventKind.RESTART,
            Injection.SWITCH_FAILOVER: EventKind.FAILOVER,
        }
        chosen = [kind for injection, kind in kinds.items() if injection in self.plan.injections]
        return [SwitchEvent(kind, 3 + 3 * index) for index, kind in enumerate(chosen)]

    def _train(self, last: int, dies_after: int | None = None) -> str | None:
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
        self.fabric.train(TrainingPlan(self.epoch, first, last, logs, resume, dies_after), self._on_step)
        steps = Counter[int]()
        for rank in range(len(self.group.ring)):
            for line in _lines(self.files.rank_logs(logs, self.group) / f"rank-{rank}.jsonl"):
                steps[line["step"]] += 1
                if line["state_sha256"] != self.hashes[line["step"]]:
                    return f"epoch {self.epoch}, step {line['step']}: rank {rank} has another state"
        # Of the step that they die in some ranks may have told, and others not.
        complete = range(first, last + 1) if dies_after is None else range(first, dies_after)
        lacking = [step for step in complete if steps[step] != len(self.group.ring)]
        return f"epoch {self.epoch}: steps {lacking} were not trained by all ranks" if lacking else None

    def _on_step(self, step: int, loss: float) -> None:
        """Look at the shadow node while training goes on; let the disk get full, and free again."""
        if self.plan.full_disk is not None and self.epoch == 1:
            first, last, _ = self.plan.full_disk
            self.disk.fill() if first <= step <= max(last, first + 2) else self.disk.free()
        with suppress(SideChannelError):  # it is dead at present, or busy
            status = self.look.status(self.group.name)
            newest = max(step, status.trained_step)  # ranks are a step ahead of what is told here
            self.record.numbers.append(
                StepNumbers(newest, status.trained_step, status.replica_step, status.durable_step)
            )
            if status.replica_step:
                point = self.look.recovery_point(self.group.name, status.replica_step)
                self._compare(point.manifest.epoch, status.replica_step, point)

    def _compare(self, epoch: int, step: int, point: Any) -> None:
        if (epoch, step) in self.compared:
            return
        self.compared.add((epoch, step))
        self.record.verified += 1
        found = point_difference(self.truth[step], point, self.job, epoch)
        if found is not None:
            self.record.wrong.append(f"epoch {epoch}, step {step}, of the side channel: {found}")

    def _judge(self, gaps: Mapping[int, Reported]) -> None:
        """Note which steps are on storage, and why the others are not."""
        told = {
            event["step"]: Reported(event["step"], event["reason"], event["detail"])
            for event in reversed(self._shadow_events()) if event["event"] in ("lost", "not_stored")
        }  # fmt: skip
        durable = check_store(self.store, self.job, self.truth, self._promised(), self.record)
        for step in range(1, self.plan.length.steps + 1):
            if step in durable:
                continue
            reported = told.get(step) or gaps.get(step) or self._ask(step)
            if reported is not None and reported.detail:
                self.record.reported.append(reported)
            else:
                self.record.unexplained.append(step)

    def _ask(self, step: int) -> Reported | None:
        """Return why the shadow node has no recovery point of a step, as it says when it is asked for that."""
        try:
            self.look.recovery_point(self.group.name, step)
        except SideChannelError as error:
            reason = next((reason.value for reason in GapReason if f": {reason.value}: " in str(error)), None)
            return Reported(step, reason, str(error)) if reason is not None else None
        return None

    def _promised(self) -> set[tuple[int, int]]:
        return {(e["epoch"], e["step"]) for e in self._shadow_events() if e["event"] == "stored"}

    def _shadow_events(self) -> list[dict[str, Any]]:
        return list(_lines(self.files.events(self.group.shadows[0])))

    def _count(self) -> None:
        """Note how often each fault has happened, from what the processes left behind."""
        hosts, replica = list[LinkStats](), LinkStats()
        for name in (*self.group.ring, self.group.shadows[0]):
            up, down = read_stats(self.fabric.link_stats(name))
            if name in self.group.ring:
                hosts += [up, down]
            else:
                replica = down
        everywhere, events = [*hosts, replica], self._shadow_events()
        happened = " ".join(self.fabric.happened)
        storage = [event for event in events if event["event"] == "not_stored" and event["reason"] == "storage_error"]
        counts = {
            Injection.LOSS_BEFORE: sum(stats.lost for stats in hosts),
            Injection.LOSS_AFTER: replica.lost,
            Injection.REORDER: sum(stats.reordered for stats in everywhere),
            Injection.DUPLICATE: sum(stats.duplicated for stats in everywhere),
            Injection.CORRUPT: sum(stats.corrupted for stats in everywhere),
            Injection.CONGESTION: replica.overflowed,
            Injection.SHADOW_RESTART: happened.count(EventKind.RESTART_SHADOW),
            Injection.SWITCH_RESTART: happened.count(EventKind.RESTART),
            Injection.SWITCH_FAILOVER: happened.count(EventKind.FAILOVER),
            Injection.OPTIMIZER_CHANGE: len(self.job.workload.changes),
            Injection.RANK_RESTART: self.deaths[Injection.RANK_RESTART],
            Injection.FULL_DISK: len(storage),
            Injection.TORN_WRITE: happened.count("died by step"),
        }
        self.record.injected = {injection.value: count for injection, count in counts.items() if count}
        self.record.repaired = len({event["step"] for event in events if event["event"] == "repaired"})
        self.record.resynced = len({event["step"] for event in events if event["event"] == "resynced"})


class _Disk:
    """The file system that the store is on; it can be filled."""

    def __init__(self, folder: Path, small: bool) -> None:
        """Take the folder; only a `small` one is ever filled."""
        self._ballast = folder / ".ballast"
        self._small = small

    def fill(self) -> None:
        """Leave no space."""
        if self._small and not self._ballast.exists():
            with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)) == 4096:
                    pass

    def free(self) -> None:
        """Give the space back."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def _disk(folder: Path, small: bool) -> Iterator[_Disk]:
    """Give the store's folder a small file system of its own where it is to get full."""
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
    """Yield the JSON objects of a file; a line that a killed process left unfinished is passed over."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            yield json.loads(line)
