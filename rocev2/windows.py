"""Windows: the steps of the flows of a ring that are read as one all-reduce."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rocev2.flow import Flow
from rocev2.protocols import LL
from rocev2.ring import Ring
from rocev2.shape import Contradiction, LoopShape, sent_chunk
from rocev2.steps import Step

WIRE_PER_DATA = LL.line_bytes // LL.line_data


@dataclass(slots=True, eq=False)
class Window:
    """The steps of one flow that belong to one all-reduce."""

    flow: Flow
    index: int
    """Ring index of the sender."""
    channel: int
    first: int
    """First step."""
    certain: bool = True
    """Whether the steps can only be these."""

    @property
    def chained(self) -> bool:
        """Whether every step of the flow before it is accounted for."""
        return self.flow.chained and (self.flow.started or self.first == 0)


Reading = list[tuple[Window, int]]
"""Windows, each as if it began so many steps later."""


@dataclass(slots=True, eq=False)
class Found:
    """One all-reduce: its loops and the steps that carry it."""

    ring: Ring
    channels: int
    loops: list[LoopShape]
    windows: list[Window]
    first_order: int = 0
    """Position in the capture of its first packet."""
    last_order: int = 0

    @property
    def ranks(self) -> int:
        """Ranks of the ring."""
        return len(self.ring.hosts)

    @property
    def per_loop(self) -> int:
        """Steps of a flow in one loop."""
        return 2 * self.ranks - 2

    @property
    def bytes(self) -> int:
        """Data bytes, in whole lines."""
        return sum(loop.rest for loop in self.loops)

    def sizes(self, window: Window) -> list[int]:
        """Return the wire bytes of each step of a window."""
        return [
            WIRE_PER_DATA * loop.size(sent_chunk(window.index, step, self.ranks), window.channel)
            for loop in self.loops
            for step in range(self.per_loop)
        ]

    def entries(self, window: Window, shift: int = 0, loops: int = 1) -> list[Step | None]:
        """Return the steps of the first loops of a window, None where nothing of a step was captured."""
        steps, first = window.flow.table.steps, window.first + shift
        return [steps.get(number) for number in range(first, first + loops * self.per_loop)]

    def shown(self, window: Window) -> bool:
        """Return whether any step of a window was captured."""
        return any(entry is not None for entry in self.entries(window, loops=len(self.loops)))

    def fits(self, window: Window, shift: int = 0) -> bool:
        """Return whether the steps of a window, shifted, can have the sizes of the first loop."""
        return fits(window, self.loops[0], self.ranks, shift)


def start_of(flow: Flow) -> int:
    """Return the next step that no collective has taken: the first that was captured, at the beginning."""
    if flow.started or not flow.table.steps:
        return flow.consumed
    return min(flow.table.steps)


def begins_before(flow: Flow) -> bool:
    """Return whether steps before the first that was captured may belong to the first collective."""
    return not flow.started and bool(flow.table.steps) and min(flow.table.steps) > 0


def sizes(
    ranks: int, channels: int, reading: Iterable[tuple[Window, int]]
) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Return what the steps of one loop say of chunk sizes, as `rocev2.shape.solve` wants it: known ones, and bounds.

    Raises:
        Contradiction: two messages that should carry the same chunk have different sizes.
    """
    known: dict[int, int] = {}
    bounds: dict[int, tuple[int, int]] = {}
    for window, shift in reading:
        for step in range(2 * ranks - 2):
            position = sent_chunk(window.index, step, ranks) * channels + window.channel
            entry = window.flow.table.steps.get(window.first + shift + step)
            if entry is None or entry.bad:
                continue
            if entry.size is not None:
                size = entry.size // WIRE_PER_DATA
                if known.setdefault(position, size) != size:
                    raise Contradiction
            else:
                least, most = entry.bounds(window.flow.table.mtu)
                low, high = bounds.get(position, (0, LL.slot_bytes))
                bounds[position] = max(low, least // WIRE_PER_DATA), min(high, most // WIRE_PER_DATA)
    return known, {position: limit for position, limit in bounds.items() if position not in known}


def fits(window: Window, shape: LoopShape, ranks: int, shift: int) -> bool:
    """Return whether the steps of a window, shifted, can have the sizes of a loop."""
    table = window.flow.table
    for step in range(2 * ranks - 2):
        entry = table.steps.get(window.first + shift + step)
        if entry is None or entry.bad:
            continue
        wire = WIRE_PER_DATA * shape.size(sent_chunk(window.index, step, ranks), window.channel)
        least, most = entry.bounds(table.mtu)
        if not least <= wire <= most:
            return False
    return True
