"""A step's reduced gradient as it was collected: what is complete, what is missing, and which flow should have brought
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from checkmate_common.recovery.reasons import GapReason
from checkmate_common.stream.frame import HEADER_BYTES
from checkmate_common.stream.layout import Layout
from placement.frames import DISPUTE, Frame, FrameCopy
from placement.slots import StepSlot, Tally
from replay.plan import EpochPlan, PlannedFlow
from replay.results import MAX_HOLES, Hole, StepResult

Carrier = tuple[int, int, int]
"""Channel, rank and all-gather hop."""


@dataclass(frozen=True)
class StepGradient:
    """The reduced gradient of a step; its memory is used again once the callee of `Collector` returns."""

    plan: EpochPlan
    """Its epoch."""
    slot: StepSlot
    """What was collected."""
    disputed: frozenset[int]
    """Frames of which right headers tell different CRCs: nobody knows which is right."""
    digest: Future[str] | None = None
    """`gradient_sha256`, where another thread has begun to compute it."""

    @property
    def step(self) -> int:
        """The step."""
        return self.slot.step

    @property
    def layout(self) -> Layout:
        """Its layout."""
        return self.slot.plan.layout

    @property
    def complete(self) -> bool:
        """Whether every frame is there, right, and undisputed."""
        return self.slot.complete and not self.disputed

    @property
    def buckets(self) -> list[memoryview]:
        """Elements by bucket, little-endian as on the wire; to be used if `complete`."""
        return self.slot.buckets

    def sha256(self) -> str:
        """Return the digest of the buckets in order."""
        return self.digest.result() if self.digest is not None else gradient_sha256(self.slot)

    def frames(self) -> Iterator[tuple[Frame, bool]]:
        """Yield the frames by bucket and element, and whether each may be used."""
        numbered = enumerate(self.slot.frames)
        for number, frame in sorted(numbered, key=lambda pair: _place(pair[1])):
            yield frame, frame.verified and number not in self.disputed


def gradient_sha256(slot: StepSlot) -> str:
    """Return the digest of the buckets in order, which do not change any more once the slot is complete."""
    digest = hashlib.sha256()
    for bucket in slot.buckets:
        digest.update(bucket)
    return digest.hexdigest()


def _place(frame: Frame) -> tuple[int, int]:
    return frame.primary.slot.bucket, frame.primary.slot.element_offset


def step_result(gradient: StepGradient, captured: Collection[Carrier]) -> StepResult:
    """Return what became of a step.

    Args:
        gradient: what was collected.
        captured: carriers of which the captures have any frame.
    """
    plan, slot = gradient.plan, gradient.slot
    frames = len(slot.plan.table.copies)
    nbytes = sum(bucket.nbytes for bucket in gradient.layout.buckets)
    holes: list[Hole] = []
    proven, right, held, missing = frames, nbytes, nbytes, 0
    if not gradient.complete:
        flows = plan.by_id
        proven = right = held = 0
        for frame, good in gradient.frames():
            there = _payload_bytes(frame)
            held += there
            proven += good
            right += there if good or not (frame.covered or frame.verified) else 0
            for hole in () if good else _holes(frame, flows, captured):
                missing += hole.stream[1] - hole.stream[0]
                if len(holes) <= MAX_HOLES:
                    _append(holes, hole)
    complete = gradient.complete and plan.proven
    conflicts = slot.conflicts
    return StepResult(
        group=plan.group,
        epoch=plan.epoch,
        step=gradient.step,
        complete=complete,
        bytes=right,
        gradient_bytes=nbytes,
        frames=frames,
        frames_proven=proven,
        missing_bytes=missing,
        wire_bytes=slot.counted(Tally.WIRE),
        repeated_bytes=max(0, slot.counted(Tally.WIRE_PAYLOAD) - held),
        conflicts=conflicts.count if conflicts is not None else 0,
        conflict_details=tuple(
            f"{plan.by_id[flow_id].label} bucket {frame.bucket} chunk {frame.chunk}: {text}"
            for flow_id, frame, text in (conflicts.first if conflicts is not None else ())
        ),
        holes=tuple(holes[:MAX_HOLES]),
        sha256=gradient.sha256() if complete else None,
        reason=None if plan.proven else GapReason.UNKNOWN_LAYOUT,
    )


def _payload_bytes(frame: Frame) -> int:
    """Return how many payload bytes are there, right or wrong."""
    nbytes = len(frame.payload)
    if frame.verified or frame.covered:
        return nbytes
    return nbytes - sum(high - max(low, HEADER_BYTES) for low, high in frame.missing() if high > HEADER_BYTES)


def _holes(frame: Frame, flows: dict[int, PlannedFlow], captured: Collection[Carrier]) -> Iterator[Hole]:
    copies = [(copy, flows[copy.flow_id]) for copy in frame.copies]
    seen = [(copy, flow) for copy, flow in copies if (flow.channel, flow.rank, copy.slot.hop) in captured]
    copy, flow = (seen or copies)[0]
    slot, detail = copy.slot, frame.problem
    if frame.verified or frame.disputed:
        ranges, detail = [(0, frame.size)], DISPUTE
    elif frame.covered:
        ranges = [(HEADER_BYTES, frame.size)]
    else:
        ranges = list(_missing(frame, copy))
    size = slot.dtype.itemsize
    for low, high in ranges:
        begin = slot.element_offset + max(0, low - HEADER_BYTES) // size
        end = slot.element_offset - (-max(0, high - HEADER_BYTES) // size)
        yield Hole(
            flow.job_id, flow.rank, flow.channel, bool(seen), slot.bucket, slot.chunk,
            (slot.start + low, slot.start + high), (begin, end),
            str(GapReason.LOST_BYTES if detail is None else GapReason.CORRUPT_FRAME), detail,
        )  # fmt: skip


def _missing(frame: Frame, copy: FrameCopy) -> Iterator[tuple[int, int]]:
    """Yield what is missing of a frame as parts of `copy`."""
    headed = any(each.headed for each in frame.copies)
    ranges = [] if headed else copy.coverage.missing(0, HEADER_BYTES)
    ranges += [(max(low, HEADER_BYTES), high) for low, high in frame.missing() if high > HEADER_BYTES]
    for index, (low, high) in enumerate(ranges):
        if index + 1 < len(ranges) and ranges[index + 1][0] == high:
            ranges[index + 1] = low, ranges[index + 1][1]
        else:
            yield low, high


def _append(holes: list[Hole], hole: Hole) -> None:
    """Append a hole, or lengthen the last one where it goes on in the next frame of the same chunk."""
    if holes:
        last = holes[-1]
        same = (last.flow, last.rank, last.channel, last.bucket, last.chunk, last.cause, last.detail)
        if same == (hole.flow, hole.rank, hole.channel, hole.bucket, hole.chunk, hole.cause, hole.detail) and (
            last.stream[1] == hole.stream[0]
        ):
            stream, elements = (last.stream[0], hole.stream[1]), (last.elements[0], hole.elements[1])
            holes[-1] = Hole(
                last.flow, last.rank, last.channel, last.captured, last.bucket, last.chunk, stream, elements,
                last.cause, last.detail,
            )  # fmt: skip
            return
    holes.append(hole)
