"""Buffers of one step's gradient, preallocated and used again: a group has a small ring of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobspec.frame import HEADER_BYTES
from jobspec.layout import Layout
from jobspec.model import Flow
from jobspec.ring import Phase
from jobspec.schedule import FrameSlot, StepPlan, step_plan
from shadow_rx.frames import FrameBuffer, FrameIdentity

_ALIGNMENT = 64
"""Buckets begin on cache lines, which suits every element type."""


@dataclass(frozen=True)
class FlowPlan:
    """What one flow contributes to a step."""

    flow: Flow
    """The flow."""
    plan: StepPlan
    """All frames of its stream for one step."""
    primary: tuple[FrameSlot, ...]
    """Those that carry reduced bytes for the first time (all-gather, hop 0), in stream order."""
    ordinal: dict[int, int]
    """Position in `primary` by `FrameSlot.index`."""


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
    """Number of primary frames of all flows."""


def plan_slots(layout: Layout, flows: Sequence[Flow]) -> SlotPlan:
    """Compute where the buckets and headers of one step lie in a slot's memory."""
    plans: dict[int, FlowPlan] = {}
    for flow in flows:
        plan = step_plan(flow.shape, layout)
        primary = tuple(frame for frame in plan.frames if frame.phase is Phase.ALL_GATHER and frame.hop == 0)
        plans[flow.id] = FlowPlan(flow, plan, primary, {frame.index: i for i, frame in enumerate(primary)})
    offsets: list[int] = []
    position = 0
    for bucket in layout.buckets:
        offsets.append(position)
        position += -(-bucket.nbytes // _ALIGNMENT) * _ALIGNMENT
    frames = sum(len(plan.primary) for plan in plans.values())
    return SlotPlan(layout, plans, tuple(offsets), position, position + frames * HEADER_BYTES, frames)


class StepSlot:
    """The gradient of one step while it is collected: memory, frame buffers, how many are missing."""

    def __init__(self, plan: SlotPlan) -> None:
        """Allocate the memory; `reset` says for which step it is used.

        Raises:
            MemoryError: the memory is not there.
        """
        self.plan = plan
        self.memory = bytearray(max(1, plan.nbytes))
        """Buckets at `plan.bucket_offsets`, then the headers of the primary frames."""
        self.step = 0
        """Step that is being collected."""
        self.remaining = 0
        """Primary frames that are not verified yet."""
        self.received_bytes = 0
        """Bytes placed, headers included, those of frames that turned out wrong too."""
        self.first_byte_at: float | None = None
        """Time of the first placed byte in seconds of the caller's clock."""
        self.complete_at: float | None = None
        """Time of the last placed byte."""
        self.frames: dict[int, tuple[FrameBuffer, ...]] = {}
        """Primary frames by flow id, in stream order."""
        self.identities: dict[int, FrameIdentity] = {}
        """What each flow's frame headers must say."""
        self.damaged: dict[int, int] = {}
        """Replicas of this step that failed a checksum, by flow id."""
        view = memoryview(self.memory)
        header = plan.header_offset
        for flow_id, flow in plan.flows.items():
            buffers: list[FrameBuffer] = []
            for frame in flow.primary:
                start = plan.bucket_offsets[frame.bucket] + frame.byte_offset
                payload = view[start : start + frame.payload_bytes]
                buffers.append(FrameBuffer(frame, view[header : header + HEADER_BYTES], payload))
                header += HEADER_BYTES
            self.frames[flow_id] = tuple(buffers)

    def reset(self, step: int, job: int, group: int, epoch: int) -> None:
        """Forget the last step and begin to collect `step` of incarnation `epoch`."""
        self.step = step
        self.remaining = self.plan.frames
        self.received_bytes = 0
        self.first_byte_at = None
        self.complete_at = None
        self.damaged.clear()
        version = self.plan.layout.version
        for flow_id, buffers in self.frames.items():
            flow = self.plan.flows[flow_id].flow
            self.identities[flow_id] = FrameIdentity(job, group, epoch, flow.channel, flow.rank, step, version)
            for buffer in buffers:
                buffer.reset()

    @property
    def complete(self) -> bool:
        """Whether every primary frame of every flow is verified."""
        return self.remaining == 0

    @property
    def touched(self) -> bool:
        """Whether any byte of the step has arrived."""
        return self.received_bytes > 0
