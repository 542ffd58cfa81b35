"""Stream positions of a flow: from stream bytes [a, b) to frames and back, as pure arithmetic.

A flow carries, for each step from `first_step` on, for each bucket in order, for each phase and hop, the frames of one
chunk. A position identifies a byte, so placing by position survives loss, reordering, duplication and retransmission.
Positions count from 0; the TCP sequence number of a replica is position + 1 (mod 2^32), because the SYN takes number 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import HEADER_BYTES
from checkmate_common.stream.layout import Layout
from checkmate_common.stream.ring import Phase, chunk_range, chunk_sent, hops

DEFAULT_FRAME_PAYLOAD = 64 * 1024


@dataclass(frozen=True)
class FlowShape:
    """Parameters of a flow that the arithmetic needs besides the layout."""

    ring_size: int
    """Number of ranks N, at least 2."""
    rank: int
    """The sending rank, 0..N-1."""
    channels: int = 1
    """Channels of the ring."""
    channel: int = 0
    """This flow's channel."""
    header_bytes: int = HEADER_BYTES
    """64 for framed streams, 0 for streams without headers."""
    frame_payload: int = DEFAULT_FRAME_PAYLOAD
    """Largest payload of one frame in bytes; longer chunks are sent as several frames."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: a field is out of range; the message names it.
        """
        if self.ring_size < 2:
            raise ValueError(f"ring_size is {self.ring_size}, expected at least 2")
        if not 0 <= self.rank < self.ring_size:
            raise ValueError(f"rank is {self.rank}, expected 0..{self.ring_size - 1}")
        if self.channels < 1 or not 0 <= self.channel < self.channels:
            raise ValueError(f"channel is {self.channel} of {self.channels}, expected 0..channels-1")
        if self.header_bytes not in (0, HEADER_BYTES):
            raise ValueError(f"header_bytes is {self.header_bytes}, expected 0 or {HEADER_BYTES}")
        if self.frame_payload < max(dtype.itemsize for dtype in DType):
            raise ValueError(f"frame_payload is {self.frame_payload}, expected at least one element")


@dataclass(frozen=True)
class FrameSlot:
    """A frame within the stream of one step; positions are relative to the step's first byte."""

    index: int
    """Index of the frame among the step's frames."""
    start: int
    """First byte (of the header) relative to the step's start."""
    header_bytes: int
    """Header length."""
    bucket: int
    """Bucket index."""
    phase: Phase
    """Half of the all-reduce."""
    hop: int
    """Hop within the phase."""
    chunk: int
    """Chunk index."""
    dtype: DType
    """Element type."""
    element_offset: int
    """First element in the bucket."""
    elements: int
    """Number of elements, at least 1."""

    @property
    def payload_start(self) -> int:
        """First payload byte relative to the step's start."""
        return self.start + self.header_bytes

    @property
    def payload_bytes(self) -> int:
        """Payload length in bytes."""
        return self.elements * self.dtype.itemsize

    @property
    def end(self) -> int:
        """One past the last byte relative to the step's start."""
        return self.payload_start + self.payload_bytes

    @property
    def byte_offset(self) -> int:
        """First payload byte within the bucket's buffer."""
        return self.element_offset * self.dtype.itemsize


class StepPlan:
    """The frames that one flow sends for one step of one layout, in stream order."""

    def __init__(self, shape: FlowShape, layout: Layout) -> None:
        """Compute the frames; chunks without elements have none."""
        self.shape = shape
        self.layout = layout
        self.frames: tuple[FrameSlot, ...] = tuple(_frames(shape, layout))
        self._starts = [frame.start for frame in self.frames]
        self.length: int = self.frames[-1].end if self.frames else 0
        """Stream bytes of the step."""
        self._by_hop: dict[tuple[int, Phase, int], list[FrameSlot]] = {}
        for frame in self.frames:
            self._by_hop.setdefault((frame.bucket, frame.phase, frame.hop), []).append(frame)

    def frame_at(self, offset: int) -> FrameSlot:
        """Return the frame that holds byte `offset` (0..length-1) of the step."""
        return self.frames[bisect_right(self._starts, offset) - 1]

    def frames_of(self, bucket: int, phase: Phase, hop: int) -> tuple[FrameSlot, ...]:
        """Return the frames of one hop of one bucket, in stream order."""
        return tuple(self._by_hop.get((bucket, phase, hop), ()))


def _frames(shape: FlowShape, layout: Layout) -> Iterator[FrameSlot]:
    index = position = 0
    for bucket in layout.buckets:
        size = bucket.dtype.itemsize
        per_frame = shape.frame_payload // size
        for phase, hop in hops(shape.ring_size):
            chunk = chunk_sent(phase, shape.rank, hop, shape.ring_size)
            first, last = chunk_range(bucket.elements, shape.channels, shape.channel, shape.ring_size, chunk)
            for offset in range(first, last, per_frame):
                frame = FrameSlot(
                    index, position, shape.header_bytes, bucket.index, phase, hop, chunk, bucket.dtype,
                    offset, min(per_frame, last - offset),
                )  # fmt: skip
                yield frame
                index, position = index + 1, frame.end


@lru_cache(maxsize=4096)
def step_plan(shape: FlowShape, layout: Layout) -> StepPlan:
    """Return the (cached) plan of `shape` under `layout`; plans are immutable."""
    return StepPlan(shape, layout)


@dataclass(frozen=True)
class Piece:
    """A range of stream bytes within one frame: [start, end) relative to the frame's first byte."""

    step: int
    """Training step."""
    frame: FrameSlot
    """The frame."""
    start: int
    """First byte, relative to the frame's start (its header)."""
    end: int
    """One past the last byte, relative to the frame's start."""


@dataclass(frozen=True)
class _Era:
    first_step: int
    base: int
    plan: StepPlan


class FlowSchedule:
    """Positions of one connection of a flow, over all its steps and layouts."""

    def __init__(self, shape: FlowShape, layouts: Sequence[tuple[int, Layout]], first_step: int = 1) -> None:
        """Build the schedule.

        Args:
            shape: the flow.
            layouts: (first step, layout) in ascending order; the first pair's step is at most `first_step`.
            first_step: step that begins at position 0.

        Raises:
            ValueError: no layout is in force at `first_step`, or steps are not ascending.
        """
        self.shape = shape
        self.first_step = first_step
        self._eras: list[_Era] = []
        for since, layout in layouts:
            self.add_layout(since, layout)
        if not self._eras:
            raise ValueError(f"no layout is in force at step {first_step}")

    def add_layout(self, since: int, layout: Layout) -> None:
        """Use `layout` from step `since` on (earlier steps keep theirs).

        Raises:
            ValueError: `since` is not after the last layout's first step, or the first layout begins too late.
        """
        plan = step_plan(self.shape, layout)
        if not self._eras:
            if since > self.first_step:
                raise ValueError(f"the first layout begins at step {since}, after first step {self.first_step}")
            self._eras.append(_Era(self.first_step, 0, plan))
            return
        last = self._eras[-1]
        if since <= self.first_step:
            # A later layout that is already in force at the first step replaces the earlier one.
            self._eras[-1] = _Era(self.first_step, 0, plan)
            return
        if since <= last.first_step:
            raise ValueError(f"layout {layout.version} begins at step {since}, expected after step {last.first_step}")
        self._eras.append(_Era(since, last.base + (since - last.first_step) * last.plan.length, plan))

    def plan(self, step: int) -> StepPlan:
        """Return the plan in force at `step` (at least `first_step`)."""
        return self._era_of_step(step).plan

    def step_start(self, step: int) -> int:
        """Return the position of the first byte of `step`."""
        era = self._era_of_step(step)
        return era.base + (step - era.first_step) * era.plan.length

    def locate(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the pieces of stream bytes [start, end), in order, one piece per frame.

        Raises:
            ValueError: a negative or reversed range, or a layout without bytes for this flow.
        """
        if not 0 <= start <= end:
            raise ValueError(f"stream range [{start}, {end}) is not a range of positions")
        position = start
        while position < end:
            step, offset, plan = self._step_at(position)
            frame = plan.frame_at(offset)
            stop = min(frame.end, offset + end - position)
            yield Piece(step, frame, offset - frame.start, stop - frame.start)
            position += stop - offset

    def steps_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the step that each of some positions, at least 0, is in.

        Raises:
            ValueError: this flow carries no bytes under its layouts.
        """
        eras = [era for era in self._eras if era.plan.length]
        if not eras:
            raise ValueError("this flow carries no bytes under its layout")
        bases = np.array([era.base for era in eras], np.int64)
        found = np.maximum(np.searchsorted(bases, positions, "right") - 1, 0)
        first = np.array([era.first_step for era in eras], np.int64)
        length = np.array([era.plan.length for era in eras], np.int64)
        steps: NDArray[np.int64] = first[found] + (positions - bases[found]) // length[found]
        return steps

    def frame_range(self, step: int, frame: FrameSlot) -> tuple[int, int]:
        """Return the stream range [start, end) of a frame of `step`: the inverse of `locate`."""
        base = self.step_start(step)
        return base + frame.start, base + frame.end

    def _era_of_step(self, step: int) -> _Era:
        if step < self.first_step:
            raise ValueError(f"step {step} is before this connection's first step {self.first_step}")
        return next(era for era in reversed(self._eras) if era.first_step <= step)

    def _step_at(self, position: int) -> tuple[int, int, StepPlan]:
        # The newest era that begins at or before the position; an empty era (length 0) holds no byte.
        for era in reversed(self._eras):
            if era.base <= position and era.plan.length:
                steps, offset = divmod(position - era.base, era.plan.length)
                return era.first_step + steps, offset, era.plan
        raise ValueError(f"position {position}: this flow carries no bytes under its layout")
