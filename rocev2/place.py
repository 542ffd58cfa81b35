"""Reduced elements at their index: the all-gather steps of an all-reduce, put into one tensor.

An element is covered only when a packet with a proven step and a proven offset in it carries it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rocev2.protocols import LL
from rocev2.psn import gaps, wrap
from rocev2.results import MissingPsn
from rocev2.shape import sent_chunk
from rocev2.steps import Step, connect, offsets
from rocev2.windows import Found, Window

LINE = LL.line_data


@dataclass(slots=True, eq=False)
class Tensor:
    """A reduced tensor in the making, in units of LL lines (8 data bytes)."""

    found: Found
    lines: NDArray[np.uint64]
    """Data, shape (lines,)."""
    covered: NDArray[np.bool_]
    """Which lines are proven, shape (lines,)."""
    disputed: NDArray[np.bool_]
    """Lines that two all-gather messages show differently, shape (lines,)."""
    observable: NDArray[np.bool_]
    """Lines that some captured flow carries in the all-gather, lost or not, shape (lines,)."""
    missing_psn: list[MissingPsn] = field(default_factory=list)
    from_p2p: NDArray[np.bool_] | None = None
    """Bytes that only a p2p message shows, shape (bytes,)."""
    extra: bytearray | None = None
    """Bytes supplied by p2p messages, where `from_p2p`."""
    supplied: bool = False
    """Whether a p2p message supplied the part that the captured flows cannot show."""
    p2p_conflicts: int = 0
    """Bytes that p2p messages and the all-gather disagree on."""

    @property
    def bytes(self) -> int:
        """Data bytes in whole lines."""
        return len(self.lines) * LINE


def place(found: Found) -> Tensor:
    """Return the tensor of an all-reduce; its steps are taken out of the flows."""
    count = found.bytes // LINE
    tensor = Tensor(
        found,
        np.zeros(count, np.uint64),
        np.zeros(count, np.bool_),
        np.zeros(count, np.bool_),
        np.zeros(count, np.bool_),
    )
    for window in found.windows:
        steps = _take(found, window)
        tensor.missing_psn += _missing(window, steps)
        for number, step in enumerate(steps):
            loop, phase_step = divmod(number, 2 * found.ranks - 2)
            if phase_step >= found.ranks - 1 and step.size:
                _gather(tensor, window, step, loop, phase_step)
        window.flow.previous_end = steps[-1].end
    tensor.covered &= ~tensor.disputed
    return tensor


def _take(found: Found, window: Window) -> list[Step]:
    """Return the steps of a window with their sizes and, where it follows, their PSNs."""
    flow, table = window.flow, window.flow.table
    sizes = found.sizes(window)
    steps = []
    for number, size in enumerate(sizes):
        step = table.steps.pop(window.first + number, None) or Step(window.first + number)
        if step.size is None:
            step.size = size
        steps.append(step)
    after = table.steps.get(window.first + len(sizes))
    connect(table, steps, flow.previous_end, None if after is None else after.first)
    return steps


def _gather(tensor: Tensor, window: Window, step: Step, loop: int, phase_step: int) -> None:
    found = tensor.found
    shape = found.loops[loop]
    chunk = sent_chunk(window.index, phase_step, found.ranks)
    start = sum(earlier.rest for earlier in found.loops[:loop]) + shape.start(chunk, window.channel)
    if not found.ring.channels_ordered and found.channels > 1:
        return
    first = start // LINE
    tensor.observable[first : first + shape.size(chunk, window.channel) // LINE] = True
    if not window.certain:
        return
    for offset, piece in offsets(window.flow.table, step):
        at = first + offset // LL.line_bytes
        _write(tensor, at, np.frombuffer(LL.data(piece.payload), np.uint64))


def _write(tensor: Tensor, at: int, lines: NDArray[np.uint64]) -> None:
    where = slice(at, at + len(lines))
    known = tensor.covered[where]
    if known.any():
        tensor.disputed[where] |= known & (tensor.lines[where] != lines)
    tensor.lines[where] = lines
    tensor.covered[where] = True


def _missing(window: Window, steps: list[Step]) -> list[MissingPsn]:
    """Return the lost packets between the first and the last of a window's steps."""
    seen = sorted({psn for step in steps for psn in step.seen})
    first = steps[0].first if steps[0].first is not None else (seen[0] if seen else None)
    last = steps[-1].end if steps[-1].end is not None else (seen[-1] if seen else None)
    if first is None or last is None:
        return []
    qp = window.flow.key.dest_qp
    return [MissingPsn(qp, wrap(low), wrap(high)) for low, high in gaps(seen, first, last)]
