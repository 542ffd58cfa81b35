"""Why a step of the current epoch is no recovery point (yet): the contract's reason and the exact place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checkmate_common.recovery.reasons import GapReason
from placement.assembler import Assembler
from placement.holes import MissingRange, corrupt_frames, missing_ranges
from shadow_rx.status.group_status import Gap
from shadow_rx.trainer.records import RecordBook

_SHOWN = 4
"""Ranges, frames or ranks that a detail spells out."""
_KEPT = 256
"""Ranges that a gap keeps as objects."""


def diagnose(assembler: Assembler, book: RecordBook, step: int) -> Gap | None:
    """Return what is missing or wrong in a step that is not applied, None where it only has to wait.

    Args:
        assembler: buffers of the epoch.
        book: records of the epoch.
        step: a step from `assembler.next_step` on.
    """
    gap = unknown_layout(assembler, book, step)
    if gap is not None:
        return gap
    if step < assembler.next_step + assembler.window:
        gap = _bytes(assembler, step)
        if gap is not None:
            return gap
    elif _overran(assembler, step):
        return Gap(step, GapReason.OVERLOAD, _overload(assembler))
    absent = book.missing(step)
    if absent:
        if book.refused_step is not None and book.refused_step <= step:
            return Gap(step, GapReason.OVERLOAD, "its records came too far ahead of the steps that are applied")
        return Gap(step, GapReason.SIDE_CHANNEL_MISSING, f"no record of rank {_some(absent)}")
    return None


def unknown_layout(assembler: Assembler, book: RecordBook, step: int) -> Gap | None:
    """Return the gap of a step that a rank trained with another layout than this shadow was told."""
    version = assembler.plan_at(step).layout.version
    strange = sorted({record.layout_version for record in book.get(step)} - {version})
    if not strange:
        return None
    detail = f"uses layout version {strange[0]}, this shadow was told {version}"
    return Gap(step, GapReason.UNKNOWN_LAYOUT, detail)


def disagreement(book: RecordBook, step: int) -> Gap | None:
    """Return the gap of a step whose ranks told unequal optimizer options or digests."""
    records = book.get(step)
    first = records[0]
    for other in records[1:]:
        if other.options != first.options:
            detail = f"ranks {first.rank} and {other.rank} used different optimizer options"
            return Gap(step, GapReason.DIGEST_MISMATCH, detail)
    for what, name in (("parameters", "digest"), ("optimizer state", "optimizer_digest")):
        told = [record for record in records if getattr(record, name)]
        for other in told[1:]:
            if getattr(other, name) != getattr(told[0], name):
                detail = f"ranks {told[0].rank} and {other.rank} have different {what}"
                return Gap(step, GapReason.DIGEST_MISMATCH, detail)
    return None


def _bytes(assembler: Assembler, step: int) -> Gap | None:
    slot = assembler.slot(step)
    missing = missing_ranges(slot)
    corrupt = corrupt_frames(slot)
    if not missing:
        return None
    kept = tuple(missing[:_KEPT])
    detail = _describe(missing)
    if slot.damaged:
        seen = ", ".join(f"{count} of flow {flow}" for flow, count in sorted(slot.damaged.items()))
        detail += f"; replicas with a wrong checksum were discarded: {seen}"
    if corrupt:
        frames = _some(f"flow {c.flow_id} bucket {c.bucket} chunk {c.chunk}: {c.problem}" for c in corrupt)
        return Gap(step, GapReason.CORRUPT_FRAME, f"{len(corrupt)} wrong frames ({frames}); {detail}", kept)
    if _overran(assembler, step):
        return Gap(step, GapReason.OVERLOAD, f"{_overload(assembler)}; {detail}", kept)
    if slot.dropped:
        dropped = f"{slot.dropped} frames were dropped before this node could take them, as it was too slow"
        return Gap(step, GapReason.OVERLOAD, f"{dropped}; {detail}", kept)
    return Gap(step, GapReason.LOST_BYTES, detail, kept)


def _overran(assembler: Assembler, step: int) -> bool:
    return assembler.overrun is not None and step >= assembler.overrun[0]


def _overload(assembler: Assembler) -> str:
    return f"replicas came while all {assembler.window} step buffers were in use and were not kept"


def _describe(missing: Sequence[MissingRange]) -> str:
    total = sum(item.end - item.start for item in missing)
    ranges = _some(_where(item) for item in missing)
    return f"{total} bytes missing: {ranges}"


def _where(item: MissingRange) -> str:
    text = f"flow {item.flow_id} [{item.start}, {item.end}) in bucket {item.bucket} chunk {item.chunk}"
    if not item.redundant:
        return text
    return f"{text}, nor in the redundant copy of flow {' and '.join(map(str, item.redundant))}"


def _some(items: Iterable[object]) -> str:
    texts = [str(item) for item in items]
    rest = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
