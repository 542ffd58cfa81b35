"""Which steps of a ring's flows are all-reduces: the reading of all flows together that explains most of them.

The steps of each flow are counted from the first one on (flags), in the sender's own order (PSN); nothing else is known
of time. Ranks run the same collectives in the same order. So a reading is a path from "no step read" to "all steps
read" that takes, at each move, either one loop of an all-reduce from all flows of its channels, or one step of another
collective: from all ranks (all-gather, reduce-scatter), or from all but one (broadcast, reduce), on the first channels.
The best readings are those that leave fewest steps to other collectives (A* search). What is not in all of the best
readings is open, and not used. The order in which the capture has the packets plays no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from rocev2.flow import Flow
from rocev2.protocols import LL
from rocev2.ring import Ring
from rocev2.shape import Contradiction, LoopShape, Undetermined, sent_chunk, solve
from rocev2.steps import Step

WIRE_PER_DATA = LL.line_bytes // LL.line_data
_MOST_STATES = 20000  # beside those of one straight path
_LATE = "begins after step 0: which steps of its ranks belong together cannot be told"
_MANY = "has too many readings"
_NONE = "has steps that are no sequence of collectives"

State = tuple[int, ...]
"""First step that is not read, by column."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One captured data flow of a ring."""

    flow: Flow
    index: int
    """Ring index of the sender."""
    channel: int


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of an all-reduce in a reading."""

    first: State
    """First step, by column."""
    channels: int
    shape: LoopShape | None
    """None where too much is lost to tell the sizes."""
    certain: bool
    """Whether all of the best readings have it."""
    joined: bool
    """Whether it follows the loop before it without a step between them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The best reading of a ring's flows."""

    columns: tuple[Column, ...]
    per_loop: int
    """Steps of a flow in one loop."""
    loops: tuple[Loop, ...]
    cost: int
    """Steps left to other collectives."""


class Unreadable(Exception):
    """Why a ring has no best reading."""


def read(ring: Ring, per_loop: int) -> Reading:
    """Return the best reading of a ring's flows.

    Raises:
        Unreadable: there is none, or nobody can tell which rank is 0.
    """
    ranks = len(ring.hosts)
    found: list[Reading] = []
    reason = _NONE
    for shift in range(1 if ring.indexed else ranks):  # ring index of the first host
        columns = tuple(
            Column(flow, (place + shift) % ranks, channel)
            for channel in range(ring.channels)
            for place in sorted(ring.flows)
            if (flow := ring.flows[place][channel]) is not None
        )
        if any(min(column.flow.steps, default=0) >= per_loop for column in columns):
            raise Unreadable(_LATE)
        try:
            found.append(_Search(ranks, ring.channels, columns, per_loop).best())
        except Unreadable as error:
            reason = str(error)
    if not found:
        raise Unreadable(reason)
    least = min(reading.cost for reading in found)
    best = [reading for reading in found if reading.cost == least]
    if len(best) > 1 or (len(found) > 1 and reason == _MANY):
        raise Unreadable("does not tell which host is rank 0")
    return best[0]


Edge = tuple[State, int, int]
"""Where a move leads, what it costs, and the channels of the loop that it takes (0: none)."""


class _Search:
    def __init__(self, ranks: int, channels: int, columns: tuple[Column, ...], per_loop: int) -> None:
        self.ranks = ranks
        self.channels = channels
        self.columns = columns
        self.per_loop = per_loop
        self.totals: State = tuple(column.flow.total for column in columns)
        self.cuts = [sum(column.channel < count for column in columns) for count in range(channels + 1)]
        self._shapes: dict[tuple[int, State], LoopShape | str | None] = {}
        below = {(column.index, column.channel): number for number, column in enumerate(columns)}
        self._nested = [
            (number, other)
            for number, column in enumerate(columns)
            if (other := below.get((column.index, column.channel - 1))) is not None
        ]

    def best(self) -> Reading:
        """Return the best reading."""
        start: State = (0,) * len(self.columns)
        least: dict[State, int] = {start: 0}
        edges: dict[State, list[Edge]] = {}
        queue = [(self._bound(start) or 0, 0, start)]
        cost: int | None = None
        most = _MOST_STATES + sum(self.totals)
        while queue:
            estimate, _, state = heappop(queue)
            if cost is not None and estimate > cost:
                break
            if state in edges:
                continue
            if state == self.totals:
                cost = estimate
                edges[state] = []
                continue
            if len(edges) >= most:
                raise Unreadable(_MANY)
            edges[state] = list(self._moves(state))
            for after, price, _ in edges[state]:
                rest = self._bound(after)
                total = least[state] + price
                if rest is not None and total < least.get(after, total + 1):
                    least[after] = total
                    heappush(queue, (total + rest, -sum(after), after))
        if cost is None:
            raise Unreadable(_NONE)
        return self._reading(least, edges, cost)

    def _reading(self, least: dict[State, int], edges: dict[State, list[Edge]], cost: int) -> Reading:
        """Return one of the best readings, with what is in all of them."""
        order = sorted(edges, key=sum)
        on_best = {
            state: [edge for edge in edges[state] if least.get(edge[0]) == least[state] + edge[1]] for state in order
        }
        ends: dict[State, int] = {self.totals: 1}  # best ways from a state to the end
        for state in reversed(order):
            if state != self.totals:
                ends[state] = sum(ends.get(after, 0) for after, _, _ in on_best[state])
        ways: Counter[State] = Counter({order[0]: 1})  # best ways from the start to a state
        through: Counter[tuple[int, State]] = Counter()
        for state in order:
            for after, _, channels in on_best[state] if ends[state] else ():
                ways[after] += ways[state]
                if channels:
                    through[channels, state[: self.cuts[channels]]] += ways[state] * ends.get(after, 0)
        every = ends[order[0]]
        loops: list[Loop] = []
        state = order[0]
        while state != self.totals:
            after, _, channels = next(edge for edge in on_best[state] if ends.get(edge[0], 0))
            if channels:
                first = state[: self.cuts[channels]]
                shape = self._shape(channels, first)
                before = loops[-1] if loops else None
                joined = before is not None and [step + self.per_loop for step in before.first] == list(first)
                loops.append(
                    Loop(
                        first,
                        channels,
                        shape if isinstance(shape, LoopShape) else None,
                        through[channels, first] == every,
                        joined,
                    )
                )
            state = after
        return Reading(self.columns, self.per_loop, tuple(loops), cost)

    def _bound(self, state: State) -> int | None:
        """Return how many steps must at least be left to other collectives from here on; None: no reading can end."""
        rest = [total - step for total, step in zip(self.totals, state, strict=True)]
        slack = self.per_loop - 1  # the last loop may be cut
        if any(rest[number] > rest[below] + slack for number, below in self._nested):
            return None
        bound = 0
        for low, high in zip(self.cuts, self.cuts[1:], strict=False):
            part = rest[low:high]
            bound += sum(max(0, steps - min(part) - slack) for steps in part)
        return bound

    def _moves(self, state: State) -> Iterator[Edge]:
        rest = [total - step for total, step in zip(self.totals, state, strict=True)]
        for channels in range(1, self.channels + 1):
            cut = self.cuts[channels]
            if not cut:
                continue
            if min(rest[:cut]) >= self.per_loop:
                after = tuple(step + self.per_loop for step in state[:cut]) + state[cut:]
            elif max(rest[:cut]) <= self.per_loop and not any(rest[cut:]) and self._may_be_cut(channels, rest):
                after = self.totals
            else:
                continue
            if self._shape(channels, state[:cut]) is not None:
                yield after, self._doubt(channels, state), channels
        seen: set[State] = set()
        for channels in range(1, self.channels + 1):
            cut = self.cuts[channels]
            indices = {column.index for column in self.columns[:cut]}
            for left_out in (None, *sorted(indices)):
                taken = [n for n in range(cut) if self.columns[n].index != left_out]
                if taken and all(rest[n] for n in taken) and self._equal(state, taken):
                    after_one = list(state)
                    for n in taken:
                        after_one[n] += 1
                    after = tuple(after_one)
                    if after not in seen:
                        seen.add(after)
                        yield after, len(taken), 0

    def _may_be_cut(self, channels: int, rest: list[int]) -> bool:
        """Return whether a capture that just ends can leave so much of a last loop.

        No rank sends its last step before all others have sent their first one.
        """
        for low, high in zip(self.cuts[:channels], self.cuts[1 : channels + 1], strict=False):
            part = rest[low:high]
            if part and max(part) == self.per_loop and min(part) == 0:
                return False
        return any(rest)

    def _equal(self, state: State, taken: list[int]) -> bool:
        """Return whether the next steps of some columns can be the same data, on each channel."""
        known: dict[int, int] = {}
        for number in taken:
            entry = self.columns[number].flow.steps.get(state[number])
            if entry is None or entry.bad or entry.size is None:
                continue
            if known.setdefault(self.columns[number].channel, entry.size) != entry.size:
                return False
        return True

    def _doubt(self, channels: int, first: State) -> int:
        """Return the price of a loop: steps that are lost, where nothing of the same flow agrees with another one.

        They may as well be steps of other collectives: where both cost the same, neither is in all best readings.
        """
        sizes: dict[int, set[int]] = {}  # position of a chunk -> columns that show its size
        windows = list(zip(range(self.cuts[channels]), self.columns, first, strict=False))
        for number, column, start in windows:
            for position, entry in self._entries(channels, column, start):
                if entry is not None and entry.size is not None:
                    sizes.setdefault(position, set()).add(number)
        price = 0
        for _, column, start in windows:
            entries = list(self._entries(channels, column, start))
            lacking = any(entry is None for _, entry in entries)
            agreed = any(
                entry is not None and entry.size is not None and len(sizes[position]) > 1 for position, entry in entries
            )
            if lacking and not agreed:
                price += min(self.per_loop, column.flow.total - start)
        return price

    def _entries(self, channels: int, column: Column, start: int) -> Iterator[tuple[int, Step | None]]:
        """Yield the position in the loop of the chunk that each step carries, and what is there of the step."""
        for step in range(self.per_loop):
            entry = column.flow.steps.get(start + step)
            position = sent_chunk(column.index, step, self.ranks) * channels + column.channel
            yield position, None if entry is None or entry.bad else entry

    def _shape(self, channels: int, first: State) -> LoopShape | str | None:
        """Return the loop that the columns have from some steps on: None if none, a text if too much is lost."""
        key = (channels, first)
        if key not in self._shapes:
            try:
                self._shapes[key] = self._solve(channels, first)
            except Contradiction:
                self._shapes[key] = None
            except Undetermined:
                self._shapes[key] = "unknown"
        return self._shapes[key]

    def _solve(self, channels: int, first: State) -> LoopShape:
        known: dict[int, int] = {}
        bounds: dict[int, tuple[int, int]] = {}
        for column, start in zip(self.columns, first, strict=False):
            mtu = column.flow.table.mtu if column.flow.table is not None else None
            for position, entry in self._entries(channels, column, start):
                if entry is None:
                    continue
                if entry.size is not None:
                    size = entry.size // WIRE_PER_DATA
                    if known.setdefault(position, size) != size:
                        raise Contradiction
                else:
                    least, most = entry.bounds(mtu)
                    low, high = bounds.get(position, (0, LL.slot_bytes))
                    bounds[position] = max(low, least // WIRE_PER_DATA), min(high, most // WIRE_PER_DATA)
        for position, (low, high) in bounds.items():
            if position in known and not low <= known[position] <= high:
                raise Contradiction
        return solve(self.ranks, channels, known, {p: limit for p, limit in bounds.items() if p not in known})
