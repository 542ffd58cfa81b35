"""Where every frame of a step lies: in its flow's stream and in the memory of a slot. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from checkmate_common.stream.frame import HEADER_BYTES
from checkmate_common.stream.layout import Layout
from checkmate_common.stream.ring import Phase
from checkmate_common.stream.schedule import FlowShape, FrameSlot, StepPlan, step_plan

ALIGNMENT = 64
"""Buckets begin on cache lines, which suits every element type."""


class Flow(Protocol):
    """A stream of frames, whose bytes are placed by their position: `jobspec.model.Flow` is one."""

    @property
    def id(self) -> int:
        """Unique among those that are placed together."""

    @property
    def shape(self) -> FlowShape:
        """Rank, channel, and how chunks are cut into frames."""

    @property
    def hops(self) -> tuple[int, ...]:
        """Hops of the all-gather that are expected, rising, the first is 0."""


@dataclass(frozen=True)
class FlowPlan:
    """What one flow contributes to a step."""

    flow: Flow
    """The flow."""
    plan: StepPlan
    """All frames of its stream for one step."""
    expected: tuple[FrameSlot, ...]
    """Those that are replicated (all-gather, the flow's `hops`), in stream order."""
    ordinal: dict[int, int]
    """Position in `expected` by `FrameSlot.index`."""


@dataclass(frozen=True)
class SlotPlan:
    """Memory layout of one step's gradient for one layout: pure arithmetic, shared by all slots."""

    layout: Layout
    """The layout."""
    flows: dict[int, FlowPlan]
    """By flow id."""
    bucket_offsets: tuple[int, ...]
    """First byte of each bucket in the slot's memory."""
    header_offset: int
    """First byte of the frame headers in the slot's memory."""
    nbytes: int
    """Bytes of memory of one slot."""
    frames: int
    """Number of frames of all flows, each counted once however many copies of it are replicated."""

    @cached_property
    def table(self) -> FrameTable:
        """The frames and their copies as arrays."""
        return FrameTable(self)


class FrameTable:
    """The frames of a step and their copies, by number.

    A *frame* is a payload in its place; its *copies* are what the flows send of it, each with a header of its own.
    Frames are numbered by their primary copies, flow by flow, in stream order; copies flow by flow, in stream order.
    """

    def __init__(self, plan: SlotPlan) -> None:
        """Number the frames and copies of `plan`."""
        self.flow_index = {flow_id: index for index, flow_id in enumerate(plan.flows)}
        """Position of a flow among the flows."""
        self.slots: list[tuple[int, FrameSlot]] = [
            (flow_id, slot) for flow_id, flow in plan.flows.items() for slot in flow.expected
        ]
        """Flow and place in its stream, by copy."""
        first = np.cumsum([0, *(len(flow.expected) for flow in plan.flows.values())])
        self.first_copy: dict[int, int] = dict(zip(plan.flows, first.tolist(), strict=False))
        """First copy of a flow, by flow id."""
        # Copies of the same payload: the hops of one chunk, cut alike on every flow.
        shared: dict[tuple[int, int, int], list[int]] = {}
        for hop in sorted({hop for flow in plan.flows.values() for hop in flow.flow.hops}):
            for copy, (flow_id, slot) in enumerate(self.slots):
                if slot.hop == hop:
                    key = slot.bucket, plan.flows[flow_id].plan.shape.channel, slot.element_offset
                    shared.setdefault(key, []).append(copy)
        self.copies: list[tuple[int, ...]] = [tuple(copies) for copies in shared.values()]
        """Copies of a frame, the primary first."""
        self.place: list[tuple[int, int]] = [(0, 0)] * len(self.slots)
        """Frame, and position among its copies, by copy."""
        for frame, copies in enumerate(self.copies):
            for index, copy in enumerate(copies):
                self.place[copy] = frame, index
        self.payloads: list[tuple[int, int]] = []
        """Where the payload of a frame begins and ends in the slot's memory."""
        for copies in self.copies:
            slot = self.slots[copies[0]][1]
            start = plan.bucket_offsets[slot.bucket] + slot.byte_offset
            self.payloads.append((start, start + slot.payload_bytes))
        self.headers: list[int] = [plan.header_offset + HEADER_BYTES * copy for copy in range(len(self.slots))]
        """First header byte of a copy in the slot's memory."""
        self.arrays = CopyArrays(
            _i64(first),
            _i64([flow.plan.length for flow in plan.flows.values()]),
            _i64([slot.start for _, slot in self.slots]),
            _i64([slot.end - slot.start for _, slot in self.slots]),
            _i64(_following(plan)),
            _i64(self.headers),
            _i64([frame for frame, _ in self.place]),
            np.array([index > 0 for _, index in self.place], np.bool_),
            _i64([start for start, _ in self.payloads]),
            _i64([len(copies) for copies in self.copies]),
        )
        """The same for kernels."""


@dataclass(frozen=True, slots=True)
class CopyArrays:
    """What a kernel needs to know of copies and frames; c copies, m frames, f flows."""

    first_copy: NDArray[np.int64]
    """[f + 1] First copy of each flow, and the number of copies."""
    length: NDArray[np.int64]
    """[f] Stream bytes of a step."""
    start: NDArray[np.int64]
    """[c] First byte relative to the step's first stream byte."""
    size: NDArray[np.int64]
    """[c] Bytes, header included."""
    following: NDArray[np.int64]
    """[c] Where the flow's next expected byte is, relative to the step's first stream byte; of the last copy one of the
    next step, if that has the same layout."""
    header: NDArray[np.int64]
    """[c] First header byte in the slot's memory."""
    frame: NDArray[np.int64]
    """[c] The frame."""
    redundant: NDArray[np.bool_]
    """[c] Whether it is none of the primary hop."""
    payload: NDArray[np.int64]
    """[m] First payload byte in the slot's memory."""
    copies: NDArray[np.int64]
    """[m] Number of copies."""

    @property
    def all(self) -> tuple[NDArray[Any], ...]:
        """All of them, in order."""
        return tuple(getattr(self, field.name) for field in fields(self))


def _following(plan: SlotPlan) -> list[int]:
    found: list[int] = []
    for flow in plan.flows.values():
        starts = [slot.start for slot in flow.expected]
        found += [*starts[1:], *(start + flow.plan.length for start in starts[:1])]
    return found


def _i64(numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def bucket_offsets(layout: Layout) -> tuple[tuple[int, ...], int]:
    """Return where each bucket begins in a slot's memory, and where they end."""
    offsets: list[int] = []
    position = 0
    for bucket in layout.buckets:
        offsets.append(position)
        position += -(-bucket.nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), position


def aligned_memory(nbytes: int) -> NDArray[np.uint8]:
    """Return so many zero bytes that begin on a cache line; raises `MemoryError`."""
    memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
    skip = -memory.ctypes.data % ALIGNMENT
    return memory[skip : skip + nbytes]


def plan_slots(layout: Layout, flows: Sequence[Flow]) -> SlotPlan:
    """Compute where the buckets and headers of one step lie in a slot's memory."""
    plans: dict[int, FlowPlan] = {}
    for flow in flows:
        plan = step_plan(flow.shape, layout)
        expected = tuple(f for f in plan.frames if f.phase is Phase.ALL_GATHER and f.hop in flow.hops)
        plans[flow.id] = FlowPlan(flow, plan, expected, {frame.index: i for i, frame in enumerate(expected)})
    offsets, position = bucket_offsets(layout)
    copies = sum(len(plan.expected) for plan in plans.values())
    frames = sum(not frame.hop for plan in plans.values() for frame in plan.expected)
    return SlotPlan(layout, plans, offsets, position, position + copies * HEADER_BYTES, frames)
