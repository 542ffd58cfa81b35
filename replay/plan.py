"""What is expected in the captures: for each epoch of each group its layout, its flows, and where their streams begin.

The layout comes from the side-channel log; without one it is inferred from the frame headers. A stream's position comes
from its SYN, or from a frame header where the SYN was not captured: a header says which frame it begins, and the
schedule where that frame is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from checkmate_common.stream.frame import FrameHeader
from checkmate_common.stream.layout import Bucket, Layout, ParamSpec, Slot
from checkmate_common.stream.ring import Phase, chunk_range
from checkmate_common.stream.schedule import FlowSchedule, FlowShape, FrameSlot, StepPlan, step_plan
from jobspec.model import Flow, Job
from placement.frames import FrameIdentity
from replay.records import EpochRecords, Records
from replay.survey import Census, EpochKey, SeenStream, Survey
from shadow_rx.errors import ShadowError
from shadow_rx.trainer.description import parse_layout

_MODULUS = 1 << 32


@dataclass(frozen=True)
class FlowFrames:
    """The frames of a step of one flow, under one layout."""

    plan: StepPlan
    """All frames, in stream order."""
    primary: tuple[FrameSlot, ...]
    """Frames that carry reduced bytes for the first time."""
    by_place: dict[tuple[int, Phase, int, int], FrameSlot]
    """Frames by bucket, phase, hop and element offset."""

    @classmethod
    def of(cls, plan: StepPlan) -> FlowFrames:
        """Return the frames of `plan`."""
        primary = tuple(frame for frame in plan.frames if frame.phase is Phase.ALL_GATHER and frame.hop == 0)
        by_place = {(f.bucket, f.phase, f.hop, f.element_offset): f for f in plan.frames}
        return cls(plan, primary, by_place)

    def of_header(self, header: FrameHeader) -> FrameSlot | None:
        """Return the frame that `header` begins, None where no frame has such a header."""
        frame = self.by_place.get((header.bucket, header.phase, header.hop, header.element_offset))
        return frame if frame is not None and frame.payload_bytes == header.payload_bytes else None


@dataclass(frozen=True)
class PlannedFlow:
    """One flow of an epoch."""

    id: int
    """Flow id of the job; without a job a number among the flows of the epoch."""
    in_job: bool
    """Whether there is a job that knows it."""
    schedule: FlowSchedule
    """Position arithmetic."""
    eras: tuple[tuple[int, FlowFrames], ...]
    """Frames by the first step that they are in force, rising."""

    @property
    def shape(self) -> FlowShape:
        """Rank, channel, and how chunks are cut into frames."""
        return self.schedule.shape

    @property
    def rank(self) -> int:
        """Sending rank."""
        return self.shape.rank

    @property
    def channel(self) -> int:
        """Channel."""
        return self.shape.channel

    @property
    def hops(self) -> tuple[int, ...]:
        """Hops of the all-gather: a capture may have any of them."""
        return tuple(range(self.shape.ring_size - 1))

    @property
    def job_id(self) -> int | None:
        """Flow id of the job, None without one."""
        return self.id if self.in_job else None

    def at(self, step: int) -> FlowFrames:
        """Return the frames of `step`, at least the epoch's first."""
        return next(frames for since, frames in reversed(self.eras) if since <= step)

    @property
    def carries_bytes(self) -> bool:
        """Whether the flow has any frames at all."""
        return any(frames.plan.length for _, frames in self.eras)

    @property
    def label(self) -> str:
        """How text names the flow."""
        who = f"rank {self.rank}" + (f" channel {self.channel}" if self.schedule.shape.channels > 1 else "")
        return f"flow {self.id} ({who})" if self.in_job else who

    def position_of(self, header: FrameHeader) -> int | None:
        """Return the stream position of the frame that `header` begins, None where no frame has such a header."""
        if header.step < self.schedule.first_step:
            return None
        frame = self.at(header.step).of_header(header)
        return self.schedule.frame_range(header.step, frame)[0] if frame is not None else None


@dataclass
class EpochPlan:
    """One incarnation of a group."""

    job: int
    """Job number."""
    group_id: int
    """Group number."""
    group: str
    """Group name; without a job ``group-<number>``."""
    epoch: int
    """The incarnation."""
    layouts: tuple[tuple[int, Layout], ...]
    """Layouts by the first step that they are in force, rising; one that was inferred has one parameter a bucket."""
    inferred: bool
    """Whether the layout was inferred from frame headers."""
    first_step: int
    """Step that begins at stream position 0, as far as known."""
    last_step: int
    """Newest step that the ranks told of, or that a header names."""
    flows: dict[tuple[int, int], PlannedFlow] = field(default_factory=dict)
    """By channel and rank."""
    proven: bool = True
    """Whether the layout is known to be whole: told, or inferred and proven by streams that go from one step to the
    next where it says."""

    def layout_at(self, step: int) -> Layout:
        """Return the layout of `step`, at least the epoch's first."""
        return next(layout for since, layout in reversed(self.layouts) if since <= step)

    @property
    def by_id(self) -> dict[int, PlannedFlow]:
        """Flows by id."""
        return {flow.id: flow for flow in self.flows.values()}

    def identity(self, flow: PlannedFlow, step: int) -> FrameIdentity:
        """Return what the headers of a flow's frames must say in a step."""
        version = self.layout_at(step).version
        return FrameIdentity(self.job, self.group_id, self.epoch, flow.channel, flow.rank, step, version)

    @property
    def key(self) -> EpochKey:
        """Job number, group number, epoch."""
        return self.job, self.group_id, self.epoch

    @property
    def label(self) -> str:
        """How text names the epoch."""
        return f"group {self.group} epoch {self.epoch}"


@dataclass(frozen=True)
class Binding:
    """Where the bytes of a stream belong."""

    epoch: EpochPlan
    """Its epoch."""
    flow: PlannedFlow
    """Its flow."""
    base: int
    """TCP sequence number of stream position 0, mod 2^32."""
    reference: int
    """A position that is near the stream's first bytes in its file."""
    sync: str
    """``syn`` or ``header``: how `base` is known."""
    seen: SeenStream
    """What was found."""


def plan_epochs(
    survey: Survey, job: Job | None, records: Records | None
) -> tuple[dict[EpochKey, EpochPlan], list[str]]:
    """Return the epochs whose layout is known, and what is wrong with the others."""
    plans: dict[EpochKey, EpochPlan] = {}
    problems: list[str] = []
    for key, census in sorted(survey.epochs.items()):
        number, group_id, epoch = key
        if job is not None and number != job.id:
            problems.append(f"frames of job number {number}, and job {job.name} has number {job.id}: left out")
            continue
        group = next((g for g in job.groups if g.id == group_id), None) if job is not None else None
        if job is not None and group is None:
            problems.append(f"frames of group number {group_id}, which job {job.name} does not have: left out")
            continue
        name = group.name if group is not None else f"group-{group_id}"
        told = records.epoch(name, epoch) if records is not None else None
        if records is not None and told is None:
            problems.append(
                f"group {name} epoch {epoch} is not in the records: its layout is inferred from frame headers"
            )
        try:
            plan = _plan(key, name, census, job, told, census.first_step)
            earliest = min((step for step in _first_steps(survey, key, plan)), default=plan.first_step)
            if told is None and earliest < plan.first_step:
                plan = _plan(key, name, census, job, told, earliest)
            plans[key] = plan
        except ValueError as error:
            problems.append(f"unknown_layout: group {name} epoch {epoch}: {error}")
    return plans, problems


def _plan(
    key: EpochKey, name: str, census: Census, job: Job | None, told: EpochRecords | None, first_step: int
) -> EpochPlan:
    ours = {(f.channel, f.rank): f for f in job.flows if f.group.name == name} if job is not None else {}
    shape = _shape(census, list(ours.values()))
    if told is not None:
        try:
            layouts = [(since, parse_layout(text)) for since, text in told.layouts()]
        except ShadowError as error:
            raise ValueError(str(error)) from error
        first = told.attach.first_step
    else:
        layouts = [(first_step, infer_layout(census, shape))]
        first = first_step
    last = max(census.last_step, told.last_step if told is not None else 0)
    plan = EpochPlan(*key[:2], name, key[2], tuple(layouts), told is None, first, last)
    for channel in range(shape.channels):
        for rank in range(shape.ring_size):
            flow = ours.get((channel, rank))
            mine = FlowShape(shape.ring_size, rank, shape.channels, channel, frame_payload=shape.frame_payload)
            number = flow.id if flow is not None else channel * shape.ring_size + rank
            schedule = FlowSchedule(mine, layouts, first)
            eras = tuple((since, FlowFrames.of(step_plan(mine, layout))) for since, layout in layouts)
            plan.flows[channel, rank] = PlannedFlow(number, flow is not None, schedule, eras)
    return plan


def _shape(census: Census, flows: Sequence[Flow]) -> FlowShape:
    if flows:
        return flows[0].shape
    return FlowShape(census.ranks, 0, census.channels, 0, frame_payload=max(8, census.frame_payload))


def infer_layout(census: Census, shape: FlowShape) -> Layout:
    """Return the layout that all headers fit, with one parameter named ``bucket-<index>`` for each bucket.

    The number of elements of a bucket is the end of its last chunk on its last channel.

    Raises:
        ValueError: the headers contradict each other, or none of a bucket's last chunk was captured.
    """
    if census.contradiction is not None:
        raise ValueError(census.contradiction)
    if len(census.versions) != 1:
        raise ValueError(f"frames of layout versions {sorted(census.versions)} in one epoch, expected one")
    slots: list[Slot] = []
    for index in range(max(census.dtypes) + 1):
        end = census.ends.get((index, shape.channels - 1, shape.ring_size - 1))
        if index not in census.dtypes or end is None:
            raise ValueError(
                f"no frame of bucket {index}'s last chunk was captured, so its size is not known; give the run's "
                "side-channel log (--records), or captures of more ports"
            )
        slots.append(Slot(ParamSpec(f"bucket-{index}", (end[1],), census.dtypes[index]), index, 0))
    buckets = tuple(Bucket(slot.bucket, slot.param.dtype, slot.param.elements) for slot in slots)
    for (bucket, channel, chunk), (low, high) in census.ends.items():
        first, last = chunk_range(buckets[bucket].elements, shape.channels, channel, shape.ring_size, chunk)
        if low < first or high > last:
            raise ValueError(
                f"chunk {chunk} of bucket {bucket} has elements [{low}, {high}), and with {shape.ring_size} ranks and "
                f"{shape.channels} channels it would be [{first}, {last}); give the job file (--job)"
            )
    [version] = census.versions
    return Layout(version, buckets, tuple(slots))


def bind(seen: SeenStream, plans: dict[EpochKey, EpochPlan]) -> Binding | str | None:
    """Return where a stream belongs, None for one of an epoch without a plan, or why its headers fit no plan."""
    first, last = seen.first, seen.last
    if first is None or last is None:
        return None
    header = first.header
    plan = plans.get((header.job, header.group, header.epoch))
    if plan is None:
        return None
    flow = plan.flows.get((header.channel, header.rank))
    start = flow.position_of(header) if flow is not None else None
    if flow is None or start is None:
        return (
            f"its header of step {header.step} bucket {header.bucket} chunk {header.chunk} has no place in the layout"
        )
    base = (first.seq - start) % _MODULUS
    end = flow.position_of(last.header)
    if end is None or (last.seq - end) % _MODULUS != base:
        return f"its headers of steps {header.step} and {last.header.step} are not where the layout has them"
    sync = "syn" if seen.isn is not None and (seen.isn + 1) % _MODULUS == base else "header"
    return Binding(plan, flow, base, 0 if sync == "syn" else start, sync, seen)


def prove_layouts(plans: Iterable[EpochPlan], found: Sequence[tuple[SeenStream, Binding | str]]) -> None:
    """Find out which inferred layouts are proven: the ends of buckets that nobody saw are not in the headers.

    A stream carries every chunk of its channel in each step. So where its headers of two different steps are as far
    from each other as the layout says, no part of a bucket of that channel is missing in the layout.
    """
    for plan in plans:
        streams = [(seen, bound) for seen, bound in found if seen.first is not None and seen.first.epoch == plan.key]
        channels = {
            bound.flow.channel
            for seen, bound in streams
            if not isinstance(bound, str) and seen.first is not None and seen.last is not None
            and seen.first.header.step != seen.last.header.step
        }  # fmt: skip
        contradicted = any(isinstance(bound, str) for _, bound in streams)
        plan.proven = not plan.inferred or (not contradicted and channels == {channel for channel, _ in plan.flows})


def _first_steps(survey: Survey, key: EpochKey, plan: EpochPlan) -> Iterator[int]:
    """Yield, for each stream of the epoch whose SYN was captured, the step that follows the SYN."""
    for seen in (seen for streams in survey.streams for seen in streams):
        if seen.isn is None or seen.first is None:
            continue
        header = seen.first.header
        flow = plan.flows.get((header.channel, header.rank))
        if (header.job, header.group, header.epoch) != key or flow is None:
            continue
        frames = flow.eras[0][1]
        frame = frames.of_header(header)
        if frame is None:
            continue
        steps, rest = divmod((seen.first.seq - seen.isn - 1) % _MODULUS - frame.start, frames.plan.length)
        if rest == 0 and 0 <= steps < header.step:
            yield header.step - steps
