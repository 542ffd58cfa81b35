"""What a step lacks: bytes that have not arrived, and frames whose bytes are wrong."""

from __future__ import annotations

from dataclasses import dataclass

from placement.frames import Frame
from placement.slots import StepSlot


@dataclass(frozen=True)
class MissingRange:
    """Bytes of a step that have not arrived."""

    flow_id: int
    """The flow."""
    bucket: int
    """Bucket of the frame."""
    chunk: int
    """Chunk of the frame."""
    start: int
    """First byte, relative to the flow's first stream byte of the step."""
    end: int
    """One past the last byte."""
    redundant: tuple[int, ...] = ()
    """Flows whose redundant hops carry the same bytes, which did not arrive from them either."""


@dataclass(frozen=True)
class CorruptFrame:
    """A frame whose bytes were wrong when they were last complete."""

    flow_id: int
    """The flow."""
    bucket: int
    """Bucket of the frame."""
    chunk: int
    """Chunk of the frame."""
    problem: str
    """Which field or CRC differs."""


def missing_ranges(slot: StepSlot) -> list[MissingRange]:
    """Return what has not arrived of a step, adjacent ranges of the same chunk joined."""
    found: list[MissingRange] = []
    for number in slot.unverified():
        frame = slot.frame(number)
        for start, end in frame.missing():
            _append(found, frame, start, end)
    return found


def corrupt_frames(slot: StepSlot) -> list[CorruptFrame]:
    """Return the frames of a step whose bytes were wrong when they were last complete."""
    return [
        CorruptFrame(frame.primary.flow_id, frame.primary.slot.bucket, frame.primary.slot.chunk, frame.problem)
        for _, frame in sorted(slot.objects.items())
        if frame.problem is not None
    ]


def _append(found: list[MissingRange], frame: Frame, start: int, end: int) -> None:
    flow_id, slot = frame.primary.flow_id, frame.primary.slot
    redundant = tuple(copy.flow_id for copy in frame.copies[1:])
    start, end = slot.start + start, slot.start + end
    if found:
        last = found[-1]
        if (last.flow_id, last.bucket, last.chunk, last.end) == (flow_id, slot.bucket, slot.chunk, start):
            found[-1] = MissingRange(flow_id, last.bucket, last.chunk, last.start, end, redundant)
            return
    found.append(MissingRange(flow_id, slot.bucket, slot.chunk, start, end, redundant))
