"""Buffers of one step's gradient, preallocated and used again: a group has a small ring of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobspec.frame import HEADER_BYTES
from jobspec.layout import Layout
from jobspec.model import Flow
from jobspec.ring import Phase
from jobspec.schedule import FrameSlot, StepPlan, step_plan
from shadow_rx.frames import Frame, FrameCopy, FrameIdentity
from shadow_rx.variants import SideBuffer

ALIGNMENT = 64
"""Buckets begin on cache lines, which suits every element type."""


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


def bucket_offsets(layout: Layout) -> tuple[tuple[int, ...], int]:
    """Return where each bucket begins in a slot's memory, and where they end."""
    offsets: list[int] = []
    position = 0
    for bucket in layout.buckets:
        offsets.append(position)
        position += -(-bucket.nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), position


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


class StepSlot:
    """The gradient of one step while it is collected: memory, frame buffers, how many are missing."""

    def __init__(self, plan: SlotPlan, side: SideBuffer) -> None:
        """Allocate the memory; `reset` says for which step it is used. Copies that differ are kept within `side`.

        Raises:
            MemoryError: the memory is not there.
        """
        self.plan = plan
        self.memory = bytearray(max(1, plan.nbytes))
        """Buckets at `plan.bucket_offsets`, then the headers of all copies of the frames."""
        self.step = 0
        """Step that is being collected."""
        self.remaining = 0
        """Frames that are not verified yet."""
        self.received_bytes = 0
        """Bytes placed, one header a frame included; those of a frame that is wrong count each time."""
        self.peer_bytes = 0
        """Those of them that another shadow node gave."""
        self.first_byte_at: float | None = None
        """Time of the first placed byte in seconds of the caller's clock."""
        self.complete_at: float | None = None
        """Time of the last placed byte."""
        self.copies: dict[int, tuple[FrameCopy, ...]] = {}
        """Copies of frames by flow id, in stream order (as `FlowPlan.expected`)."""
        self.identities: dict[int, FrameIdentity] = {}
        """What each flow's frame headers must say."""
        self.damaged: dict[int, int] = {}
        """Replicas of this step that failed a checksum, by flow id."""
        self.dropped = 0
        """Replicas, of this step or of another one, that were dropped since it is collected: the node was too slow."""
        view = memoryview(self.memory)
        header = plan.header_offset
        # Copies of the same payload: the hops of one chunk, cut alike on every flow.
        shared: dict[tuple[int, int, int], list[FrameCopy]] = {}
        for hop in sorted({hop for flow in plan.flows.values() for hop in flow.flow.hops}):
            for flow_id, flow in plan.flows.items():
                for slot in flow.expected:
                    if slot.hop == hop:
                        copies = shared.setdefault((slot.bucket, flow.flow.channel, slot.element_offset), [])
                        copies.append(FrameCopy(len(copies), flow_id, slot, view[header : header + HEADER_BYTES]))
                        header += HEADER_BYTES
        by_place: dict[tuple[int, int], FrameCopy] = {}
        frames: list[Frame] = []
        for copies in shared.values():
            by_place.update({(copy.flow_id, copy.slot.index): copy for copy in copies})
            start = plan.bucket_offsets[copies[0].slot.bucket] + copies[0].slot.byte_offset
            frames.append(Frame(copies, view[start : start + copies[0].slot.payload_bytes], side))
        self.frames = tuple(frames)
        """All frames, by their primary copies: flow by flow, in stream order."""
        for flow_id, flow in plan.flows.items():
            self.copies[flow_id] = tuple(by_place[flow_id, slot.index] for slot in flow.expected)

    def reset(self, step: int, job: int, group: int, epoch: int) -> None:
        """Forget the last step and begin to collect `step` of incarnation `epoch`."""
        self.step = step
        self.remaining = self.plan.frames
        self.received_bytes = self.peer_bytes = 0
        self.first_byte_at = None
        self.complete_at = None
        self.damaged.clear()
        self.dropped = 0
        version = self.plan.layout.version
        for flow_id, plan in self.plan.flows.items():
            flow = plan.flow
            self.identities[flow_id] = FrameIdentity(job, group, epoch, flow.channel, flow.rank, step, version)
        for frame in self.frames:
            frame.reset()

    def gradient(self) -> bytes:
        """Return a copy of the reduced gradient: buckets in layout order, without the padding between them."""
        view = memoryview(self.memory)
        starts = zip(self.plan.bucket_offsets, self.plan.layout.buckets, strict=True)
        return b"".join(view[start : start + bucket.nbytes] for start, bucket in starts)

    @property
    def complete(self) -> bool:
        """Whether every frame is verified."""
        return self.remaining == 0

    @property
    def repaired_bytes(self) -> int:
        """Bytes, headers included, that are there and right only because of a redundant copy."""
        return sum(frame.repaired for frame in self.frames)

    @property
    def touched(self) -> bool:
        """Whether any byte of the step has arrived."""
        return self.received_bytes > 0
