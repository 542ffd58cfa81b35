"""A seeded discrete-event simulation of hosts, impaired links and switches: virtual time, no threads."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from itertools import count
from typing import NamedTuple, Protocol

from topology.simulation.links import Link


class SwitchPort(NamedTuple):
    """A port of a switch, to which a host or a trunk is attached."""

    switch: str
    """Name of the switch."""
    port: int
    """Port number."""


Tap = Callable[[SwitchPort, str, bytes, float], None]
"""Called as tap(port, ``in`` or ``out``, frame, virtual seconds) for every frame that enters or leaves a switch."""
Forward = Callable[[int, bytes, float], list[tuple[int, bytes]]]
"""A switch: (ingress port, frame, virtual seconds) -> [(egress port, frame)]."""


class Node(Protocol):
    """A host; pure, driven by frames and timers."""

    def on_frame(self, frame: bytes, now: float) -> None:
        """Process a frame that arrived."""
        ...

    def on_timer(self, now: float) -> None:
        """Process the timers that are due at `now`."""
        ...

    def next_timer(self) -> float | None:
        """Return when `on_timer` is due next, None if no timer is set."""
        ...

    def take_frames(self) -> list[bytes]:
        """Return the frames to send, and forget them."""
        ...


class ReceiveOnlyNode:
    """A host without timers that sends no frames."""

    def on_timer(self, now: float) -> None:
        """Do nothing."""

    def next_timer(self) -> float | None:
        """Return None."""
        return None

    def take_frames(self) -> list[bytes]:
        """Return nothing."""
        return []


class Stalled(RuntimeError):
    """No events are left, or the time limit has passed, before the awaited condition holds."""


class Simulation:
    """Runs events in order of time, equal times in order of creation, so that a seed gives one history."""

    def __init__(self, switches: Mapping[str, Forward], tap: Tap | None = None) -> None:
        """Start with `switches`, by name, and no hosts or trunks."""
        self.now = 0.0
        """Virtual time in seconds."""
        self.events = 0
        """Number of events processed."""
        self._switches = dict(switches)
        self._tap = tap
        self._nodes: dict[SwitchPort, Node] = {}
        self._uplinks: dict[SwitchPort, Link] = {}
        self._downlinks: dict[SwitchPort, Link] = {}
        self._trunks: dict[SwitchPort, tuple[SwitchPort, Link]] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._timers: dict[SwitchPort, float] = {}

    def attach(self, port: SwitchPort, node: Node, uplink: Link, downlink: Link) -> None:
        """Attach `node` to `port`; `uplink` leads to the switch, `downlink` from it.

        A node that was attached there is replaced; frames in flight reach the new one.
        """
        self._nodes[port] = node
        self._uplinks[port] = uplink
        self._downlinks[port] = downlink
        self._timers.pop(port, None)
        self.poll(port)

    def add_trunk(self, one: SwitchPort, other: SwitchPort, forward: Link, back: Link) -> None:
        """Connect two switches; `forward` leads from `one` to `other`, `back` the other way."""
        self._trunks[one] = other, forward
        self._trunks[other] = one, back

    def uplink(self, port: SwitchPort) -> Link:
        """Return the link from the host at `port` to its switch."""
        return self._uplinks[port]

    def downlink(self, port: SwitchPort) -> Link:
        """Return the link from the switch to the host at `port`."""
        return self._downlinks[port]

    def replace_downlink(self, port: SwitchPort, link: Link) -> None:
        """Use `link` from the switch to the host at `port` from now on; frames in flight still arrive."""
        self._downlinks[port] = link

    def poll(self, port: SwitchPort) -> None:
        """Send the frames of the node at `port` and schedule its next timer."""
        node, uplink = self._nodes[port], self._uplinks[port]
        for frame in node.take_frames():
            for when, data in uplink.transmit(frame, self.now):
                self._schedule(when, lambda data=data: self._arrive_at_switch(port, data))  # type: ignore[misc]
        due = node.next_timer()
        if due is not None and self._timers.get(port) != due:
            self._timers[port] = due
            self._schedule(due, lambda: self._run_timer(port, node, due))

    def inject(self, port: SwitchPort, frame: bytes, delay: float = 0.0) -> None:
        """Let a frame that was in flight all along reach the switch at `port` in `delay` seconds."""
        self._schedule(self.now + delay, lambda: self._arrive_at_switch(port, frame))

    def deliver(self, port: SwitchPort, frame: bytes, delay: float = 0.0) -> None:
        """Let a frame that was in flight all along reach the host at `port` in `delay` seconds."""
        self._schedule(self.now + delay, lambda: self._arrive_at_host(port, frame))

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        """Call `action` in `delay` virtual seconds."""
        self._schedule(self.now + delay, action)

    def run_until(self, condition: Callable[[], bool], limit: float) -> None:
        """Process events until `condition` holds.

        Args:
            condition: checked after every event.
            limit: virtual seconds from now.

        Raises:
            Stalled: no events are left, or `limit` has passed, before the condition holds.
        """
        deadline = self.now + limit
        while not condition():
            if not self._queue:
                raise Stalled(f"at {self.now:.6f} s no event is left")
            if self._queue[0][0] > deadline:
                raise Stalled(f"the condition does not hold after {limit} virtual seconds")
            self._run_next()

    def run_for(self, duration: float) -> None:
        """Process the events of the next `duration` virtual seconds."""
        end = self.now + duration
        while self._queue and self._queue[0][0] <= end:
            self._run_next()
        self.now = end

    def _run_next(self) -> None:
        self.now, _, action = heapq.heappop(self._queue)
        self.events += 1
        action()

    def _schedule(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when, self.now), next(self._order), action))

    def _arrive_at_switch(self, port: SwitchPort, frame: bytes) -> None:
        if self._tap:
            self._tap(port, "in", frame, self.now)
        for number, data in self._switches[port.switch](port.port, frame, self.now):
            egress = SwitchPort(port.switch, number)
            if self._tap:
                self._tap(egress, "out", data, self.now)
            if egress in self._trunks:
                far, trunk = self._trunks[egress]
                for when, copy in trunk.transmit(data, self.now):
                    self._schedule(when, lambda far=far, copy=copy: self._arrive_at_switch(far, copy))  # type: ignore[misc]
            elif egress in self._downlinks:
                for when, copy in self._downlinks[egress].transmit(data, self.now):
                    self._schedule(when, lambda egress=egress, copy=copy: self._arrive_at_host(egress, copy))  # type: ignore[misc]

    def _arrive_at_host(self, port: SwitchPort, frame: bytes) -> None:
        self._nodes[port].on_frame(frame, self.now)
        self.poll(port)

    def _run_timer(self, port: SwitchPort, node: Node, due: float) -> None:
        if self._timers.get(port) != due or self._nodes[port] is not node:
            return
        del self._timers[port]
        node.on_timer(self.now)
        self.poll(port)
