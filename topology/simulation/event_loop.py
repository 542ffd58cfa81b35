"""A seeded discrete-event simulation: hosts around switches, frames over impaired links, virtual time, no threads."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from itertools import count
from typing import NamedTuple, Protocol

from topology.simulation.links import Link


class Place(NamedTuple):
    """A port of a switch, and the host or the trunk there."""

    switch: str
    """Name of the switch."""
    port: int
    """Its port."""


Tap = Callable[[Place, str, bytes, float], None]
"""Called as tap(place, ``in`` or ``out``, frame, time in seconds) for every frame at a switch."""
Forward = Callable[[int, bytes, float], list[tuple[int, bytes]]]
"""A switch: (ingress port, frame, time in seconds) -> [(egress port, frame)]."""


class Node(Protocol):
    """A host: pure, driven by frames and timers."""

    def on_frame(self, frame: bytes, now: float) -> None:
        """Take a frame that arrived."""
        ...

    def on_timer(self, now: float) -> None:
        """Do what is due at `now`."""
        ...

    def next_timer(self) -> float | None:
        """Return when `on_timer` is due next, None when nothing is."""
        ...

    def take_frames(self) -> list[bytes]:
        """Return (and forget) the frames to send."""
        ...


class Stalled(RuntimeError):
    """Nothing more will happen, or the time limit has passed, and the awaited condition does not hold."""


class Simulation:
    """Events in order of time; ties in order of creation, so that a seed gives one history."""

    def __init__(self, switches: Mapping[str, Forward], tap: Tap | None = None) -> None:
        """Build a simulation without hosts and trunks around `switches`, by name."""
        self.now = 0.0
        """Virtual time in seconds."""
        self.events = 0
        """Events so far."""
        self._switches = dict(switches)
        self._tap = tap
        self._nodes: dict[Place, Node] = {}
        self._uplinks: dict[Place, Link] = {}
        self._downlinks: dict[Place, Link] = {}
        self._trunks: dict[Place, tuple[Place, Link]] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._timers: dict[Place, float] = {}

    def attach(self, place: Place, node: Node, uplink: Link, downlink: Link) -> None:
        """Put `node` at `place`; `uplink` leads to the switch, `downlink` from it.

        A node that is attached where one is already takes its place; frames in flight reach the new one.
        """
        self._nodes[place] = node
        self._uplinks[place] = uplink
        self._downlinks[place] = downlink
        self._timers.pop(place, None)
        self.kick(place)

    def join(self, one: Place, other: Place, there: Link, back: Link) -> None:
        """Put a trunk between two switches; `there` leads from `one` to `other`."""
        self._trunks[one] = other, there
        self._trunks[other] = one, back

    def uplink(self, place: Place) -> Link:
        """Return the link from the host at `place` to the switch."""
        return self._uplinks[place]

    def downlink(self, place: Place) -> Link:
        """Return the link from the switch to the host at `place`."""
        return self._downlinks[place]

    def replace_downlink(self, place: Place, link: Link) -> None:
        """Use `link` from the switch to the host at `place` from now on; frames in flight still arrive."""
        self._downlinks[place] = link

    def kick(self, place: Place) -> None:
        """Send what the node at `place` has produced outside of events, and note its timer."""
        node, uplink = self._nodes[place], self._uplinks[place]
        for frame in node.take_frames():
            for when, data in uplink.transmit(frame, self.now):
                self._at(when, lambda data=data: self._at_switch(place, data))  # type: ignore[misc]
        due = node.next_timer()
        if due is not None and self._timers.get(place) != due:
            self._timers[place] = due
            self._at(due, lambda: self._timer(place, node, due))

    def inject(self, place: Place, frame: bytes, delay: float = 0.0) -> None:
        """Let a frame reach the switch at `place` in `delay` seconds, as if it had been on its way all the time."""
        self._at(self.now + delay, lambda: self._at_switch(place, frame))

    def deliver(self, place: Place, frame: bytes, delay: float = 0.0) -> None:
        """Let a frame reach the host at `place` in `delay` seconds, as if it had been on its way all the time."""
        self._at(self.now + delay, lambda: self._at_host(place, frame))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Let `action` happen in `delay` seconds."""
        self._at(self.now + delay, action)

    def run_until(self, condition: Callable[[], bool], limit: float) -> None:
        """Process events until `condition` holds.

        Args:
            condition: looked at after every event.
            limit: virtual seconds from now.

        Raises:
            Stalled: no events are left, or `limit` has passed, and the condition does not hold.
        """
        deadline = self.now + limit
        while not condition():
            if not self._queue:
                raise Stalled(f"at {self.now:.6f} s nothing is left to happen")
            if self._queue[0][0] > deadline:
                raise Stalled(f"the condition does not hold after {limit} virtual seconds")
            self._step()

    def drain(self, duration: float) -> None:
        """Process the events of the next `duration` virtual seconds: what is still in flight arrives."""
        end = self.now + duration
        while self._queue and self._queue[0][0] <= end:
            self._step()
        self.now = end

    def _step(self) -> None:
        self.now, _, action = heapq.heappop(self._queue)
        self.events += 1
        action()

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when, self.now), next(self._order), action))

    def _at_switch(self, place: Place, frame: bytes) -> None:
        if self._tap:
            self._tap(place, "in", frame, self.now)
        for port, data in self._switches[place.switch](place.port, frame, self.now):
            egress = Place(place.switch, port)
            if self._tap:
                self._tap(egress, "out", data, self.now)
            if egress in self._trunks:
                far, trunk = self._trunks[egress]
                for when, copy in trunk.transmit(data, self.now):
                    self._at(when, lambda far=far, copy=copy: self._at_switch(far, copy))  # type: ignore[misc]
            elif egress in self._downlinks:
                for when, copy in self._downlinks[egress].transmit(data, self.now):
                    self._at(when, lambda egress=egress, copy=copy: self._at_host(egress, copy))  # type: ignore[misc]

    def _at_host(self, place: Place, frame: bytes) -> None:
        self._nodes[place].on_frame(frame, self.now)
        self.kick(place)

    def _timer(self, place: Place, node: Node, due: float) -> None:
        if self._timers.get(place) != due or self._nodes[place] is not node:
            return
        del self._timers[place]
        node.on_timer(self.now)
        self.kick(place)
