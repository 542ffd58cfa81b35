"""All-reduces found in the steps of a ring's flows.

All flows of a ring are read side by side. Where the next steps of all of them have the sizes of one all-reduce, in the
order that the ring's arithmetic demands of each rank, they are one; else the earliest step belongs to another
collective and is passed over. Steps whose sizes are lost take them from the other ranks and channels, or from later
steps that carry the same chunk. What fits more than one reading is no proof and is not used.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from rocev2.flow import Flow
from rocev2.protocols import LL
from rocev2.ring import Ring
from rocev2.shape import Contradiction, LoopShape, Undetermined, sent_chunk, solve
from rocev2.steps import Step

_WIRE_PER_DATA = LL.line_bytes // LL.line_data
_PARITY_STEPS = 4096


@dataclass(slots=True)
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


@dataclass(slots=True)
class Found:
    """One all-reduce: its loops and the steps that carry it."""

    ring: Ring
    ranks: int
    channels: int
    loops: list[LoopShape]
    windows: list[Window]
    first_order: int = 0
    last_order: int = 0

    @property
    def bytes(self) -> int:
        """Data bytes, in whole lines."""
        return sum(loop.rest for loop in self.loops)

    def sizes(self, window: Window) -> list[int]:
        """Return the wire bytes of each step of a window."""
        return [
            _WIRE_PER_DATA * loop.size(sent_chunk(window.index, step, self.ranks), window.channel)
            for loop in self.loops
            for step in range(2 * self.ranks - 2)
        ]


class Collector:
    """Reads the flows of one ring."""

    def __init__(self, ring: Ring, totals: frozenset[int] = frozenset()) -> None:
        """Read the flows of `ring`; `totals` are the bytes of its buckets, in whole lines, where they are known."""
        self.ring = ring
        self._totals = totals
        self.ranks = len(ring.hosts)
        self.per_loop = 2 * self.ranks - 2
        self.passed = 0
        """Steps passed over: other collectives, or damaged."""

    def collect(self, final: bool) -> Iterator[Found]:
        """Yield the all-reduces that can be told now; the rest when more has come, or at the end (`final`)."""
        while True:
            if not final and not self._enough():
                return
            found = self._next(final)
            if found is _WAIT:
                return
            if isinstance(found, Found):
                yield found
            elif not self._pass_over(broken=found is _UNDETERMINED):
                return

    def frontier(self) -> int | None:
        """Return the position in the capture before which every step is accounted for, None if all are."""
        orders = [self._order(flow) for flow in self._flows() if flow.table.last >= flow.consumed]
        return min(orders, default=None)

    def _flows(self) -> list[Flow]:
        return [flow for row in self.ring.flows.values() for flow in row if flow is not None]

    def _enough(self) -> bool:
        return all(flow.table.newest >= _start(flow) + 2 * self.per_loop for flow in self._flows())

    def _next(self, final: bool) -> Found | object:
        for channels in range(self.ring.channels, 0, -1):
            if not self._active(channels):
                continue
            verdicts = [self._attempt(channels, shift, final) for shift in self._shifts()]
            fits = [verdict for verdict in verdicts if isinstance(verdict, Found)]
            if _WAIT in verdicts:
                return _WAIT
            if len(fits) == 1:
                self._consume(fits[0])
                return fits[0]
            if fits or _UNDETERMINED in verdicts:
                return _UNDETERMINED  # fewer channels may fit by chance, without the damaged ones
        return _CONTRADICTION

    def _shifts(self) -> range:
        """Return the ring indices that the first of the ring's hosts may have."""
        return range(1) if self.ring.indexed else range(self.ranks)

    def _active(self, channels: int) -> bool:
        """Return whether each of the first channels has steps to come that can be of one collective.

        They need not overlap in time, but a channel that goes on with its next collective before another one begins
        is not in the same as that. (A collective that uses a channel uses all channels before it.)
        """
        spans, nexts = [], []
        for channel in range(channels):
            flows = [row[channel] for row in self.ring.flows.values() if row[channel] is not None]
            orders = [self._orders(flow, 0) for flow in flows if flow is not None]
            after = [self._orders(flow, self.per_loop) for flow in flows if flow is not None]
            seen = [order for part in orders for order in part]
            if not seen:
                return False
            spans.append(min(seen))
            nexts.append(min((order for part in after for order in part), default=None))
        return all(following is None or max(spans) < following for following in nexts)

    def _orders(self, flow: Flow, skip: int) -> list[int]:
        """Return where in the capture the steps of one loop begin, `skip` steps from the next one on."""
        first = _start(flow) + skip
        steps = [flow.table.steps.get(number) for number in range(first, first + self.per_loop)]
        return [step.order for step in steps if step is not None and step.order >= 0]

    def _attempt(self, channels: int, shift: int, final: bool) -> Found | object:
        windows = self._windows(channels, shift)
        loops: list[LoopShape] = []
        try:
            while True:
                done = len(loops) * self.per_loop
                if loops and not self._continues(windows, done, final):
                    break
                shape = self._solve(channels, windows, done)
                loops.append(shape)
                if not shape.full or sum(loop.rest for loop in loops) in self._totals:
                    break
        except Contradiction:
            if not loops:
                return _CONTRADICTION
        except Undetermined:
            return _UNDETERMINED
        except _Wait:
            return _WAIT
        found = Found(self.ring, self.ranks, channels, loops, windows)
        return self._check(found, final)

    def _windows(self, channels: int, shift: int) -> list[Window]:
        return [
            Window(flow, (place + shift) % self.ranks, channel, _start(flow))
            for place, row in self.ring.flows.items()
            for channel, flow in enumerate(row[:channels])
            if flow is not None
        ]

    def _continues(self, windows: list[Window], done: int, final: bool) -> bool:
        """Return whether any step of a further loop is there."""
        if not final and any(w.flow.table.newest < w.first + done + 2 * self.per_loop for w in windows):
            raise _Wait
        return any(w.first + done + step in w.flow.table.steps for w in windows for step in range(self.per_loop))

    def _solve(self, channels: int, windows: list[Window], done: int) -> LoopShape:
        """Return the loop that steps `done` and on of the windows are; shift windows that begin before the capture."""
        firm = [w for w in windows if not _soft(w.flow)]
        basis = firm or windows
        known, bounds = self._sizes(channels, [(window, done) for window in basis])
        shape = solve(self.ranks, channels, known, bounds)
        if firm and done == 0:
            for window in windows:
                if _soft(window.flow):
                    self._align(window, shape)
        for window in windows:
            if not self._fits(window, shape, done, 0):
                raise Contradiction
        return shape

    def _sizes(
        self, channels: int, windows: list[tuple[Window, int]]
    ) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
        """Return known sizes and bounds, as `solve` wants them, of windows that begin so many steps later."""
        known: dict[int, int] = {}
        bounds: dict[int, tuple[int, int]] = {}
        for window, done in windows:
            for step in range(self.per_loop):
                position = sent_chunk(window.index, step, self.ranks) * channels + window.channel
                entry = window.flow.table.steps.get(window.first + done + step)
                if entry is None or entry.bad:
                    continue
                if entry.size is not None:
                    size = entry.size // _WIRE_PER_DATA
                    if known.setdefault(position, size) != size:
                        raise Contradiction
                else:
                    least, most = entry.bounds(window.flow.table.mtu)
                    low, high = bounds.get(position, (0, LL.slot_bytes))
                    bounds[position] = max(low, least // _WIRE_PER_DATA), min(high, most // _WIRE_PER_DATA)
        return known, {position: limit for position, limit in bounds.items() if position not in known}

    def _align(self, window: Window, shape: LoopShape) -> None:
        """Let a window begin before the first step that was captured, where that is what fits."""
        least = min(window.flow.table.steps)
        for back in range(min(self.per_loop, least) + 1):
            window.first = least - back
            if self._fits(window, shape, 0, 0):
                return
        raise Contradiction

    def _fits(self, window: Window, shape: LoopShape, done: int, shift: int) -> bool:
        """Return whether the steps of a window, shifted, can have the sizes of the loop."""
        table = window.flow.table
        for step in range(self.per_loop):
            entry = table.steps.get(window.first + done + shift + step)
            if entry is None or entry.bad:
                continue
            wire = _WIRE_PER_DATA * shape.size(sent_chunk(window.index, step, self.ranks), window.channel)
            least, most = entry.bounds(table.mtu)
            if not least <= wire <= most:
                return False
        return True

    def _check(self, found: Found, final: bool) -> Found | object:
        windows = found.windows
        orders = [
            (entry.order, entry.last_order)
            for window in windows
            for entry in self._entries(window, len(found.loops))
            if entry is not None and entry.order >= 0
        ]
        found.first_order = min((first for first, _ in orders), default=0)
        found.last_order = max((last for _, last in orders), default=0)
        if not self._causal(found, [(window, 0) for window in windows]) or not self._receives(found):
            return _CONTRADICTION
        if self._contested(found):
            return _UNDETERMINED
        others = self._others(found)
        if others is not None:
            return others
        anchors = [window for window in windows if _chained(window)]
        if all(loop.uniform for loop in found.loops):
            pinned = [window for window in anchors if window.flow.after_all_reduce]
            if not pinned and not (anchors and self._alone(found, anchors)):
                return _UNDETERMINED
            anchors = pinned or anchors
        for window in windows:
            window.certain = window in anchors or not any(
                self._fits(window, found.loops[0], 0, shift)
                and self._causal(found, [*((anchor, 0) for anchor in anchors), (window, shift)])
                for shift in range(1 - self.per_loop, self.per_loop)
                if shift
            )
        return found if any(window.certain for window in windows) else _UNDETERMINED

    def _entries(self, window: Window, loops: int, shift: int = 0) -> list[Step | None]:
        steps, first = window.flow.table.steps, window.first + shift
        return [steps.get(number) for number in range(first, first + loops * self.per_loop)]

    def _causal(self, found: Found, windows: list[tuple[Window, int]], strict: bool = False) -> bool:
        """Return whether no rank sends what it could not have received yet.

        Args:
            found: the all-reduce.
            windows: those that are judged, each as if it began so many steps later.
            strict: whether a message must have ended before the one that it causes; else it must have begun, which
                holds even where the capture has neighbouring packets out of order.
        """
        shape = found.loops[0]
        starts = {(w.index, w.channel): self._entries(w, 1, shift) for w, shift in windows}
        for (index, channel), entries in starts.items():
            for distance in range(1, self.ranks):
                later = starts.get(((index + distance) % self.ranks, channel))
                for step in range(distance, self.per_loop) if later is not None else ():
                    if not shape.size(sent_chunk(index, step - distance, self.ranks), channel):
                        continue  # nobody waits for an empty chunk
                    cause, effect = entries[step - distance], later[step] if later is not None else None
                    if cause is None or effect is None or cause.order < 0 or effect.order < 0:
                        continue
                    if effect.order < (cause.last_order if strict else cause.order):
                        return False
        return True

    def _receives(self, found: Found) -> bool:
        """Return whether ranks whose incoming data were not captured show by other packets that they receive.

        The root of a broadcast only sends; it could look like a rank of an all-reduce. A rank of an all-reduce sends
        reduced data only after it received some, into a buffer that it announced.
        """
        for window in found.windows:
            place = self._place(window.flow)
            signs = self.ring.receiving.get(place, [])
            if (place - 1) % self.ranks in self.ring.flows or not signs:
                continue
            since = max((flow.last_seen for flow in self._row(place)), default=-1)
            entries = self._entries(window, 1)[self.ranks - 1 :]
            reduced = [entry.order for entry in entries if entry is not None and entry.order >= 0 and entry.size]
            if reduced and not any(_between(flow.orders, since, min(reduced)) for flow in signs):
                return False
        return True

    def _contested(self, found: Found) -> bool:
        """Return whether a later start would do as well, where nothing says that this one is right.

        Where one direction is absent, or the beginning, a broadcast before an all-reduce may pass for a part of it.
        """
        windows = found.windows
        if all(w.flow.after_all_reduce and _chained(w) for w in windows):
            return False
        shown = all(any(entry is not None for entry in self._entries(w, len(found.loops))) for w in windows)
        if len(self.ring.flows) == self.ranks and shown and any(map(_chained, windows)):
            return False
        if any(window.first < window.flow.contested for window in windows):
            return True
        for moved in self._alternatives(found):
            try:
                known, bounds = self._sizes(found.channels, moved)
                if len(known) < self.ranks * found.channels:
                    continue
                solve(self.ranks, found.channels, known, bounds)
            except (Contradiction, Undetermined):
                continue
            for window in windows:
                window.flow.contested = window.first + self.per_loop
            return True
        return False

    def _alternatives(self, found: Found) -> Iterator[list[tuple[Window, int]]]:
        """Yield other readings: some windows begin later, as if their first steps were of a broadcast before.

        A broadcast takes steps of the ranks from its root on, on the first channels.
        """
        for shift in range(1, self.per_loop):
            for root in range(self.ranks):
                for length in range(1, self.ranks + 1):
                    late = {(root + number) % self.ranks for number in range(length)}
                    for channels in range(1, found.channels + 1):
                        yield [(w, shift if w.index in late and w.channel < channels else 0) for w in found.windows]
                    if length == self.ranks:
                        break

    def _place(self, flow: Flow) -> int:
        return next(place for place, row in self.ring.flows.items() if any(flow is other for other in row))

    def _row(self, place: int) -> list[Flow]:
        return [flow for flow in self.ring.flows[place] if flow is not None]

    def _others(self, found: Found) -> object | None:
        """Return why a channel that does not take part speaks against the all-reduce, None if none does."""
        for channel in range(found.channels, self.ring.channels):
            if all(row[channel] is None for row in self.ring.flows.values()) and self._busy(channel, found):
                return _UNDETERMINED
        for row in self.ring.flows.values():
            for flow in row[found.channels :]:
                if flow is None or flow.table.last < _start(flow):
                    continue
                entry = flow.table.steps.get(_start(flow))
                if entry is None or entry.order < 0 or found.first_order <= entry.order <= found.last_order:
                    return _UNDETERMINED  # it takes part, or may do so
                if entry.order < found.first_order:
                    return _CONTRADICTION  # that one comes first
        return None

    def _busy(self, channel: int, found: Found) -> bool:
        """Return whether a channel without captured data shows by control writes that it is used at that time."""
        since = max((flow.last_seen for flow in self._flows()), default=-1)
        return any(
            _between(flows[channel].orders, since, found.last_order)
            for flows in self.ring.receiving.values()
            if channel < len(flows)
        )

    def _alone(self, found: Found, anchors: list[Window]) -> bool:
        """Return whether chunks of one size, after something else, can be read in this way only."""
        if len(self.ring.flows) < self.ranks:
            return self._even_run(found, anchors)
        if not self._causal(found, [(window, 0) for window in found.windows], strict=True):
            return False
        return not any(
            all(self._fits(window, found.loops[0], 0, shift) for window, shift in moved)
            and any(shift == 0 for _, shift in moved)
            and self._causal(found, moved, strict=True)
            for moved in self._alternatives(found)
        )

    def _even_run(self, found: Found, anchors: list[Window]) -> bool:
        """Return whether equally large steps from here on are a whole number of such all-reduces, for every rank.

        Another collective of the same size just before it would make the number odd.
        """
        size = found.sizes(found.windows[0])[0]
        runs = set()
        for window in anchors:
            length = 0
            while length < _PARITY_STEPS:
                entry = window.flow.table.steps.get(window.first + length)
                if entry is None or entry.size != size:
                    break
                length += 1
            runs.add(length)
        return len(runs) == 1 and runs.pop() % self.per_loop == 0

    def _consume(self, found: Found) -> None:
        for window in found.windows:
            flow = window.flow
            flow.consumed = window.first + len(found.loops) * self.per_loop
            flow.started = flow.after_all_reduce = True
            flow.chained = window.certain
            flow.last_seen = max(flow.last_seen, found.last_order)
        for signs in self.ring.receiving.values():
            for sign in signs:
                del sign.orders[: bisect_left(sign.orders, found.first_order)]

    def _order(self, flow: Flow) -> int:
        """Return where in the capture a flow's next step is; a lost one counts where the next that is there is."""
        steps = flow.table.steps
        for number in range(_start(flow), flow.table.last + 1):
            entry = steps.get(number)
            if entry is not None and entry.order >= 0:
                return entry.order
        return -1

    def _pass_over(self, broken: bool) -> bool:
        """Pass over the earliest step; return False when there is none."""
        flows = [flow for flow in self._flows() if flow.table.last >= flow.consumed]
        if not flows:
            return False
        flow = min(flows, key=self._order)
        number = _start(flow)
        entry = flow.table.steps.pop(number, None)
        if not flow.started and number > 0:
            flow.chained = False
        if broken:
            for other in self._flows():
                other.chained = False
        flow.previous_end = entry.end if entry is not None and not entry.bad else None
        if entry is not None:
            flow.last_seen = max(flow.last_seen, entry.last_order)
            self.passed += 1
        flow.consumed = number + 1
        flow.started = True
        flow.after_all_reduce = False
        return True


def _between(orders: list[int], low: int, high: int) -> bool:
    """Return whether one of the ascending `orders` is above `low` and not above `high`."""
    return bisect_right(orders, high) > bisect_right(orders, low)


class _Wait(Exception):
    pass


_WAIT, _UNDETERMINED, _CONTRADICTION = object(), object(), object()


def _start(flow: Flow) -> int:
    """Return the next step that no collective has taken: the first that was captured, at the beginning."""
    if flow.started or not flow.table.steps:
        return flow.consumed
    return min(flow.table.steps)


def _chained(window: Window) -> bool:
    """Return whether every step of the flow before the window is accounted for."""
    flow = window.flow
    return flow.chained and (flow.started or window.first == 0)


def _soft(flow: Flow) -> bool:
    """Return whether steps before the first that was captured may belong to the first collective."""
    return not flow.started and bool(flow.table.steps) and min(flow.table.steps) > 0
