"""Puts the all-gather steps of an all-reduce into one tensor.

An element is covered only if a packet with a proven step and offset carries it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rocev2.flow import Flow
from rocev2.found import Found
from rocev2.parse import Column
from rocev2.protocols import LL
from rocev2.psn import gaps, wrap
from rocev2.results import MissingPsn
from rocev2.shape import sent_chunk
from rocev2.steps import Step, connect, offsets

LINE = LL.line_data


@dataclass(slots=True, eq=False)
class Tensor:
    """A reduced tensor while it is filled, in units of LL lines (8 data bytes)."""

    found: Found
    lines: NDArray[np.uint64]
    """Data, shape (lines,)."""
    covered: NDArray[np.bool_]
    """Which lines are proven, shape (lines,)."""
    disputed: NDArray[np.bool_]
    """Lines on which two all-gather messages disagree, shape (lines,)."""
    observable: NDArray[np.bool_]
    """Lines that a captured flow carries in the all-gather, lost or not, shape (lines,)."""
    missing_psn: list[MissingPsn] = field(default_factory=list)
    from_p2p: NDArray[np.bool_] | None = None
    """Bytes known only from a p2p message, shape (bytes,)."""
    extra: bytearray | None = None
    """Bytes supplied by p2p messages, where `from_p2p`."""
    p2p_conflicts: int = 0
    """Bytes that p2p messages and the all-gather disagree on."""

    @property
    def bytes(self) -> int:
        """Data bytes in whole lines."""
        return len(self.lines) * LINE


def place(all_reduces: Sequence[Found]) -> list[Tensor]:
    """Return the tensors of the all-reduces of one ring, in their order."""
    sizes: dict[Flow, dict[int, int]] = {}
    for found in all_reduces:
        for column, first in found.windows:
            sizes.setdefault(column.flow, {}).update(enumerate(found.sizes(column), first))
    steps = {flow: _steps(flow, known) for flow, known in sizes.items()}
    return [_place(found, steps) for found in all_reduces]


def _place(found: Found, steps: Mapping[Flow, list[Step]]) -> Tensor:
    count = found.bytes // LINE
    tensor = Tensor(
        found,
        np.zeros(count, np.uint64),
        np.zeros(count, np.bool_),
        np.zeros(count, np.bool_),
        np.zeros(count, np.bool_),
    )
    for column, first in found.windows:
        row = steps[column.flow][first : first + len(found.loops) * found.per_loop]
        tensor.missing_psn += _missing(column.flow, row)
        for number, step in enumerate(row):
            loop, phase_step = divmod(number, found.per_loop)
            if phase_step >= found.ranks - 1 and step.size:
                _gather(tensor, column, step, loop, phase_step)
    tensor.covered &= ~tensor.disputed
    return tensor


def _steps(flow: Flow, sizes: Mapping[int, int]) -> list[Step]:
    """Return all steps of a flow, those of all-reduces with their sizes, and their PSNs where those follow."""
    assert flow.table is not None
    row = []
    for number in range(max(flow.total, max(sizes, default=-1) + 1)):
        known = flow.steps.get(number)
        step = replace(known) if known is not None else Step(number)
        if step.size is None:
            step.size = sizes.get(number)
        row.append(step)
    connect(flow.table, row)
    return row


def _gather(tensor: Tensor, column: Column, step: Step, loop: int, phase_step: int) -> None:
    found = tensor.found
    shape = found.loops[loop]
    chunk = sent_chunk(column.index, phase_step, found.ranks)
    start = sum(earlier.rest for earlier in found.loops[:loop]) + shape.start(chunk, column.channel)
    first = start // LINE
    tensor.observable[first : first + shape.size(chunk, column.channel) // LINE] = True
    assert column.flow.table is not None
    for offset, payload in offsets(column.flow.table, step):
        _write(tensor, first + offset // LL.line_bytes, LL.data(payload).view(np.uint64))


def _write(tensor: Tensor, at: int, lines: NDArray[np.uint64]) -> None:
    where = slice(at, at + len(lines))
    known = tensor.covered[where]
    if known.any():
        tensor.disputed[where] |= known & (tensor.lines[where] != lines)
    tensor.lines[where] = lines
    tensor.covered[where] = True


def _missing(flow: Flow, steps: list[Step]) -> list[MissingPsn]:
    """Return the lost packets between the first and the last step that was begun."""
    begun = [step for step in steps if step.index < flow.total]
    seen = sorted(ranges for step in begun for ranges in step.seen)
    first = begun[0].first if begun and begun[0].first is not None else (seen[0][0] if seen else None)
    last = begun[-1].end if begun and begun[-1].end is not None else (max(high for _, high in seen) if seen else None)
    if first is None or last is None:
        return []
    return [MissingPsn(flow.key.dest_qp, wrap(low), wrap(high)) for low, high in gaps(seen, first, last)]
