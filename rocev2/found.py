"""The all-reduces of a ring: loops of the best reading put together, and which of them are proven."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from rocev2.flow import Flow
from rocev2.parse import WIRE_PER_DATA, Column, Loop, Reading, Unreadable, read
from rocev2.protocols import LL
from rocev2.ring import Ring
from rocev2.shape import LoopShape, sent_chunk
from rocev2.steps import Step

_LEAST_CONTENT = 64  # fewer equal bytes prove nothing


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One all-reduce: its loops and the steps that carry it."""

    ring: Ring
    channels: int
    loops: tuple[LoopShape, ...]
    per_loop: int
    """Steps of a flow in one loop."""
    windows: tuple[tuple[Column, int], ...]
    """The flows that were captured, each with its first step."""

    @property
    def ranks(self) -> int:
        """Ranks of the ring."""
        return len(self.ring.hosts)

    @property
    def bytes(self) -> int:
        """Data bytes, in whole lines."""
        return sum(loop.rest for loop in self.loops)

    def sizes(self, column: Column) -> list[int]:
        """Return the wire bytes of each step of a column."""
        return [
            WIRE_PER_DATA * loop.size(sent_chunk(column.index, step, self.ranks), column.channel)
            for loop in self.loops
            for step in range(self.per_loop)
        ]

    def orders(self) -> tuple[int, int]:
        """Return the least and greatest position in the capture of its packets, for reports."""
        steps = [
            step
            for column, first in self.windows
            for number in range(first, first + len(self.loops) * self.per_loop)
            if (step := column.flow.steps.get(number)) is not None
        ]
        return min(step.order for step in steps), max(step.last_order for step in steps)


@dataclass(frozen=True, slots=True)
class Findings:
    """What the flows of one ring hold."""

    ring: Ring
    all_reduces: tuple[Found, ...]
    """In the order of their steps."""
    open: int
    """Loops of all-reduces that are there but not proven."""
    unresolved: int
    """Messages that belong to no all-reduce of these."""
    whole: bool
    """Whether nothing else of the ring is open: the count of all-reduces is that of the job."""
    notes: tuple[str, ...]


def find(ring: Ring, totals: frozenset[int]) -> Findings:
    """Return the all-reduces of a ring; `totals` are the bytes of its buckets, in whole lines, where they are known."""
    ranks = len(ring.hosts)
    steps = sum(len(flow.steps) for row in ring.flows.values() for flow in row if flow is not None)
    name = "the ring of " + ", ".join(str(ip_address(host)) for host in ring.hosts)
    if not ring.channels_ordered:
        return Findings(ring, (), 1, steps, False, (f"{name} does not tell which queue pair is which channel",))
    try:
        # A rank may forward once more the chunk that it received last: then all ranks send the same data.
        reading = read(ring, 2 * ranks - 1) if _sent_by_all(ring) else None
        if reading is None or not _forwards(reading, ranks):
            reading = read(ring, 2 * ranks - 2)
    except Unreadable as reason:
        return Findings(ring, (), 1, steps, False, (f"{name} {reason}",))
    groups = list(_groups(reading, totals))
    confirmed = _confirmed(ring, reading)
    heard = _heard(ring, reading)
    found, open_loops = [], 0
    for group, follows in groups:
        shapes = tuple(loop.shape for loop in group if loop.shape is not None)
        windows = tuple(zip(reading.columns, group[0].first, strict=False))
        item = Found(ring, group[0].channels, shapes, reading.per_loop, windows)
        tied = any(not shape.uniform for shape in shapes) and not (shapes[-1].full and not follows)
        if not any(first + ranks - 1 < column.flow.total for column, first in windows):
            continue  # no rank has sent, or was asked for, reduced data
        if len(shapes) == len(group) and heard and all(loop.certain for loop in group) and (tied or confirmed):
            found.append(item)
        else:
            open_loops += len(group)
    taken = sum(
        number in column.flow.steps
        for item in found
        for column, first in item.windows
        for number in range(first, first + len(item.loops) * item.per_loop)
    )
    notes = (f"{name} has {open_loops} loops of all-reduces that fit more than one reading",) if open_loops else ()
    whole = not open_loops and _surplus(ring, reading) < reading.per_loop
    return Findings(ring, tuple(found), open_loops, steps - taken, whole, notes)


def _groups(reading: Reading, totals: frozenset[int]) -> Iterable[tuple[list[Loop], bool]]:
    """Yield the loops of each all-reduce, with whether other steps of the same flows follow."""
    loops = list(reading.loops)
    place = 0
    while place < len(loops):
        group = [loops[place]]
        unknown = False  # whether one of no known size may be a full one, so that the next belongs to it
        while place + len(group) < len(loops):
            last, following = group[-1], loops[place + len(group)]
            if not following.joined or following.channels != last.channels:
                break
            sizes = [loop.shape.rest for loop in group if loop.shape is not None]
            unknown |= last.shape is None
            if not unknown and ((last.shape is not None and not last.shape.full) or sum(sizes) in totals):
                break
            if unknown and following.shape is not None and last.shape is not None and not last.shape.full:
                break
            group.append(following)
        place += len(group)
        end = [step + reading.per_loop for step in group[-1].first]
        yield group, all(step < column.flow.total for step, column in zip(end, reading.columns, strict=False))


def _confirmed(ring: Ring, reading: Reading) -> bool:
    """Return whether it is known of every channel where its steps end.

    Then as many steps were sent as were announced, and the last loop is whole: chunks of equal size, whose phase sizes
    cannot tell, are counted from both ends.
    """
    ends: dict[int, bool] = {}
    for column in reading.columns:
        flow = column.flow
        sent = max(flow.steps, default=-1) + 1
        ends[column.channel] = ends.get(column.channel, False) or (
            flow.promise is not None and flow.promise.steps == sent == flow.total
        )
    if not all(ends.values()) or len(ends) < ring.channels:
        return False
    last = reading.loops[-1] if reading.loops else None
    return last is None or all(
        step + reading.per_loop <= column.flow.total for step, column in zip(last.first, reading.columns, strict=False)
    )


def _loops_of(reading: Reading, channel: int) -> int:
    return sum(loop.channels > channel for loop in reading.loops)


def _heard(ring: Ring, reading: Reading) -> bool:
    """Return whether ranks whose data were not captured were asked for enough steps to take part."""
    return all(
        announced + reading.per_loop > _loops_of(reading, channel) * reading.per_loop
        for row in ring.hidden.values()
        for channel, announced in enumerate(row)
    )


def _surplus(ring: Ring, reading: Reading) -> int:
    """Return how many more steps were announced to a rank that was not captured than the all-reduces have."""
    return max(
        (
            announced - _loops_of(reading, channel) * reading.per_loop
            for row in ring.hidden.values()
            for channel, announced in enumerate(row)
        ),
        default=0,
    )


def _content(step: Step) -> bytes | None:
    """Return what tells the data of a step from others, None where too little is there, or it is all alike."""
    if step.bad or not step.size or step.first is None or step.data_last is None:
        return None
    pieces = sorted((piece for _, piece in step.addressed + step.placed), key=lambda piece: piece.psn)
    if not pieces or len(pieces) != step.data_last - step.first + 1:
        return None
    data = LL.data(pieces[0].payload) + LL.data(pieces[-1].payload)
    if len(data) < _LEAST_CONTENT or len({data[at : at + 4] for at in range(0, len(data), 4)}) < _LEAST_CONTENT // 8:
        return None
    return b"".join(LL.data(piece.payload) for piece in pieces)


def _sent_by_all(ring: Ring) -> bool:
    """Return whether all ranks send the same data once, on some channel: an all-reduce alone leaves out one rank."""
    if len(ring.flows) < len(ring.hosts):
        return False
    for channel in range(ring.channels):
        seen: set[int] | None = None
        for row in ring.flows.values():
            flow = row[channel]
            steps = flow.steps.values() if flow is not None else ()
            contents = {hash(content) for step in steps if (content := _content(step)) is not None}
            seen = contents if seen is None else seen & contents
        if seen:
            return True
    return False


def _forwards(reading: Reading, ranks: int) -> bool:
    """Return whether the last steps of loops repeat what the ranks before sent last, as far as can be seen."""
    by_place: dict[tuple[int, int], Flow] = {(c.index, c.channel): c.flow for c in reading.columns}
    equal = 0
    for loop in reading.loops:
        for column, first in zip(reading.columns, loop.first, strict=False):
            before = by_place[(column.index - 1) % ranks, column.channel]
            starts = {(c.index, c.channel): start for c, start in zip(reading.columns, loop.first, strict=False)}
            sent = column.flow.steps.get(first + 2 * ranks - 2)
            received = before.steps.get(starts[(column.index - 1) % ranks, column.channel] + 2 * ranks - 3)
            contents = [_content(step) if step is not None else None for step in (sent, received)]
            if None in contents:
                continue
            if contents[0] != contents[1]:
                return False
            equal += 1
    return equal > 0
