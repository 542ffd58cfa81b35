"""The testbed run: train, compare every recovery point with the trainer, restart from one, report."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from checkmate_common.files.private_files import make_private_folder, write_private
from checkmate_common.sidechannel.side_channel_pb2 import Status
from checkmate_common.stream.ring import Phase
from checkmate_common.stream.schedule import step_plan
from controlplane.desired import desired_state
from controlplane.entities import TableEntry
from controlplane.target import Target
from jobspec.checks import problems_of
from jobspec.errors import JobError, Problem
from jobspec.model import Job, SwitchSpec
from nccl_emu.training.digits import Digits
from nccl_emu.training.trainer import DataParallelTrainer
from p4src.names import Table
from topology.epochs import Epoch, compare_restart
from topology.errors import TestbedError
from topology.fabric.base import Fabric, TrainingPlan
from topology.fabric.inproc import InprocFabric
from topology.fabric.mininet_fabric import MininetFabric
from topology.fabric.participants import Participants, Track
from topology.fabric.run_files import RunFiles
from topology.fabric.run_tls import RunTls
from topology.faults import Fault
from topology.processes.switch_events import EventPlan, SwitchEvent, check_events
from topology.processes.switch_supervisor import ELECTION_ID
from topology.progress import RunProgress
from topology.report.page import write_report
from topology.results import RunResult

_RUN_OUTPUTS = (
    "summary.json", "report.html", "job.yaml", "events.jsonl", "side-channel.bin", "uninterrupted", "restarted",
    "checkpoints", "restored", "logs", "certs",
)  # fmt: skip
"""Files and folders that a run writes besides captures."""


@dataclass(frozen=True)
class TestbedOptions:
    """Options of a testbed run."""

    __test__ = False  # the name makes pytest take it for a test class

    out: Path
    """Folder for everything that the run writes."""
    switch: str = "softswitch"
    """``softswitch`` or ``bmv2``."""
    fabric: str = "inproc"
    """``inproc`` or ``mininet``."""
    iterations: int = 20
    """Training steps."""
    ranks: int | None = None
    """Number of ranks, on the job's first hosts; None uses the job's ring."""
    mtu: int | None = None
    """MTU in bytes; None uses the job's."""
    seed: int = 0
    """Seed of weights, data order, dropout, ports and faults."""
    restart_at: int | None = None
    """Step whose recovery points the restarted trainers start from; None uses the middle of the run."""
    faults: tuple[Fault, ...] = ()
    """Damage to replicas."""
    events: tuple[SwitchEvent, ...] = ()
    """Restarts and failovers during the uninterrupted run."""
    resync: bool = True
    """Whether rank 0 uploads its state after a shadow node has lost a step."""
    tls: bool = False
    """Whether side channel and P4Runtime use mutual TLS, with certificates made for the run."""
    timeout: float = 60.0
    """Seconds without progress after which the run fails."""


def adapt_job(job: Job, options: TestbedOptions) -> Job:
    """Return `job` with the ranks and the MTU that `options` ask for.

    Raises:
        JobError: the job has too few hosts, or is not valid with these changes.
        TestbedError: the testbed does not support the job.
    """
    groups = list(job.groups)
    if not groups:
        raise TestbedError("testbed", f"job {job.name!r} has no groups, only RoCEv2 queue pairs",
                           "the testbed's ranks all-reduce over TCP: add groups")  # fmt: skip
    owner: dict[str, str] = {}
    for group in groups:
        for name in group.ring:
            if owner.setdefault(name, group.name) != group.name:
                raise TestbedError("testbed", f"host {name} is a rank of {owner[name]} and of {group.name}",
                                   "the testbed gives each rank a host of its own: add hosts")  # fmt: skip
    if options.ranks is not None:
        if len(groups) > 1:
            raise TestbedError("ranks", f"job {job.name!r} has {len(groups)} groups, so their rings say how many ranks",
                               "leave the number out, or change the rings in the job file")  # fmt: skip
        if options.ranks > len(job.hosts):
            message = f"{options.ranks} ranks are asked for; add hosts for them"
            raise JobError([Problem("hosts", f"the job declares {len(job.hosts)}, {message}")])
        groups = [groups[0].model_copy(update={"ring": [host.name for host in job.hosts[: options.ranks]]})]
    network = job.network
    if options.mtu is not None:
        network = network.model_copy(update={"mtu": options.mtu})
    # Validated again: model_copy checks nothing, and cached properties must not be carried over.
    changed = {"groups": [group.model_dump() for group in groups], "network": network.model_dump()}
    adapted = Job.model_validate({**job.model_dump(), **changed})
    problems = problems_of(adapted)
    if problems:
        raise JobError(problems)
    return adapted


def run_testbed(job: Job, options: TestbedOptions, progress: RunProgress) -> RunResult:
    """Run `job` and return the result; summary, report, captures and checkpoints are in `options.out`.

    Raises:
        JobError, TestbedError, ControlPlaneError: the run failed; the message says why.
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
    check_events(options.events, job, options.iterations)
    _clear(options.out)
    job_file = options.out / "job.yaml"
    write_private(job_file, yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False))
    files = RunFiles(options.out, Participants(job))
    whole = TrainingPlan(1, 1, options.iterations, options.out / "uninterrupted")
    ranks = sum(len(group.ring) for group in job.groups)
    tls = RunTls.make(job, options.out / "certs") if options.tls else RunTls(job.name)
    progress.message(f"starting {options.switch} and {ranks} ranks, fabric {options.fabric}")
    with _fabric(job, job_file, options, tls) as fabric, ExitStack() as connections:
        if not EventPlan(options.events).of_switch:  # otherwise the fabric's controller installs the job
            for switch in job.switches:
                target = connections.enter_context(_connect(fabric, switch, tls, ELECTION_ID))
                installed = target.install(desired_state([job], switch.name))
                progress.message(
                    f"installed the job on {switch.name} ({target.address}): {len(installed.plan.updates)} updates"
                )
        accuracy = _train(fabric, whole, "training", progress)
        statuses = fabric.settle(options.iterations)
        first = Epoch.read(files, whole, statuses)
        second = None
        points = {group.name: first.restore(group.name, restart_at, files.restored(group)) for group in job.groups}
        found = {name: point for name, point in points.items() if point is not None}
        again = TrainingPlan(2, restart_at + 1, options.iterations, options.out / "restarted", found)
        if len(found) == len(points):
            _train(fabric, again, f"restarted from checkpoint {restart_at}", progress)
            statuses = fabric.settle(options.iterations)
            second = Epoch.read(files, again, statuses)
        counters = _switch_counters(
            [connections.enter_context(_connect(fabric, switch, tls)) for switch in job.switches]
        )
        event_log = tuple(fabric.event_log)
    progress.message("comparing every checkpoint with the trainer, bit for bit")
    gradient, headers = _bytes_of_a_step(job, options.seed)
    result = RunResult(
        job=job,
        switch=options.switch,
        fabric=options.fabric,
        seed=options.seed,
        gradient_bytes=sum(gradient.values()),
        header_bytes=sum(headers.values()),
        group_bytes={name: gradient[name] + headers[name] for name in gradient},
        iterations=first.iterations(),
        ranks_equal=first.ranks_equal() and (second is None or second.ranks_equal()),
        restart=compare_restart(first, second, restart_at, [name for name in points if name not in found]),
        wall_seconds=0.0,
        accuracy=accuracy,
        discarded=_discarded(statuses),
        switch_counters=counters,
        faults=tuple(str(fault) for fault in options.faults),
        events=event_log,
    )
    result = replace(result, wall_seconds=time.monotonic() - started)
    result.write_summary(options.out / "summary.json")
    write_report(result, options.out / "report.html")
    return result


def _fabric(job: Job, job_file: Path, options: TestbedOptions, tls: RunTls) -> AbstractContextManager[Fabric]:
    if options.fabric == "inproc":
        return InprocFabric(
            job, options.out, options.seed, options.faults, options.events, resync=options.resync, tls=tls
        )  # fmt: skip
    return MininetFabric(
        job, job_file, options.out, options.switch, options.seed, options.timeout, options.events,
        resync=options.resync, tls=tls,
    )  # fmt: skip


def _connect(fabric: Fabric, switch: SwitchSpec, tls: RunTls, election_id: int | None = None) -> Target:
    target = fabric.targets[switch.name]
    return Target.connect(target, switch.device_id, election_id=election_id, tls=tls.controller())


def _train(fabric: Fabric, plan: TrainingPlan, what: str, progress: RunProgress) -> float:
    progress.begin(what, plan.last_step - plan.first_step + 1)
    return fabric.train(plan, lambda step, loss: progress.step(step - plan.first_step + 1, f"loss {loss:.4f}"))


def _bytes_of_a_step(job: Job, seed: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of one gradient, and of its frame headers at hop 0, by group."""
    gradient, headers = {}, {}
    digits = Digits.load()
    for group in job.groups:
        layout = DataParallelTrainer(job, group, 0, seed, digits).layout
        gradient[group.name] = layout.nbytes
        headers[group.name] = sum(
            frame.header_bytes
            for flow in job.flows
            if flow.group.name == group.name
            for frame in step_plan(flow.shape, layout).frames
            if (frame.phase, frame.hop) == (Phase.ALL_GATHER, 0)
        )
    return gradient, headers


def _discarded(statuses: Mapping[Track, Status]) -> dict[str, int]:
    """Return the number of replicas that shadow nodes did not place, by cause."""
    causes: Counter[str] = Counter()
    for status in statuses.values():
        causes.update(status.discarded)
    return dict(causes)


def _switch_counters(targets: Sequence[Target]) -> dict[str, int]:
    """Return packets not replicated, by lower-case reason, and those ``replicated``, over all switches."""
    found: Counter[str] = Counter()
    replicated = 0
    for target in targets:
        state, counters = target.read_counters()
        replicated += sum(
            counters.entries[entry.key].packets
            for entry in state.entities
            if isinstance(entry, TableEntry) and entry.table == Table.REPLICATE and entry.key in counters.entries
        )
        for reason, count in sorted(counters.not_replicated.items()):
            found[reason.name.lower()] += count.packets
    return {**found, "replicated": replicated}


def _clear(out: Path) -> None:
    """Make the folder, readable by its owner only, and remove the files of an earlier run; all others stay.

    Raises:
        TestbedError: the folder cannot be written.
    """
    try:
        make_private_folder(out)
        patterns = ("*.pcap", "events-*.jsonl", "access*.jsonl", "side-channel-*.bin", "captures-after-*")
        for path in (
            *(out / name for name in _RUN_OUTPUTS),
            *(path for pattern in patterns for path in out.glob(pattern)),
        ):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise TestbedError("out", f"{out} cannot be written: {error.strerror}", "choose another folder") from error
