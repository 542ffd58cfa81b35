"""All-reduces found in the steps of a ring's flows.

All flows of a ring are read side by side. Where the next steps of all of them have the sizes of one all-reduce, in the
order that the ring's arithmetic demands of each rank, they are one; else the earliest step belongs to another
collective and is passed over. Steps whose sizes are lost take them from the other ranks and channels, or from later
steps that carry the same chunk. What fits more than one reading is no proof and is not used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from rocev2.evidence import judge
from rocev2.flow import Flow
from rocev2.ring import Ring
from rocev2.shape import Contradiction, LoopShape, Undetermined, solve
from rocev2.windows import Found, Window, begins_before, fits, sizes, start_of


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
        while final or self._enough():
            try:
                found = self._next(final)
            except _Wait:
                return
            except (Contradiction, Undetermined) as reason:
                if not self._pass_over(broken=isinstance(reason, Undetermined)):
                    return
            else:
                yield found

    def frontier(self) -> int | None:
        """Return the position in the capture before which every step is accounted for, None if all are."""
        orders = [self._order(flow) for flow in self._flows() if flow.table.last >= flow.consumed]
        return min(orders, default=None)

    def _flows(self) -> list[Flow]:
        return [flow for row in self.ring.flows.values() for flow in row if flow is not None]

    def _enough(self) -> bool:
        return all(flow.table.newest >= start_of(flow) + 2 * self.per_loop for flow in self._flows())

    def _next(self, final: bool) -> Found:
        attempts = 0
        for channels in range(self.ring.channels, 0, -1):
            if not self._active(channels):
                continue
            attempts += 1
            found = []
            for shift in range(1 if self.ring.indexed else self.ranks):  # ring index of the first host
                try:
                    found.append(self._attempt(channels, shift, final))
                except Contradiction:
                    continue
            if len(found) > 1:
                raise Undetermined
            if found:
                self._consume(found[0])
                return found[0]
        if not attempts:
            raise Undetermined  # steps that are lost leave the flows apart in time
        raise Contradiction

    def _active(self, channels: int) -> bool:
        """Return whether each of the first channels has steps to come that can be of one collective.

        They need not overlap in time, but a channel that goes on with its next collective before another one begins
        is not in the same as that. (A collective that uses a channel uses all channels before it.)
        """
        spans, nexts = [], []
        for channel in range(channels):
            flows = [row[channel] for row in self.ring.flows.values()]
            seen = [order for flow in flows if flow is not None for order in self._orders(flow, 0)]
            after = [order for flow in flows if flow is not None for order in self._orders(flow, self.per_loop)]
            if not seen:
                return False
            spans.append(min(seen))
            nexts.append(min(after, default=None))
        return all(following is None or max(spans) < following for following in nexts)

    def _orders(self, flow: Flow, skip: int) -> list[int]:
        """Return where in the capture the steps of one loop begin, `skip` steps from the next one on."""
        first = start_of(flow) + skip
        steps = [flow.table.steps.get(number) for number in range(first, first + self.per_loop)]
        return [step.order for step in steps if step is not None and step.order >= 0]

    def _attempt(self, channels: int, shift: int, final: bool) -> Found:
        windows = [
            Window(flow, (place + shift) % self.ranks, channel, start_of(flow))
            for place, row in self.ring.flows.items()
            for channel, flow in enumerate(row[:channels])
            if flow is not None
        ]
        loops: list[LoopShape] = []
        try:
            while not loops or self._continues(windows, len(loops) * self.per_loop, final):
                shape = self._solve(channels, windows, len(loops) * self.per_loop)
                loops.append(shape)
                if not shape.full or sum(loop.rest for loop in loops) in self._totals:
                    break
        except Contradiction:
            if not loops:
                raise
        found = Found(self.ring, channels, loops, windows)
        steps = [step for w in windows for step in found.entries(w, loops=len(loops)) if step is not None]
        found.first_order = min((step.order for step in steps if step.order >= 0), default=0)
        found.last_order = max((step.last_order for step in steps), default=0)
        judge(found)
        return found

    def _continues(self, windows: list[Window], done: int, final: bool) -> bool:
        """Return whether any step of a further loop is there."""
        if not final and any(w.flow.table.newest < w.first + done + 2 * self.per_loop for w in windows):
            raise _Wait
        return any(w.first + done + step in w.flow.table.steps for w in windows for step in range(self.per_loop))

    def _solve(self, channels: int, windows: list[Window], done: int) -> LoopShape:
        """Return the loop that steps `done` and on of the windows are; shift windows that begin before the capture."""
        firm = [window for window in windows if not begins_before(window.flow)]
        shape = solve(
            self.ranks, channels, *sizes(self.ranks, channels, [(window, done) for window in firm or windows])
        )
        if firm and done == 0:
            for window in windows:
                if begins_before(window.flow):
                    self._align(window, shape)
        if not all(fits(window, shape, self.ranks, done) for window in windows):
            raise Contradiction
        return shape

    def _align(self, window: Window, shape: LoopShape) -> None:
        """Let a window begin before the first step that was captured, where that is what fits."""
        least = min(window.flow.table.steps)
        for back in range(min(self.per_loop, least) + 1):
            window.first = least - back
            if fits(window, shape, self.ranks, 0):
                return
        raise Contradiction

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
        for number in range(start_of(flow), flow.table.last + 1):
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
        # What is passed over may be a part of an all-reduce of which the rest is lost, unless all flows are known from
        # their first step on and all sizes in question are known.
        lost = any(start_of(other) not in other.table.steps for other in flows)  # nobody knows when that was sent
        if broken or lost or any(begins_before(other) or not other.chained for other in self._flows()):
            for other in self._flows():
                other.chained = False
        number = start_of(flow)
        entry = flow.table.steps.pop(number, None)
        flow.previous_end = entry.end if entry is not None and not entry.bad else None
        if entry is not None:
            flow.last_seen = max(flow.last_seen, entry.last_order)
            self.passed += 1
        flow.consumed = number + 1
        flow.started = True
        flow.after_all_reduce = False
        return True


class _Wait(Exception):
    """More must come before anything can be told."""
