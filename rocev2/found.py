"""The all-reduces of a ring: loops of the best reading put together, and which of them are proven."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from ipaddress import ip_address

import numpy as np
from numpy.typing import NDArray

from rocev2.flow import Flow
from rocev2.parse import WIRE_PER_DATA, Column, Loop, Reading, Unreadable, read
from rocev2.protocols import LL
from rocev2.ring import Ring
from rocev2.shape import LoopShape, sent_chunk
from rocev2.steps import Step

_LEAST_CONTENT = 64  # bytes; fewer, or fewer different ones, prove nothing where they are equal


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
    if not ring.flows:
        return Findings(ring, (), 0, 0, False, ())
    if not ring.channels_ordered:
        return Findings(ring, (), 1, steps, False, (f"{name} does not tell which queue pair is which channel",))
    # A rank may forward once more the chunk that it received last: then all ranks send the same data.
    again = _sent_by_all(ring)
    forwarded = _forwarding(ring) if again else None
    try:
        reading = forwarded or read(ring, 2 * ranks - 2)
    except Unreadable as reason:
        return Findings(ring, (), 1, steps, False, (f"{name} {reason}",))
    groups = list(_groups(reading, totals))
    confirmed = _confirmed(ring, reading) and (forwarded is not None or not again)
    heard = _heard(ring, reading)
    alike = Counter(tuple(loop.shape for loop in group) for group, _ in groups)
    found, open_loops = [], 0
    for group, cut_by_total in groups:
        shapes = tuple(loop.shape for loop in group if loop.shape is not None)
        windows = tuple(zip(reading.columns, group[0].first, strict=False))
        item = Found(ring, group[0].channels, shapes, reading.per_loop, windows)
        # A last loop of full size may go on behind the end of the capture.
        tied = any(not shape.uniform for shape in shapes) and not shapes[-1].full
        # Behind it loops may follow whose sizes do not tell the phases apart: one step earlier or later, all of them
        # and this one may be something else, unless the size of this one is no chance.
        total = sum(shape.rest for shape in shapes)
        known = total in totals or alike[tuple(loop.shape for loop in group)] > 1 or _twice(reading, group)
        tied = tied and (known or not (totals or _blurred(reading, group[-1])))
        if not any(first + ranks - 1 < column.flow.total for column, first in windows):
            continue  # no rank has sent, or was asked for, reduced data
        certain = len(shapes) == len(group) and all(loop.certain for loop in group)
        certain = certain and (group[0].joined or group[0].begins)
        certain = certain and (cut_by_total or group[-1].ends or not shapes[-1].full)
        if certain and heard and (tied or confirmed):
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


def _blurred(reading: Reading, loop: Loop) -> bool:
    """Return whether some loop behind `loop` has chunks of one size only, or of sizes that are not known."""
    behind = reading.loops[reading.loops.index(loop) + 1 :]
    return any(other.shape is None or other.shape.uniform for other in behind)


def _twice(reading: Reading, group: list[Loop]) -> bool:
    """Return whether some chunk was sent twice: in both phases, or by two ranks (`parse` has compared the sizes)."""
    ranks = reading.per_loop // 2 + 1
    for loop in group:
        sent = Counter(
            (sent_chunk(column.index, step, ranks), column.channel)
            for column, first in zip(reading.columns, loop.first, strict=False)
            for step in range(reading.per_loop)
            if (entry := column.flow.steps.get(first + step)) is not None and not entry.bad and entry.size
        )
        if max(sent.values(), default=0) > 1:
            return True
    return False


def _groups(reading: Reading, totals: frozenset[int]) -> Iterator[tuple[list[Loop], bool]]:
    """Yield the loops of each all-reduce, with whether it is known by its size that it ends there."""
    loops = list(reading.loops)
    place = 0
    while place < len(loops):
        group = [loops[place]]
        done = False
        while not done and place + len(group) < len(loops):
            last, following = group[-1], loops[place + len(group)]
            if not following.joined or following.channels != last.channels:
                break
            shapes = [loop.shape for loop in group if loop.shape is not None]
            if last.shape is not None and not last.shape.full:
                break
            done = len(shapes) == len(group) and sum(shape.rest for shape in shapes) in totals
            if not done:
                group.append(following)  # one of no known size may be a full one, so that the next belongs to it
        place += len(group)
        yield group, done


def _confirmed(ring: Ring, reading: Reading) -> bool:
    """Return whether it is known of every channel where its steps end.

    Then as many steps were sent as were announced, and the last loop is whole: chunks of equal size, whose phase sizes
    cannot tell, are counted from both ends.
    """
    ends: dict[int, bool] = {}
    for column in reading.columns:
        flow = column.flow
        ends[column.channel] = ends.get(column.channel, False) or (
            flow.promise is not None and flow.promise.steps == flow.sent
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
        announced is not None and announced + reading.per_loop > _loops_of(reading, channel) * reading.per_loop
        for (_, channel), announced in ring.hidden.items()
        if _loops_of(reading, channel)
    )


def _surplus(ring: Ring, reading: Reading) -> int:
    """Return how many more steps were announced to a rank that was not captured than the all-reduces have."""
    return max(
        ((announced or 0) - _loops_of(reading, channel) * reading.per_loop)
        for (_, channel), announced in (*ring.hidden.items(), ((0, 0), 0))
    )


def _contents(step: Step | None) -> Iterator[tuple[int, bytes]]:
    """Yield PSN and data of the packets of a step, but of those whose data are few, or much alike."""
    if step is None or step.bad:
        return
    for write in step.writes:
        for place, psn in enumerate(write.frames["psn"].tolist()):
            data = LL.data(write.packet(place)).tobytes()
            if len({data[at : at + 4] for at in range(0, min(len(data), _LEAST_CONTENT), 4)}) > _LEAST_CONTENT // 8:
                yield psn, data


def _heads(flow: Flow | None) -> NDArray[np.uint64]:
    """Return the first line of each packet of a flow's steps: without an equal one no packets are equal."""
    writes = [write for step in (flow.steps.values() if flow is not None else ()) for write in step.writes]
    if not writes:
        return np.zeros(0, np.uint64)
    places = np.concatenate([write.frames["payload"][write.frames["size"] >= LL.line_bytes] for write in writes])
    lines = writes[0].data[places[:, None] + np.arange(LL.line_bytes)]
    return np.unique(LL.data(lines.reshape(-1)).view(np.uint64))


def _sent_by_all(ring: Ring) -> bool:
    """Return whether all ranks send the same data once, on some channel: an all-reduce alone leaves out one rank."""
    if len(ring.flows) < len(ring.hosts):
        return False
    for channel in range(ring.channels):
        flows = [row[channel] for row in ring.flows.values()]
        if len(reduce(np.intersect1d, map(_heads, flows))):
            steps = [flow.steps.values() if flow is not None else () for flow in flows]
            if set.intersection(*({hash(data) for step in row for _, data in _contents(step)} for row in steps)):
                return True
    return False


def _forwarding(ring: Ring) -> Reading | None:
    """Return the reading in which ranks forward once more what they received last, if the data bear it out."""
    ranks = len(ring.hosts)
    try:
        reading = read(ring, 2 * ranks - 1)
    except Unreadable:
        return None
    equal = 0
    for loop in reading.loops:
        starts = {(c.index, c.channel): (c, first) for c, first in zip(reading.columns, loop.first, strict=False)}
        for column, first in starts.values():
            before, start = starts.get(((column.index - 1) % ranks, column.channel), (column, None))
            sent = column.flow.steps.get(first + 2 * ranks - 2)
            received = before.flow.steps.get(start + 2 * ranks - 3) if start is not None else None
            if sent is None or received is None or sent.first is None or received.first is None:
                continue
            others = {psn - received.first: data for psn, data in _contents(received)}
            pairs = [(data, others.get(psn - sent.first)) for psn, data in _contents(sent)]
            if any(other not in (None, data) for data, other in pairs):
                return None
            equal += any(other is not None for _, other in pairs)
    return reading if equal else None
