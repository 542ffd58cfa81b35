"""A seeded discrete-event simulation of two endpoints and the link between them."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from nccl_emu.tcp import Segment, TcpEndpoint, TcpFlags, TcpState
from packets.frame import parse_frame
from packets.template import FrameTemplate, PacketError


@dataclass(frozen=True)
class LinkFaults:
    """Probabilities per frame, and the range of the one-way delay in seconds (unequal delays reorder)."""

    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    delay: tuple[float, float] = (0.005, 0.005)


@dataclass
class Side:
    """One endpoint with its application: what it will write, and what it has read."""

    endpoint: TcpEndpoint
    writes: list[tuple[bytes, int]] = field(default_factory=list)
    read_limit: int | None = None
    read_pause: float = 0.0
    received: bytearray = field(default_factory=bytearray)
    sent: list[tuple[float, Segment]] = field(default_factory=list)
    closed: bool = False
    next_read: float = 0.0


_CONNECTING = (TcpState.LISTEN, TcpState.SYN_SENT)


class Simulation:
    """Runs two sides over a link that loses, duplicates, delays, reorders and corrupts frames."""

    def __init__(self, sides: tuple[Side, Side], faults: LinkFaults, seed: int) -> None:
        self.sides = sides
        self.faults = faults
        self.now = 0.0
        self.rng = random.Random(seed)
        self.trace = hashlib.sha256()
        self.damaged = 0
        self.drop: Callable[[int, Segment, int], bool] | None = None
        self.heal_at: float | None = None
        self._events: list[tuple[float, int, int, bytes]] = []
        self._order = 0
        self._idents = [0, 0]
        macs, ips = ("02:00:00:00:00:01", "02:00:00:00:00:02"), ("10.0.0.1", "10.0.0.2")
        self._templates = [FrameTemplate(macs[i], macs[1 - i], ips[i], ips[1 - i]) for i in (0, 1)]

    def run(self, until: float = 100_000.0, stop: Callable[[], bool] | None = None) -> None:
        """Run until both ends are closed (or `stop` says so); a simulation past `until` has failed."""
        while not (stop() if stop is not None else self.finished()):
            self._pump()
            if stop is not None and stop():
                return
            times = [side.endpoint.next_timer() for side in self.sides]
            times += [side.next_read for side in self.sides if side.endpoint.readable]
            times += [self._events[0][0]] if self._events else []
            upcoming = [time for time in times if time is not None]
            if not upcoming:
                if self.finished():
                    return
                raise AssertionError(f"deadlock at {self.now}: {[s.endpoint.state for s in self.sides]}")
            self.now = max(self.now, min(upcoming))
            assert self.now <= until, f"not finished at {until}: {[s.endpoint.state for s in self.sides]}"
            while self._events and self._events[0][0] <= self.now:
                _, _, target, frame = heapq.heappop(self._events)
                self._deliver(target, frame)
            for side in self.sides:
                timer = side.endpoint.next_timer()
                if timer is not None and timer <= self.now:
                    side.endpoint.on_timer(self.now)

    def finished(self) -> bool:
        ends = [side.endpoint for side in self.sides]
        return all(end.state is TcpState.CLOSED and end.readable == 0 for end in ends)

    def _pump(self) -> None:
        for index, side in enumerate(self.sides):
            endpoint = side.endpoint
            if endpoint.readable and side.next_read <= self.now:
                side.received += endpoint.read(side.read_limit)
                side.next_read = self.now + side.read_pause
            while side.writes and endpoint.writable:
                endpoint.write(*side.writes.pop(0))
            if not side.writes and not side.closed and endpoint.state not in _CONNECTING:
                endpoint.close(self.now)
                side.closed = True
            for segment in endpoint.take_output(self.now):
                self._send(index, segment)

    def _send(self, source: int, segment: Segment) -> None:
        side = self.sides[source]
        side.sent.append((self.now, segment))
        self._idents[source] = (self._idents[source] + 1) & 0xFFFF
        frame = self._templates[source].build(segment, self._idents[source])
        self.trace.update(repr(self.now).encode() + frame)
        if self.drop is not None and self.drop(source, segment, len(side.sent) - 1):
            return
        healed = self.heal_at is not None and self.now >= self.heal_at
        faults = LinkFaults() if healed else self.faults
        copies = 2 if self.rng.random() < faults.duplicate else 1
        for _ in range(copies):
            if self.rng.random() < faults.loss:
                continue
            bits = frame
            if self.rng.random() < faults.corrupt:
                # One bit of what the checksums cover (from the IPv4 header on): they find every such error.
                at = self.rng.randrange(14 * 8, len(frame) * 8)
                changed = bytearray(frame)
                changed[at >> 3] ^= 1 << (at & 7)
                bits = bytes(changed)
            self._order += 1
            arrival = self.now + self.rng.uniform(*faults.delay)
            heapq.heappush(self._events, (arrival, self._order, 1 - source, bits))

    def _deliver(self, target: int, frame: bytes) -> None:
        try:
            parsed = parse_frame(frame)
        except PacketError:
            parsed = None
        if parsed is None or not parsed.checksums_ok:
            self.damaged += 1
            return
        self.sides[target].endpoint.on_segment(parsed.segment, self.now)


def assert_tags(side: Side, written: list[tuple[bytes, int]]) -> None:
    """Assert for every segment that `side` ever sent: bytes, DSCP and flags are what was written, and how.

    Positions are unwrapped from sequence numbers here, independently of the endpoint's code.
    """
    stream = b"".join(data for data, _ in written)
    tags = b"".join(bytes([dscp]) * len(data) for data, dscp in written)
    isn, config = side.endpoint.isn, side.endpoint.config
    assert len(stream) < 1 << 31
    for _, segment in side.sent:
        flags = segment.flags
        if TcpFlags.RST in flags:
            assert (segment.dscp, segment.payload) == (0, b"")
            continue
        position = (segment.seq - isn) % (1 << 32)
        if TcpFlags.SYN in flags:
            assert (position, segment.payload) == (0, b"")
            assert segment.dscp == (0 if TcpFlags.ACK in flags else config.syn_dscp)
            continue
        assert TcpFlags.ACK in flags
        if not segment.payload:
            assert segment.dscp == 0
            if TcpFlags.FIN in flags:
                assert position == len(stream) + 1
            continue
        assert TcpFlags.FIN not in flags
        assert len(segment.payload) <= side.endpoint.send_mss <= config.mss
        begin, end = position - 1, position - 1 + len(segment.payload)
        assert segment.payload == stream[begin:end]
        assert set(tags[begin:end]) == {segment.dscp}
