"""From a step's cells to its result: what is complete, what is missing, and which flow should have brought it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from jobspec.reasons import GapReason
from replay.cells import Cell, StepGradient
from replay.results import MAX_HOLES, Hole, StepResult

Carrier = tuple[int, int, int]
"""Channel, rank and all-gather hop."""


def step_result(gradient: StepGradient, captured: Collection[Carrier]) -> StepResult:
    """Return what became of a step.

    Args:
        gradient: its cells.
        captured: carriers of which the captures have any frame.
    """
    complete = gradient.complete and gradient.plan.proven
    holes: list[Hole] = []
    missing = 0
    for cell in () if gradient.complete else gradient.cells:
        if cell.good:
            continue
        for hole in _holes(gradient, cell, captured):
            missing += hole.stream[1] - hole.stream[0]
            if len(holes) <= MAX_HOLES:
                _append(holes, hole)
    sha256 = None
    if complete:
        digest = hashlib.sha256()
        for bucket in gradient.buckets:
            digest.update(bucket)
        sha256 = digest.hexdigest()
    return StepResult(
        group=gradient.plan.group,
        epoch=gradient.plan.epoch,
        step=gradient.step,
        complete=complete,
        bytes=sum(cell.covered() for cell in gradient.cells),
        gradient_bytes=gradient.map.nbytes,
        frames=len(gradient.cells),
        frames_proven=sum(cell.good for cell in gradient.cells),
        missing_bytes=missing,
        wire_bytes=gradient.wire_bytes,
        repeated_bytes=gradient.repeated_bytes,
        conflicts=gradient.conflict_count,
        conflict_details=tuple(gradient.conflicts),
        holes=tuple(holes[:MAX_HOLES]),
        sha256=sha256,
        reason=None if gradient.plan.proven else GapReason.UNKNOWN_LAYOUT,
    )


def _holes(gradient: StepGradient, cell: Cell, captured: Collection[Carrier]) -> list[Hole]:
    place = cell.place
    seen = [(flow, frame) for flow, frame in place.carriers if (flow.channel, flow.rank, frame.hop) in captured]
    flow, frame = (seen or place.carriers)[0]
    head = frame.header_bytes
    if cell.disputed:
        ranges, cause = [(0, head + place.nbytes)], GapReason.CORRUPT_FRAME
        detail: str | None = "valid headers say different CRCs"
    else:
        missing = [(low + head, high + head) for low, high in cell.missing()]
        if cell.crc is None:
            parts = gradient.headers.get((flow.channel, flow.rank, frame.index))
            missing = [*(parts.missing() if parts is not None else [(0, head)]), *missing]
        ranges = missing
        cause = GapReason.LOST_BYTES if cell.problem is None else GapReason.CORRUPT_FRAME
        detail = cell.problem
    first = place.start // place.itemsize
    holes = []
    for low, high in _joined(ranges):
        begin = first + max(0, low - head) // place.itemsize
        end = first - (-max(0, high - head) // place.itemsize)
        stream = (frame.start + low, frame.start + high)
        holes.append(
            Hole(flow.id, flow.rank, flow.channel, bool(seen), place.bucket, place.chunk, stream, (begin, end),
                 str(cause), detail)
        )  # fmt: skip
    return holes


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in ranges:
        if joined and joined[-1][1] == low:
            joined[-1] = joined[-1][0], high
        else:
            joined.append((low, high))
    return joined


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
