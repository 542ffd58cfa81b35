"""Packets to streams: which direction of which connection a segment belongs to, and at which position."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gloo.stream import Stream
from packets.batch import PacketBatch
from packets.gather import gather
from packets.headers import Checksum, Headers, Kind

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
_KEY = ("source_high", "source_low", "destination_high", "destination_low", "source_port", "destination_port")
_MOST_STREAMS = 1 << 16


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """An address and a port."""

    version: int
    """4 or 6."""
    address: int
    """As a number."""
    port: int
    """TCP port."""

    def __str__(self) -> str:
        """Return it as it is usually written."""
        return f"{self.host}:{self.port}" if self.version == 4 else f"[{self.host}]:{self.port}"

    @property
    def host(self) -> str:
        """Return the address as it is usually written."""
        return str(IPv4Address(self.address) if self.version == 4 else IPv6Address(self.address))


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction between two endpoints; connections that follow each other share it."""

    source: Endpoint
    """Who sends."""
    destination: Endpoint
    """Who receives."""

    @property
    def reverse(self) -> Direction:
        """Return the other direction."""
        return Direction(self.destination, self.source)


@dataclass(slots=True)
class Flow:
    """One stream and what its SYN told."""

    direction: Direction
    """Who sends to whom."""
    stream: Stream
    """Its bytes."""
    initiator: bool | None
    """Whether the sender made the connection; None where its SYN is in no capture."""
    peer_isn: int | None = None
    """Initial sequence number of the other direction, which the acknowledgment of a SYN tells."""
    order: int = 0
    """Number of the flow in order of appearance."""
    touched: bool = True
    """Whether bytes came since somebody looked."""
    ignored: bool = False
    """Whether it is of no use: what comes is not kept."""


class Intake:
    """The streams of some captures of one network.

    Captures may be given in pieces and in turns. A connection that follows another one between the same ports begins
    with a SYN of another number; what comes in a capture before its first SYN belongs to the first connection known.
    """

    def __init__(self, *, unfinished_checksums: bool = False) -> None:
        """Take segments in; with `unfinished_checksums` also those whose checksum the sender's card had to fill in."""
        self.flows: list[Flow] = []
        """All of them, in order of appearance."""
        self.discarded: Counter[str] = Counter()
        """TCP segments with payload that were not used, by cause."""
        self._unfinished = unfinished_checksums
        self._known: dict[Direction, list[Flow]] = {}
        self._current: dict[tuple[int, Direction], Flow] = {}
        self._count = 0

    def expect(self, headers: Headers) -> None:
        """Learn where connections begin, from their SYNs in any capture, before its packets are fed.

        Without it what comes in one capture before the SYN comes in another has no position.
        """
        for row in np.flatnonzero((headers["kind"] == Kind.TCP) & (headers["flags"] & SYN != 0)).tolist():
            header = headers[row]
            self._begin(_direction(header), header)

    def ignore(self, flow: Flow) -> None:
        """Drop a stream, with what comes of it from now on."""
        self.flows = [known for known in self.flows if known is not flow]
        flow.ignored = True
        flow.stream.release(1 << 62)

    def feed(self, source: int, batch: PacketBatch, headers: Headers) -> None:
        """Take in packets of the capture number `source`, whose `headers` are decoded."""
        rows = np.flatnonzero(headers["kind"] == Kind.TCP)
        flags = headers["flags"][rows]
        rows = rows[(headers["wire_payload_length"][rows] > 0) | (flags & (SYN | FIN | RST) != 0)]
        rows = rows[self._usable(headers, rows)]
        if not len(rows):
            return
        keys = np.empty((len(rows), 6), np.uint64)
        for column, name in enumerate(_KEY):
            keys[:, column] = headers[name][rows]
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        inverse = inverse.reshape(-1)
        for number in np.argsort(first).tolist():  # in order of appearance
            mine = rows[inverse == number]
            self._feed_direction(source, _direction(headers[mine[0]]), batch, headers, mine)

    def _usable(self, headers: Headers, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        checksum, payload = headers["checksum"][rows], headers["wire_payload_length"][rows] > 0
        bad = (checksum == Checksum.BAD) | (headers["ip_checksum"][rows] == Checksum.BAD)
        partial = (checksum == Checksum.PARTIAL) & (not self._unfinished) & ~bad
        short = (headers["short"][rows] != 0) & ~bad & ~partial
        for cause, which in (("bad_tcp_checksum", bad), ("unfinished_checksum", partial), ("cut", short)):
            count = int((which & payload).sum())
            if count:
                self.discarded[cause] += count
        usable: NDArray[np.bool_] = ~(bad | (partial & payload) | short)
        return usable

    def _feed_direction(
        self, source: int, direction: Direction, batch: PacketBatch, headers: Headers, rows: NDArray[np.int64]
    ) -> None:
        flags = headers["flags"][rows]
        begin = 0
        for at in [*np.flatnonzero(flags & SYN).tolist(), len(rows)]:
            if at > begin:
                self._feed_flow(source, direction, batch, headers, rows[begin:at])
            if at < len(rows):
                self._syn(source, direction, headers[rows[at]])
            begin = at + 1

    def _syn(self, source: int, direction: Direction, header: Headers) -> None:
        flow = self._begin(direction, header)
        if flow is None:
            return
        self._current[source, direction] = flow
        if flow.peer_isn is not None:
            other = self._flow_at(direction.reverse, flow.peer_isn, initiator=True)
            if other is not None:
                self._current.setdefault((source, direction.reverse), other)

    def _begin(self, direction: Direction, header: Headers) -> Flow | None:
        """Return the flow that a SYN begins."""
        answers = bool(header["flags"] & ACK)
        flow = self._flow_at(direction, int(header["seq"]), initiator=not answers)
        if flow is not None and answers:
            flow.peer_isn = (int(header["ack"]) - 1) % (1 << 32)
        return flow

    def _flow_at(self, direction: Direction, isn: int, *, initiator: bool) -> Flow | None:
        """Return the flow that begins at a sequence number, which its SYN or its peer's acknowledgment tells."""
        flow = next((known for known in self._known.get(direction, ()) if known.stream.isn == isn), None)
        flow = flow or self._new(direction, isn)
        if flow is not None:
            flow.initiator = initiator
        return flow

    def _new(self, direction: Direction, isn: int | None) -> Flow | None:
        if self._count >= _MOST_STREAMS:
            self.discarded["too_many_connections"] += 1
            return None
        flow = Flow(direction, Stream(isn), None, order=self._count)
        self._count += 1
        self.flows.append(flow)
        self._known.setdefault(direction, []).append(flow)
        return flow

    def _feed_flow(
        self, source: int, direction: Direction, batch: PacketBatch, headers: Headers, rows: NDArray[np.int64]
    ) -> None:
        flow = self._current.get((source, direction))
        if flow is None:
            known = self._known.get(direction)
            flow = known[0] if known else self._new(direction, None)
            if flow is None:
                return
            self._current[source, direction] = flow
        if flow.ignored:
            return
        stream = flow.stream
        positions = stream.positions(headers["seq"][rows].astype(np.int64))
        lengths = headers["payload_length"][rows].astype(np.int64)
        flags = headers["flags"][rows]
        for at in np.flatnonzero(flags & FIN).tolist():
            stream.finish(int(positions[at] + lengths[at]))
        # What a reset carries is not part of the stream (RFC 9293, section 3.5.3).
        keep = (lengths > 0) & (flags & RST == 0) & (positions >= 0)
        positions, lengths, rows = positions[keep], lengths[keep], rows[keep]
        if not len(rows):
            return
        breaks = np.flatnonzero(positions[1:] != positions[:-1] + lengths[:-1]) + 1
        bounds = [0, *breaks.tolist(), len(rows)]
        if flow.initiator and int(positions[0]) == 0:
            # Before it has the initiator's number the listener sends nothing (gloo/transport/tcp/listener.cc).
            other = self._flow_at(direction.reverse, (int(headers["ack"][rows[0]]) - 1) % (1 << 32), initiator=False)
            if other is not None:
                self._current.setdefault((source, direction.reverse), other)
        payloads = headers["payload"][rows].astype(np.int64)
        for low, high in pairwise(bounds):
            data = np.empty(int(lengths[low:high].sum()), np.uint8)
            gather(batch.data, payloads[low:high], lengths[low:high], data)
            stream.place(int(positions[low]), data)
        flow.touched = True


def _direction(header: Headers) -> Direction:
    """Return the direction that a packet goes."""
    ends = [
        Endpoint(
            int(header["ip_version"]),
            int(header[f"{end}_high"]) << 64 | int(header[f"{end}_low"]),
            int(header[f"{end}_port"]),
        )
        for end in ("source", "destination")
    ]
    return Direction(ends[0], ends[1])
