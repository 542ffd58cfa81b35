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

WIRE_PER_DATA = LL.line_bytes // LL.line_data
_MOST_WORK = 300_000  # states beside a straight path, times columns, times ways to leave a step out
_MOST_CHANNELS = 64  # MAXCHANNELS
_MOST_LOST = 64  # steps for each one that was captured
_LATE = "begins after step 0: which steps of its ranks belong together cannot be told"
_MANY = "has too many readings"
_LOST = "lacks too many steps, or has too many channels"
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
    begins: bool
    """Whether in no other reading one of full size, or of no known size, is just before it."""
    ends: bool
    """Whether in no other reading a loop of as many channels is just behind it."""


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
        captured = sum(len(column.flow.steps) for column in columns)
        if sum(column.flow.total for column in columns) > _MOST_LOST * captured or ring.channels > _MOST_CHANNELS:
            raise Unreadable(_LOST)
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


class _Graph:
    """Moves between states, and which of them are in readings that cost at most a limit."""

    def __init__(
        self, start: State, end: State, least: dict[State, int], edges: dict[State, list[Edge]], limit: int
    ) -> None:
        self.limit = limit
        self._start = start
        self._end = end
        self._order = sorted(edges, key=sum)
        rest = {end: 0}  # least cost from a state to the end
        for state in reversed(self._order):
            costs = [price + rest[after] for after, price, _ in edges[state] if after in rest]
            if costs:
                rest[state] = min(costs)
        self._edges = {
            state: [
                (after, price, channels)
                for after, price, channels in edges[state]
                if after in rest and least[state] + price + rest[after] <= limit
            ]
            for state in self._order
        }

    def path(self) -> Iterator[tuple[State, int]]:
        """Yield the loops of one reading: state and channels."""
        state = self._start
        while state != self._end:
            after, _, channels = self._edges[state][0]
            if channels:
                yield state, channels
            state = after

    def uses(self, cuts: list[int]) -> Counter[tuple[int, State]]:
        """Return how many readings have each loop (channels, first steps); (0, ()) counts all readings."""
        ends = {self._end: 1}  # ways from a state to the end
        for state in reversed(self._order):
            if state != self._end:
                ends[state] = sum(ends.get(after, 0) for after, _, _ in self._edges[state])
        ways: Counter[State] = Counter({self._start: 1})  # ways from the start to a state
        through: Counter[tuple[int, State]] = Counter({(0, ()): ends[self._start]})
        for state in self._order:
            for after, _, channels in self._edges[state] if ways[state] else ():
                ways[after] += ways[state]
                if channels:
                    through[channels, state[: cuts[channels]]] += ways[state] * ends.get(after, 0)
        return through


@dataclass(slots=True)
class _Window:
    """What the steps of one column in one loop say of its chunks, by position (chunk * channels + channel)."""

    sizes: dict[int, int]
    """Data bytes."""
    bounds: dict[int, tuple[int, int]]
    """Least and greatest data bytes, where packets that tell the size are lost."""
    lacking: bool
    """Whether a step is lost as a whole."""
    differs: bool = False
    """Whether two steps carry the same chunk with different sizes."""


class _Search:
    def __init__(self, ranks: int, channels: int, columns: tuple[Column, ...], per_loop: int) -> None:
        self.ranks = ranks
        self.channels = channels
        self.columns = columns
        self.per_loop = per_loop
        self.totals: State = tuple(column.flow.total for column in columns)
        self.cuts = [sum(column.channel < count for column in columns) for count in range(channels + 1)]
        self._doubted = False
        self._steps = [column.flow.steps for column in columns]
        self._windows: dict[tuple[int, int, int], _Window] = {}
        self._shapes: dict[tuple[int, State], LoopShape | str | None] = {}
        below = {(column.index, column.channel): number for number, column in enumerate(columns)}
        self._nested = [
            (number, other)
            for number, column in enumerate(columns)
            if (other := below.get((column.index, column.channel - 1))) is not None
        ]

    def best(self) -> Reading:
        """Return the best reading."""
        best = self._explore(doubtful=True)
        # What is lost may be worth less than it costs: what is certain is in all of the best readings either way.
        both = [best, self._explore(doubtful=False)] if self._doubted else [best]
        uses = [graph.uses(self.cuts) for graph in both]
        loops: list[Loop] = []
        for state, channels in best.path():
            first = state[: self.cuts[channels]]
            shape = self._shape(channels, first)
            joined = bool(loops) and [step + self.per_loop for step in loops[-1].first] == list(first)
            known = shape if isinstance(shape, LoopShape) else None
            before = tuple(step - self.per_loop for step in first)
            earlier = self._shape(channels, before) if any(use[channels, before] for use in uses) else None
            begins = earlier is None or (isinstance(earlier, LoopShape) and not earlier.full)
            after = tuple(step + self.per_loop for step in first)
            ends = not any(use[channels, after] for use in uses)
            certain = all(use[channels, first] == use[0, ()] for use in uses)
            loops.append(Loop(first, channels, known, certain, joined, begins, ends))
        return Reading(self.columns, self.per_loop, tuple(loops), best.limit)

    def _explore(self, doubtful: bool) -> _Graph:
        """Return the best readings; loops that lack steps cost something if they are `doubtful`."""
        start: State = (0,) * len(self.columns)
        least: dict[State, int] = {start: 0}
        edges: dict[State, list[Edge]] = {}
        queue = [(self._bound(start) or 0, 0, start)]
        limit: int | None = None
        most = 4 * max(self.totals) + _MOST_WORK // (len(self.columns) * self.channels * self.ranks)
        while queue:
            estimate, _, state = heappop(queue)
            if limit is not None and estimate > limit:
                break
            if state in edges:
                continue
            if len(edges) >= most:
                raise Unreadable(_MANY)
            edges[state] = []
            if state == self.totals:
                limit = estimate
                continue
            for after, price, channels in self._moves(state):
                if channels and doubtful:
                    doubt = self._doubt(channels, state)
                    price = max(price, doubt)
                    self._doubted |= doubt > 0
                edges[state].append((after, price, channels))
                rest = self._bound(after)
                total = least[state] + price
                if rest is not None and total < least.get(after, total + 1):
                    least[after] = total
                    heappush(queue, (total + rest, -sum(after), after))
        if limit is None:
            raise Unreadable(_NONE)
        return _Graph(start, self.totals, least, edges, limit)

    def _bound(self, state: State) -> int | None:
        """Return how many steps must at least be left to other collectives from here on; None: no reading can end."""
        rest = [total - step for total, step in zip(self.totals, state, strict=True)]
        slack = self.per_loop - 1  # the last loop may be cut
        if any(rest[number] > rest[below] + slack for number, below in self._nested):
            return None
        bound = 0
        for low, high in zip(self.cuts, self.cuts[1:], strict=False):
            part = rest[low:high]
            bound += sum(part) - len(part) * min(part, default=0)
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
                # What is left at the end may be the beginning of a loop, or something else: both cost the same.
                yield after, sum(rest) if min(rest[:cut]) < self.per_loop else 0, channels
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
            entry = self._steps[number].get(state[number])
            if entry is None or entry.bad or entry.size is None:
                continue
            if known.setdefault(self.columns[number].channel, entry.size) != entry.size:
                return False
        return True

    def _doubt(self, channels: int, first: State) -> int:
        """Return the price of a loop: steps that are lost, where nothing of the same flow agrees with another one.

        They may as well be steps of other collectives: where both cost the same, neither is in all best readings.
        """
        windows = [self._window(channels, number, first[number]) for number in range(self.cuts[channels])]
        shown = Counter(position for window in windows for position in window.sizes)
        return sum(
            min(self.per_loop, self.totals[number] - first[number])
            for number, window in enumerate(windows)
            if window.lacking and not any(shown[position] > 1 for position in window.sizes)
        )

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
        for number, start in enumerate(first):
            window = self._window(channels, number, start)
            if window.differs:
                raise Contradiction
            for position, size in window.sizes.items():
                if known.setdefault(position, size) != size:
                    raise Contradiction
            for position, (least, most) in window.bounds.items():
                low, high = bounds.get(position, (0, LL.slot_bytes))
                bounds[position] = max(low, least), min(high, most)
        for position, (low, high) in bounds.items():
            if position in known and not low <= known[position] <= high:
                raise Contradiction
        return solve(self.ranks, channels, known, {p: limit for p, limit in bounds.items() if p not in known})

    def _window(self, channels: int, number: int, start: int) -> _Window:
        """Return what the steps of a column say from `start` on."""
        key = (channels, number, start)
        if (found := self._windows.get(key)) is None:
            column = self.columns[number]
            found = self._windows[key] = _Window({}, {}, False)
            mtu = column.flow.table.mtu if column.flow.table is not None else None
            for step in range(self.per_loop):
                entry = self._steps[number].get(start + step)
                position = sent_chunk(column.index, step, self.ranks) * channels + column.channel
                if entry is None or entry.bad:
                    found.lacking = True
                elif entry.size is None:
                    least, most = entry.bounds(mtu)
                    found.bounds[position] = least // WIRE_PER_DATA, most // WIRE_PER_DATA
                elif found.sizes.setdefault(position, entry.size // WIRE_PER_DATA) != entry.size // WIRE_PER_DATA:
                    found.differs = True
        return found
