"""The testbed run: train, compare every checkpoint with the trainer, restart from one, report."""

from __future__ import annotations

import shutil
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from controlplane.desired import desired_state
from controlplane.entities import TableEntry
from controlplane.target import Target
from jobspec.checks import problems_of
from jobspec.errors import JobError, Problem
from jobspec.layout import Layout
from jobspec.model import Job
from jobspec.recovery_point import RecoveryPoint
from jobspec.ring import Phase
from jobspec.schedule import step_plan
from jobspec.sidechannel.side_channel_pb2 import Status
from nccl_emu.trainer import DataParallelTrainer
from p4src.names import Table
from topology.compare import first_difference
from topology.errors import TestbedError
from topology.evidence import EpochEvidence, point_path, read_epoch
from topology.fabric import Fabric, TrainingPlan
from topology.faults import Fault
from topology.inproc import InprocFabric
from topology.mininet_fabric import MininetFabric
from topology.progress import RunProgress
from topology.report import write_report
from topology.results import RestartResult, RunResult

_ELECTION_ID = 1 << 16
"""The testbed's switch is its own: it outbids controllers that were left at the default."""
_OURS = ("summary.json", "report.html", "job.yaml", "events.jsonl", "uninterrupted", "restarted", "checkpoints", "logs")
"""What a run writes into its folder besides captures."""


@dataclass(frozen=True)
class TestbedOptions:
    """What to run."""

    __test__ = False  # not a test class, whatever its name suggests to pytest

    out: Path
    """Folder for everything that the run writes."""
    switch: str = "softswitch"
    """``softswitch`` or ``bmv2``."""
    fabric: str = "inproc"
    """``inproc`` or ``mininet``."""
    iterations: int = 20
    """Training steps."""
    ranks: int | None = None
    """Ranks: the job's first hosts; None takes the job's ring."""
    mtu: int | None = None
    """MTU; None takes the job's."""
    seed: int = 0
    """Of weights, data order, dropout, ports and faults."""
    restart_at: int | None = None
    """Step whose checkpoint the new trainer is built from; None takes the middle."""
    faults: tuple[Fault, ...] = ()
    """Damage to replicas."""
    timeout: float = 60.0
    """Seconds without progress after which to give up."""


def adapt_job(job: Job, options: TestbedOptions) -> Job:
    """Return `job` with the ranks and the MTU that `options` ask for.

    Raises:
        JobError: the job has too few hosts, or is not sound with these changes.
        TestbedError: the job is of a kind that the testbed does not run.
    """
    if len(job.groups) != 1 or len(job.groups[0].shadows) != 1:
        raise TestbedError("testbed", f"job {job.name!r} has {len(job.groups)} groups, or several shadows in one",
                           "the testbed runs one group with one shadow node")  # fmt: skip
    group = job.groups[0]
    if options.ranks is not None:
        if options.ranks > len(job.hosts):
            message = f"{options.ranks} ranks are asked for; add hosts for them"
            raise JobError([Problem("hosts", f"the job declares {len(job.hosts)}, {message}")])
        group = group.model_copy(update={"ring": [host.name for host in job.hosts[: options.ranks]]})
    network = job.network
    if options.mtu is not None:
        network = network.model_copy(update={"mtu": options.mtu})
    # Validated anew: model_copy checks nothing, and cached properties must not be carried over.
    adapted = Job.model_validate({**job.model_dump(), "groups": [group.model_dump()], "network": network.model_dump()})
    problems = problems_of(adapted)
    if problems:
        raise JobError(problems)
    return adapted


def run_testbed(job: Job, options: TestbedOptions, progress: RunProgress) -> RunResult:
    """Run `job` and return what was found; summary, report, captures and checkpoints are in `options.out`.

    Raises:
        JobError, TestbedError, ControlPlaneError: the run cannot be made; the message says why.
    """
    started = time.monotonic()
    job = adapt_job(job, options)
    restart_at = options.restart_at or options.iterations // 2
    if restart_at >= options.iterations:
        raise TestbedError("restart", f"step {restart_at} is not before the last step {options.iterations}")
    if options.fabric == "inproc" and options.switch != "softswitch":
        raise TestbedError("switch", f"{options.switch} is a process of its own", "use --fabric mininet")
    if options.fabric != "inproc" and options.faults:
        raise TestbedError("fault", "only the in-process fabric can damage replicas", "use --fabric inproc")
    _clear(options.out)
    job_file = options.out / "job.yaml"
    job_file.write_text(yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False))
    checkpoints, events = options.out / "checkpoints", options.out / "events.jsonl"
    group = job.groups[0]

    def evidence(plan: TrainingPlan, status: Status) -> EpochEvidence:
        return read_epoch(plan.logs, len(group.ring), events, checkpoints, group.name, plan.epoch, status)

    whole = TrainingPlan(1, 1, options.iterations, options.out / "uninterrupted")
    point = point_path(checkpoints, group.name, whole.epoch, restart_at)
    again = TrainingPlan(2, restart_at + 1, options.iterations, options.out / "restarted", point)
    progress.say(f"starting {options.switch} and {len(group.ring)} ranks, fabric {options.fabric}")
    with (
        _fabric(job, job_file, options) as fabric,
        Target.connect(fabric.target, job.switch.device_id, election_id=_ELECTION_ID) as target,
    ):
        installed = target.install(desired_state([job]))
        progress.say(f"installed the job on {fabric.target}: {len(installed.plan.updates)} updates")
        accuracy = _train(fabric, whole, "training", progress)
        status = fabric.settle(options.iterations)
        first = evidence(whole, status)
        second = None
        if point.exists():
            _train(fabric, again, f"restarted from checkpoint {restart_at}", progress)
            status = fabric.settle(options.iterations)
            second = evidence(again, status)
        counters = _switch_counters(target)
    progress.say("comparing every checkpoint with the trainer, bit for bit")
    layout = DataParallelTrainer(job, group, 0, options.seed).layout
    header_bytes = _header_bytes(job, layout)
    result = RunResult(
        job=job,
        switch=options.switch,
        fabric=options.fabric,
        seed=options.seed,
        gradient_bytes=layout.nbytes,
        header_bytes=header_bytes,
        iterations=first.iterations(),
        ranks_equal=first.ranks_equal() and (second is None or second.ranks_equal()),
        restart=_compare_restart(first, second, again),
        wall_seconds=0.0,
        accuracy=accuracy,
        discarded=dict(status.discarded),
        switch_counters=counters,
        faults=tuple(str(fault) for fault in options.faults),
    )
    result = replace(result, wall_seconds=time.monotonic() - started)
    result.write_summary(options.out / "summary.json")
    write_report(result, options.out / "report.html")
    return result


def _fabric(job: Job, job_file: Path, options: TestbedOptions) -> AbstractContextManager[Fabric]:
    if options.fabric == "inproc":
        return InprocFabric(job, options.out, options.seed, options.faults)
    return MininetFabric(job, job_file, options.out, options.switch, options.seed, options.timeout)


def _train(fabric: Fabric, plan: TrainingPlan, what: str, progress: RunProgress) -> float:
    progress.begin(what, plan.last_step - plan.first_step + 1)
    return fabric.train(plan, lambda step, loss: progress.step(step - plan.first_step + 1, f"loss {loss:.4f}"))


def _compare_restart(first: EpochEvidence, second: EpochEvidence | None, plan: TrainingPlan) -> RestartResult:
    if second is None:
        why = f"there is no recovery point of step {plan.first_step - 1} to restart from"
        return RestartResult(0, (), False, why)
    last = plan.last_step
    difference = first_difference(first.trainer_state(last), second.trainer_state(last))
    one, two = first.recovery_point(last), second.recovery_point(last)
    if difference is None and one is not None and two is not None:
        difference = _records_differ(one, two)
    return RestartResult(plan.first_step - 1, second.iterations(), difference is None, difference)


def _records_differ(one: RecoveryPoint, two: RecoveryPoint) -> str | None:
    """Compare what the ranks told besides tensors: schedule, data position, random number states."""
    for a, b in zip(one.manifest.records, two.manifest.records, strict=True):
        if a != b:
            return f"rank {a.rank}: {a.objects} against {b.objects}"
    raw = {name for name in {**one.tensors, **two.tensors} if name.startswith("rank/")}
    for name in sorted(raw):
        ours, theirs = one.tensors.get(name), two.tensors.get(name)
        if ours is None or theirs is None or not bool((ours == theirs).all()):
            return f"{name} differs"
    return None


def _header_bytes(job: Job, layout: Layout) -> int:
    total = 0
    for flow in job.flows:
        for frame in step_plan(flow.shape, layout).frames:
            if (frame.phase, frame.hop) == (Phase.ALL_GATHER, 0):
                total += frame.header_bytes
    return total


def _switch_counters(target: Target) -> dict[str, int]:
    """Return packets by lower-case reason not to replicate, plus ``replicated``."""
    state, counters = target.read_counters()
    replicated = sum(
        counters.entries[entry.key].packets
        for entry in state.entities
        if isinstance(entry, TableEntry) and entry.table == Table.REPLICATE and entry.key in counters.entries
    )
    reasons = {reason.name.lower(): count.packets for reason, count in sorted(counters.not_replicated.items())}
    return {**reasons, "replicated": replicated}


def _clear(out: Path) -> None:
    """Make the folder, and remove what an earlier run wrote there; anything else stays.

    Raises:
        TestbedError: the folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path in (*(out / name for name in _OURS), *out.glob("*.pcap")):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise TestbedError("out", f"{out} cannot be written: {error.strerror}", "choose another folder") from error
