"""A seeded discrete-event simulation: hosts around one switch, frames over impaired links, virtual time, no threads."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol

from topology.links import Link

Tap = Callable[[int, str, bytes, float], None]
"""Called as tap(switch port, ``in`` or ``out``, frame, time in seconds) for every frame at the switch."""
Forward = Callable[[int, bytes, float], list[tuple[int, bytes]]]
"""The switch: (ingress port, frame, time in seconds) -> [(egress port, frame)]."""


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

    def __init__(self, forward: Forward, tap: Tap | None = None) -> None:
        """Build an empty simulation around the switch `forward`."""
        self.now = 0.0
        """Virtual time in seconds."""
        self.events = 0
        """Events so far."""
        self._forward = forward
        self._tap = tap
        self._nodes: dict[int, Node] = {}
        self._uplinks: dict[int, Link] = {}
        self._downlinks: dict[int, Link] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._timers: dict[int, float] = {}

    def attach(self, port: int, node: Node, uplink: Link, downlink: Link) -> None:
        """Put `node` on switch port `port`; `uplink` leads to the switch, `downlink` from it.

        A node that is attached where one is already takes its place; frames in flight reach the new one.
        """
        self._nodes[port] = node
        self._uplinks[port] = uplink
        self._downlinks[port] = downlink
        self._timers.pop(port, None)
        self.kick(port)

    def downlink(self, port: int) -> Link:
        """Return the link from the switch to `port`."""
        return self._downlinks[port]

    def replace_downlink(self, port: int, link: Link) -> None:
        """Use `link` from the switch to `port` from now on; frames in flight still arrive."""
        self._downlinks[port] = link

    def kick(self, port: int) -> None:
        """Send what the node on `port` has produced outside of events, and note its timer."""
        node, uplink = self._nodes[port], self._uplinks[port]
        for frame in node.take_frames():
            for when, data in uplink.transmit(frame, self.now):
                self._at(when, lambda data=data: self._at_switch(port, data))  # type: ignore[misc]
        due = node.next_timer()
        if due is not None and self._timers.get(port) != due:
            self._timers[port] = due
            self._at(due, lambda: self._timer(port, node, due))

    def inject(self, port: int, frame: bytes, delay: float = 0.0) -> None:
        """Let a frame reach the switch at `port` in `delay` seconds, as if it had been on its way all the time."""
        self._at(self.now + delay, lambda: self._at_switch(port, frame))

    def deliver(self, port: int, frame: bytes, delay: float = 0.0) -> None:
        """Let a frame reach the host on `port` in `delay` seconds, as if it had been on its way all the time."""
        self._at(self.now + delay, lambda: self._at_host(port, frame))

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

    def _at_switch(self, port: int, frame: bytes) -> None:
        if self._tap:
            self._tap(port, "in", frame, self.now)
        for egress, data in self._forward(port, frame, self.now):
            if self._tap:
                self._tap(egress, "out", data, self.now)
            link = self._downlinks.get(egress)
            if link is None:
                continue
            for when, copy in link.transmit(data, self.now):
                self._at(when, lambda egress=egress, copy=copy: self._at_host(egress, copy))  # type: ignore[misc]

    def _at_host(self, port: int, frame: bytes) -> None:
        self._nodes[port].on_frame(frame, self.now)
        self.kick(port)

    def _timer(self, port: int, node: Node, due: float) -> None:
        if self._timers.get(port) != due or self._nodes[port] is not node:
            return
        del self._timers[port]
        node.on_timer(self.now)
        self.kick(port)
