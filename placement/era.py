"""The slots of one layout as arrays, and the kernel that places segments into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkmate_common.stream.schedule import FlowSchedule
from packets.compiled import Kernel
from placement.slots import SlotMemory
from placement.stop import Stop

COVERED = 1024
"""Frames that a kernel leaves to be verified at a time."""
_NEVER = 1 << 62
"""A position, or step, that is not reached."""
WRAPPED, WHOLE = 1 << 32, 1 << 62
"""Modulus of sequence numbers: those of TCP, and those of segments whose position is known."""


def _leave(at: int, *_: Any) -> tuple[int, int, int]:
    """Take none of the segments: the reference of the kernel, because `Assembler.place` is what it must equal."""
    return at, Stop.OTHER, 0


def _example() -> tuple[object, ...]:
    none, some = np.zeros(0, np.int64), np.zeros((1, 1), np.int64)
    memory, flags = np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.bool_)
    segments = np.frombuffer(b"", np.uint8), none, none, none, none, flags[0, :0]
    connections, bounds = (none,) * 4, (none, none, 0, 0, 0)
    copies = (*(none,) * 7, flags[0, :0], none, none)
    options = (WRAPPED, False)
    return 0, *segments, *connections, *bounds, *copies, memory, some, some, memory, flags, some, none, some, *options


place_batch = Kernel(_leave, "placement.kernel:place_segments", _example)


class Era:
    """The slots of one layout, and which stream positions are theirs."""

    def __init__(self, slots: SlotMemory, schedules: Mapping[int, FlowSchedule]) -> None:
        """Begin with no end; `schedules` by flow tell where the steps begin."""
        self.slots = slots
        """The slots of its steps."""
        base = [schedules[flow_id].step_start(slots.first_step) for flow_id in slots.plan.flows]
        limit = [_NEVER if flow.plan.length else 0 for flow in slots.plan.flows.values()]
        self._base, self._limit = np.array(base, np.int64), np.array(limit, np.int64)
        self._last = _NEVER
        self.arrays = (
            *slots.plan.table.arrays.all, slots.memory, slots.prefix, slots.filled, slots.state, slots.headed,
            slots.tallies,
        )  # fmt: skip
        """What `place_batch` takes of it."""

    @property
    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64], int, int]:
        """By flow the first position and one past the last; first and last step."""
        return self._base, self._limit, self.slots.first_step, self._last

    def end(self, step: int, schedules: Mapping[int, FlowSchedule]) -> None:
        """Note that `step` has another layout."""
        ends = np.array([schedules[flow_id].step_start(step) for flow_id in self.slots.plan.flows], np.int64)
        np.minimum(self._limit, ends, out=self._limit)
        self._last = step - 1

    def note_first_bytes(self, now: float) -> None:
        """Note the time at which slots had their first byte."""
        for slot in self.slots.slots:
            if slot.first_byte_at is None and slot.touched:
                slot.first_byte_at = now
