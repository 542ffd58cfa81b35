"""Replays captures of our own traffic: two readings, the first to find the streams, the second to place their bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capture.errors import CaptureError
from capture.reader import CaptureReader, open_capture
from checkmate_common.recovery.point import RecoveryPointError
from checkmate_common.recovery.reasons import GapReason
from jobspec.model import Job
from packets.batch import PacketBatch
from packets.frame import parse_frame
from packets.names import unread_link
from packets.template import PacketError
from replay.apply import Applier, Checkpoint
from replay.collector import Collector, Run, StreamPosition
from replay.errors import ReplayError
from replay.gradient import Carrier, StepGradient, step_result
from replay.output import GradientFiles
from replay.plan import Binding, EpochPlan, bind, plan_epochs, prove_layouts
from replay.records import Records
from replay.results import AbsentSteps, ReplayReport, StreamResult
from replay.segments import dotted
from replay.source import Source, merged
from replay.survey import EpochKey, SeenStream, Survey
from replay.switch import SwitchProgram
from shadow_rx.store.opening import open_for_reading, storage_of
from shadow_rx.store.writer import RecoveryStore

Progress = Callable[[str, int, int | None], None]
"""Called as progress(what is done, bytes read, bytes in all or None)."""


@dataclass(frozen=True)
class ReplayOptions:
    """What to do with captures of our own traffic."""

    job: Job | None = None
    """The job; None: everything is taken from frame headers."""
    records: tuple[Path, ...] = ()
    """Side-channel logs of the run."""
    checkpoints: tuple[Path, ...] = ()
    """Recovery points to begin from, at most one for each group."""
    out: Path | None = None
    """Folder for gradients and recovery points."""
    compare: Path | None = None
    """Folder of the run's recovery points to compare with."""
    apply: bool = True
    """Whether to apply the optimizer where job and records allow it."""
    through_switch: bool = False
    """Whether to send each frame through the switch program first."""


class _Replay:
    """The state of one replay."""

    def __init__(self, captures: Sequence[Path], options: ReplayOptions, progress: Progress) -> None:
        self._captures = captures
        self._options = options
        self._progress = progress
        self._records = _read_records(options)
        self.report = ReplayReport(
            tuple(str(path) for path in captures),
            options.job.name if options.job is not None else None,
            tuple(str(path) for path in options.records),
            options.through_switch,
        )
        self._checkpoints = [Checkpoint.read(path, options.job) for path in options.checkpoints if options.job]
        if options.compare is not None:
            try:
                open_for_reading(storage_of(options.compare))
            except RecoveryPointError as error:
                raise ReplayError("--compare", str(error), "give a run's checkpoints that can be read") from error
        self._files = GradientFiles(options.out) if options.out is not None else None
        self._store = RecoveryStore(options.out / "checkpoints") if options.out is not None else None
        self._collectors: dict[EpochKey, Collector] = {}
        self._oldest: dict[str, int] = {}
        self._appliers: dict[str, Applier] = {}
        self.hashers = ThreadPoolExecutor(1, "hash-gradients")
        self._carriers: dict[EpochKey, set[Carrier]] = {}
        self._discarded: Counter[str] = Counter()
        self._oddities: Counter[str] = Counter()

    def survey(self) -> list[list[Binding]]:
        """Read all files once; return the streams of each."""
        survey = Survey()
        sizes = _sizes(self._captures)
        before = 0
        for path in self._captures:
            with _open(path) as reader:
                try:
                    survey.read(self._ticking(reader, "finding streams", before, sizes))
                except CaptureError as error:
                    if not survey.packets:
                        raise ReplayError(error.path, error.problem, error.fix) from error
                before += reader.bytes_read
                self._oddities.update(reader.oddities)
        survey.finish()
        self.report.packets, self.report.other = survey.packets, dict(survey.other)
        if not survey.epochs:
            raise self._nothing(survey)
        plans, problems = plan_epochs(survey, self._options.job, self._records)
        self.report.problems += problems
        bound = [
            (str(path), seen, where)
            for path, streams in zip(self._captures, survey.streams, strict=True)
            for seen in streams
            if (where := bind(seen, plans)) is not None
        ]
        prove_layouts(plans.values(), [(seen, where) for _, seen, where in bound])
        self.report.problems += [
            f"unknown_layout: {plan.label}: nothing proves that its last bucket was captured to its end; capture into "
            "the next step, or give the run's side-channel log (--records)"
            for plan in plans.values()
            if not plan.proven
        ]
        bindings = [self._take([each for each in bound if each[0] == str(path)]) for path in self._captures]
        if not any(bindings):
            raise ReplayError(
                self.report.files[0], "; ".join(self.report.problems), "give the run's own --job and --records"
            )
        return bindings

    def _ticking(self, reader: CaptureReader, what: str, before: int, total: int | None) -> Iterator[PacketBatch]:
        for batch in reader.batches():
            self._progress(what, before + reader.bytes_read, total)
            yield batch

    def _nothing(self, survey: Survey) -> ReplayError:
        found = ", ".join(f"{count} {name}" for name, count in survey.other.most_common(6)) or "nothing"
        problem = f"no gradient frames in {survey.packets} packets ({found})"
        fix = "capture a port of the ring or of a shadow node, from its SYN on"
        if survey.unread_links:
            fix = unread_link(min(survey.unread_links))
        elif survey.cut:
            problem, fix = f"{problem}, {survey.cut} of them cut off", "capture whole packets (tcpdump -s 0)"
        return ReplayError(self.report.files[0], problem, fix)

    def _take(self, streams: Sequence[tuple[str, SeenStream, Binding | str]]) -> list[Binding]:
        """Return the streams of a file that belong to an epoch, and list all in the report."""
        found: list[Binding] = []
        for file, seen, bound in streams:
            source, source_port, destination, port = dotted(seen.key)
            kind = "original" if seen.original else "replica"
            ends = f"{source}:{source_port}", f"{destination}:{port}"
            if isinstance(bound, str):
                result = StreamResult(file, *ends, kind, seen.payload_bytes, "header", problem=bound)
            else:
                flow, epoch = bound.flow, bound.epoch
                sync, problem = bound.sync, self._foreign(bound, source, destination)
                if self._options.through_switch and sync != "syn" and problem is None:
                    sync = GapReason.UNKNOWN_ISN
                    problem = f"{sync}: its SYN was not captured, so the switch program does not replicate it"
                result = StreamResult(
                    file, *ends, kind, seen.payload_bytes, sync, epoch.group, epoch.epoch, flow.job_id, flow.rank,
                    flow.channel, problem,
                )  # fmt: skip
                if problem is None:
                    found.append(bound)
                    carried = {(flow.channel, flow.rank, hop) for hop in seen.hops}
                    self._carriers.setdefault(epoch.key, set()).update(carried)
            self.report.streams.append(result)
            if result.problem is not None:
                self.report.problems.append(f"{file}: {ends[0]} to {ends[1]}: {result.problem}")
        return found

    def _foreign(self, bound: Binding, source: str, destination: str) -> str | None:
        """Return why a stream cannot be the job's, whatever its headers say."""
        job = self._options.job
        if job is None:
            return None
        flow = next(f for f in job.flows if f.id == bound.flow.id)
        ends = {str(flow.target.ip), *(str(shadow.ip) for shadow in flow.shadows)}
        if source != str(flow.source.ip) or destination not in ends:
            return f"its headers say flow {flow.id}, whose addresses are others: left out"
        return None

    def place(self, bindings: Sequence[Sequence[Binding]]) -> None:
        """Read all files again and place what the streams carry."""
        with ExitStack() as stack:
            switch = None
            if self._options.through_switch:
                assert self._options.job is not None
                switch = stack.enter_context(SwitchProgram(self._options.job))
            readers = [stack.enter_context(_open(path)) for path in self._captures]
            sources = [
                Source(str(path), reader, found, singly=switch is not None)
                for path, reader, found in zip(self._captures, readers, bindings, strict=True)
            ]
            total, read = _sizes(self._captures), -1
            replicas = _Replicas(self._options.job, bindings) if switch is not None else None
            for item in merged(sources):
                if read != (read := sum(reader.bytes_read for reader in readers)):
                    self._progress("placing bytes", read, total)
                if item.run is not None:
                    self._place_run(item.run)
                elif switch is not None and replicas is not None and item.seen is not None:
                    for copy in switch.forward(bytes(item.seen.data), item.seen.time_ns):
                        self._place_replica(replicas, copy)
                elif item.stream is not None and item.payload:
                    self._place(item.stream, item.position, item.payload)
            self._finish(sources, switch)

    def _place_replica(self, replicas: _Replicas, frame: bytes) -> None:
        found = replicas.take(frame)
        if isinstance(found, str):
            self._discarded[found] += 1
        elif found[2]:
            self._place(*found)

    def _place(self, stream: StreamPosition, position: int, payload: bytes) -> None:
        collector = self._collector(stream.binding.epoch)
        if collector is None:
            self._discarded["late"] += 1
        else:
            collector.place(stream, position, memoryview(payload))

    def _place_run(self, run: Run) -> None:
        plans = [stream.binding.epoch for stream in run.streams]
        keys = {plans[index].key: plans[index] for index in np.unique(run.stream).tolist()}
        for key, plan in sorted(keys.items()):
            mine = run
            if len(keys) > 1:
                mine = run.part(np.array([each.key == key for each in plans], np.bool_)[run.stream])
            collector = self._collector(plan)
            if collector is None:
                self._discarded["late"] += len(mine)
            else:
                collector.place_run(mine)

    def _collector(self, plan: EpochPlan) -> Collector | None:
        """Return what collects the epoch, None where it is over."""
        if plan.epoch < self._oldest.get(plan.group, 0):
            return None
        if plan.key not in self._collectors:
            carriers = self._carriers.get(plan.key, set())
            self._collectors[plan.key] = Collector(
                plan,
                lambda gradient: self._on_step(gradient, carriers),
                lambda first, last: self._on_absent(plan, first, last),
                self.hashers,
            )
        return self._collectors[plan.key]

    def _end_older(self, plan: EpochPlan) -> None:
        """End the epochs before that of `plan`, a step of which is over: their last segments had time to come."""
        if self._oldest.get(plan.group, 0) == plan.epoch:
            return
        self._oldest[plan.group] = plan.epoch
        for key in sorted(self._collectors):
            collector = self._collectors[key]
            if collector.plan.group == plan.group and collector.plan.epoch < plan.epoch:
                del self._collectors[key]
                self._end(collector)

    def _end(self, collector: Collector) -> None:
        collector.finish()
        self._discarded.update(collector.discarded)

    def _on_step(self, gradient: StepGradient, carriers: set[Carrier]) -> None:
        self._end_older(gradient.plan)
        result = step_result(gradient, carriers)
        if self._files is not None and result.complete:
            self._files.write(gradient, result)
        applier = self._applier(gradient.plan)
        if applier is not None:
            applier.take(gradient, result)
        self.report.steps.append(result)

    def _on_absent(self, plan: EpochPlan, first: int, last: int) -> None:
        self._end_older(plan)
        known = self.report.absent
        before = known[-1] if known else None
        if before is not None and (before.group, before.epoch, before.last + 1) == (plan.group, plan.epoch, first):
            known[-1] = AbsentSteps(plan.group, plan.epoch, before.first, last)
        else:
            known.append(AbsentSteps(plan.group, plan.epoch, first, last))
        applier = self._applier(plan)
        if applier is not None:
            applier.absent(plan.epoch, first)

    def _applier(self, plan: EpochPlan) -> Applier | None:
        job, records = self._options.job, self._records
        if job is None or records is None or plan.inferred or not self._options.apply:
            return None
        if plan.group not in self._appliers:
            checkpoint = next((c for c in self._checkpoints if c.point.manifest.group == plan.group), None)
            compare = RecoveryStore(self._options.compare) if self._options.compare is not None else None
            applier = Applier(job, plan.group, records, checkpoint, self._store, compare)
            self._appliers[plan.group] = applier
        return self._appliers[plan.group]

    def _finish(self, sources: Sequence[Source], switch: SwitchProgram | None) -> None:
        for key in sorted(self._collectors):
            if key in self._collectors:
                self._end(self._collectors[key])
        if self._store is not None:
            self._store.close()
        for source in sources:
            self._discarded.update(source.discarded)
            self._oddities["segments with unfinished checksums (offload): their frames' own checksums count"] += (
                source.unfinished
            )
            if source.problem is not None:
                self.report.problems.append(source.problem)
        if self._records is not None:
            self.report.problems += self._records.problems
        if self._options.compare is not None and all(step.compared is None for step in self.report.steps):
            self.report.problems.append(f"no step could be compared with one in {self._options.compare}")
        if switch is not None and not switch.replicas:
            self.report.problems.append("no frame came out of the switch program at a shadow node's port")
        self.report.oddities = {name: count for name, count in self._oddities.items() if count}
        self.report.discarded = {cause: count for cause, count in sorted(self._discarded.items()) if count}
        self.report.steps.sort(key=lambda step: (step.group, step.epoch, step.step))


class _Replicas:
    """Finds the stream of a replica that the switch program made."""

    def __init__(self, job: Job | None, bindings: Sequence[Sequence[Binding]]) -> None:
        assert job is not None
        self._bases = {str(shadow.ip): shadow.base_port for shadow in job.shadows}
        # The switch subtracts the ISN: the first payload byte of a replica has number 1.
        self._streams = {
            (bound.flow.id, dotted(bound.seen.key)[1]): StreamPosition(bound, base=1)
            for of_file in bindings
            for bound in of_file
        }

    def take(self, frame: bytes) -> tuple[StreamPosition, int, bytes] | str:
        """Return the stream, position and payload of a frame, or why it is of no use."""
        try:
            parsed = parse_frame(frame)
        except PacketError:
            return "malformed"
        base = self._bases.get(parsed.dst_ip) if parsed is not None else None
        if parsed is None or base is None:
            return "not_a_replica"
        if not parsed.checksums_ok:
            return "bad_ip_checksum" if not parsed.ip_checksum_ok else "bad_tcp_checksum"
        segment = parsed.segment
        stream = self._streams.get((segment.dst_port - base, segment.src_port))
        if stream is None:
            return "unknown_connection"
        position = stream.position(segment.seq) if segment.payload else 0
        if position < 0:
            return "bad_position"
        return stream, position, segment.payload


def replay(captures: Sequence[Path], options: ReplayOptions, progress: Progress) -> ReplayReport:
    """Reconstruct the steps in captures of our own traffic.

    Args:
        captures: pcap or pcapng files, of one run; each is read twice, so none can be a pipe.
        options: what to do.
        progress: told how far it is.

    Raises:
        ReplayError: a file or an option that cannot be used at all; what is damaged or missing is in the report.
    """
    run = _Replay(captures, options, progress)
    with run.hashers:
        run.place(run.survey())
    return run.report


def _read_records(options: ReplayOptions) -> Records | None:
    job = options.job
    if options.checkpoints and not options.records:
        raise ReplayError("--checkpoint", "without the side-channel log learning rates and the like are not known",
                          "give the run's log (--records)")  # fmt: skip
    if not options.records:
        return None
    if job is None:
        raise ReplayError("--records", "they name flows of a job", "give the job file too (--job)")
    records = Records(options.records)
    if records.jobs - {job.name}:
        problem = f"they are of job {', '.join(sorted(records.jobs))}, and the job is {job.name}"
        raise ReplayError("--records", problem, "give the log and the job file of one run")
    return records


def _open(path: Path) -> CaptureReader:
    try:
        return open_capture(path)
    except CaptureError as error:
        raise ReplayError(error.path, f"at byte {error.offset}: {error.problem}", error.fix) from error
    except OSError as error:
        raise ReplayError(str(path), f"cannot be read: {error.strerror}", "check the name") from error


def _sizes(paths: Sequence[Path]) -> int | None:
    try:
        return sum(path.stat().st_size for path in paths)
    except OSError:
        return None
