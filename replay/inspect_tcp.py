"""What a capture shows of TCP over IPv4: each direction of each connection, gaps and repetitions, frames of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from checkmate_common.stream.frame import FrameHeader
from jobspec.model import Job
from packets.segment import FIN, RST, SYN
from replay.inspect_spans import Spans
from replay.scan import TAIL, headers_in
from replay.segments import Seen, dotted

MAX_CONNECTIONS = 10_000
"""Directions of connections that are listed; packets of further ones are only counted."""
_MODULUS = 1 << 32


@dataclass
class FrameTally:
    """Frame headers of our format (magic and CRC right) in one direction of a connection."""

    count: int = 0
    """Frames, repeated ones once."""
    steps: tuple[int, int] | None = None
    """Lowest and highest step."""
    members: set[tuple[int, int, int, int]] = field(default_factory=set)
    """Job, group, channel and rank, by number."""
    phases: Counter[str] = field(default_factory=Counter)
    """Frames by phase and hop, e.g. ``all_gather 0``."""
    _tail: bytes = b""
    _next: int = -1
    _last: int = -1

    def scan(self, position: int, payload: bytes) -> None:
        """Take a segment at stream `position`; a header that began in the segment before it is found too."""
        if position == self._next:
            position, payload = position - len(self._tail), self._tail + payload
        self._next = position + len(payload)
        for at, header in headers_in(payload):
            if position + at > self._last:  # not one that is repeated
                self._take(header, position + at)
        self._tail = payload[-TAIL:]

    def _take(self, header: FrameHeader, position: int) -> None:
        self.count += 1
        self._last = position
        low, high = self.steps or (header.step, header.step)
        self.steps = min(low, header.step), max(high, header.step)
        self.members.add((header.job, header.group, header.channel, header.rank))
        self.phases[f"{header.phase.name.lower()} {header.hop}"] += 1


@dataclass
class TcpDirection:
    """One direction of one TCP connection."""

    source: str
    """Address and port."""
    destination: str
    """Address and port."""
    role: str | None = None
    """What it is in the job, None where no job was given or it is none of its flows."""
    packets: int = 0
    """Segments."""
    payload_bytes: int = 0
    """Payload on the wire, repeated bytes included."""
    syn: int = 0
    """Segments with SYN."""
    fin: int = 0
    """Segments with FIN."""
    rst: int = 0
    """Segments with RST."""
    isn: int | None = None
    """Sequence number of the SYN, None where there was none."""
    frames: FrameTally = field(default_factory=FrameTally)
    """Frames of our format."""
    _spans: Spans = field(default_factory=Spans)
    _origin: int | None = None

    def add(self, seen: Seen) -> None:
        """Take a segment."""
        length = seen.wire_payload
        self.packets += 1
        self.payload_bytes += length
        self.syn += bool(seen.flags & SYN)
        self.fin += bool(seen.flags & FIN)
        self.rst += bool(seen.flags & RST)
        start = (seen.seq + bool(seen.flags & SYN)) % _MODULUS
        if seen.flags & SYN:
            self.isn = seen.seq
        if self._origin is None and (length or seen.flags & SYN):
            self._origin = start
        if not length or self._origin is None:
            return
        # The nearest position to the end of what was seen: sequence numbers wrap.
        near = self._spans.stop or 0
        position = near + (start - self._origin - near + _MODULUS // 2) % _MODULUS - _MODULUS // 2
        self._spans.add(position, position + length)
        self.frames.scan(position, seen.payload)

    @property
    def missing_bytes(self) -> int:
        """Bytes between the first and the last that no packet carried."""
        return self._spans.missing + self._before

    @property
    def repeated_bytes(self) -> int:
        """Bytes that came more than once."""
        return self._spans.repeated

    @property
    def _before(self) -> int:
        # From the SYN on everything belongs to the stream.
        return max(0, self._spans.first or 0) if self.isn is not None else 0

    def gaps(self) -> list[tuple[int, int]]:
        """Return the missing ranges, half open, in bytes from the first of the stream (or of the capture)."""
        before = [(0, self._before)] if self._before else []
        return before + self._spans.gaps()

    def as_dict(self) -> dict[str, Any]:
        """Return it for programs."""
        frames = self.frames
        return {
            "source": self.source,
            "destination": self.destination,
            "role": self.role,
            "packets": self.packets,
            "payload_bytes": self.payload_bytes,
            "syn": self.syn,
            "fin": self.fin,
            "rst": self.rst,
            "isn": self.isn,
            "missing_bytes": self.missing_bytes,
            "gaps": [list(gap) for gap in self.gaps()],
            "repeated_bytes": self.repeated_bytes,
            "frames": frames.count,
            "steps": list(frames.steps) if frames.steps else None,
            "members": [
                dict(zip(("job", "group", "channel", "rank"), member, strict=True)) for member in sorted(frames.members)
            ],
            "phases": dict(sorted(frames.phases.items())),
        }


class TcpTraffic:
    """All of it."""

    def __init__(self, job: Job | None = None) -> None:
        """Begin with nothing; `job` gives its flows their names."""
        self.directions: list[TcpDirection] = []
        """In the order of their first packets; a port that is used again begins a new one."""
        self.unlisted = 0
        """Packets of connections beyond `MAX_CONNECTIONS`."""
        self._current: dict[bytes, TcpDirection] = {}
        self._roles = dict(_roles(job)) if job is not None else {}

    def add(self, seen: Seen) -> None:
        """Take a segment."""
        direction = self._current.get(seen.key)
        if direction is None or (seen.flags & SYN and direction.isn not in (None, seen.seq)):
            if len(self.directions) >= MAX_CONNECTIONS:
                self.unlisted += 1
                return
            direction = self._begin(seen.key)
        direction.add(seen)

    def _begin(self, key: bytes) -> TcpDirection:
        source, source_port, destination, destination_port = dotted(key)
        role = self._roles.get((source, destination, destination_port))
        direction = TcpDirection(f"{source}:{source_port}", f"{destination}:{destination_port}", role)
        self._current[key] = direction
        self.directions.append(direction)
        return direction


def _roles(job: Job) -> Iterator[tuple[tuple[str, str, int], str]]:
    """Yield (source, destination, destination port) and what flows there."""
    for flow in job.flows:
        name = f"flow {flow.id}: {flow.group.name} {flow.source.name}->{flow.target.name} channel {flow.channel}"
        yield (str(flow.source.ip), str(flow.target.ip), flow.tcp_port), name
        for shadow in flow.shadows:
            yield (
                (str(flow.source.ip), str(shadow.ip), shadow.base_port + flow.id),
                f"replica to {shadow.name} of {name}",
            )
