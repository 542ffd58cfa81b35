"""One capture as a source of segments, and several of them in the order in which the run made progress.

Captures of several ports are read side by side, always from the one that is furthest behind in (epoch, step), so that
a window of few steps suffices, however the clocks of the machines that captured differ. Packet times only break ties.

Segments are handed over as runs; one by one goes what is rare (a SYN, damage, a position far from the last one), and
everything if the switch program has to see each packet.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capture.errors import CaptureError
from capture.reader import CaptureReader
from packets.batch import PacketBatch
from packets.decode import decode
from packets.headers import Checksum, Headers, Kind
from packets.segment import RST, SYN
from replay.collector import NEAR, Run, StreamPosition
from replay.plan import Binding
from replay.segments import Seen, look_at

_UNUSABLE = (int(Kind.TRUNCATED), int(Kind.MALFORMED), int(Kind.FRAGMENT))
_DAMAGED = ("ipv4/tcp", "ipv4/fragment", "ipv4 (malformed)", "short frame")
_BAD, _PARTIAL = int(Checksum.BAD), int(Checksum.PARTIAL)
_MODULUS = 1 << 32
_AT_A_TIME = 512
_ODD_AT_A_TIME = 64

Progress = tuple[int, int]
"""Epoch and step."""


class Item(NamedTuple):
    """Packets, what they are, and how far the run was: a run of segments, or one packet."""

    progress: Progress
    """Epoch and step."""
    time_ns: int
    """Of the first packet, nanoseconds since the epoch."""
    run: Run | None = None
    """Segments of known streams; what follows is of a single packet then."""
    seen: Seen | None = None
    """The packet."""
    stream: StreamPosition | None = None
    """The stream that it belongs to, None for other traffic."""
    position: int = 0
    """Stream position of its first payload byte."""
    payload: bytes = b""
    """TCP payload, empty if it is of no use."""


@dataclass
class _Incarnations:
    """The streams of one connection in one file, in order, told apart by their SYN."""

    streams: list[StreamPosition]
    isns: list[int | None]
    current: int = 0

    def at_syn(self, seq: int) -> None:
        if seq in self.isns:
            self.current = self.isns.index(seq)

    @property
    def stream(self) -> StreamPosition:
        return self.streams[self.current]


class _Keys:
    """Which connection each packet belongs to, by its addresses and ports."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Know the connections with these keys (`replay.segments.Seen.key`), at least one."""
        pairs = np.frombuffer(b"".join(keys), ">u4").astype(np.uint64).reshape(-1, 3)
        self._addresses, self._ports = pairs[:, 0] << np.uint64(32) | pairs[:, 1], pairs[:, 2]
        mixed = _mixed(self._addresses, self._ports)
        self._order = np.argsort(mixed)
        self._mixed = mixed[self._order]

    def find(self, rows: Headers, tcp: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the index of each packet's connection, -1 for other traffic; `tcp` are those over IPv4 and TCP."""
        addresses = rows["source_low"] << np.uint64(32) | rows["destination_low"]
        ports = rows["source_port"].astype(np.uint64) << np.uint64(16) | rows["destination_port"]
        places = np.minimum(np.searchsorted(self._mixed, _mixed(addresses, ports)), len(self._mixed) - 1)
        found = self._order[places]
        same = (self._addresses[found] == addresses) & (self._ports[found] == ports) & tcp
        return np.where(same, found, -1)


def _mixed(addresses: NDArray[np.uint64], ports: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # One to one in the ports for given addresses, and the other way round: two keys that meet differ in both.
    return addresses * np.uint64(0x9E3779B97F4A7C15) + ports * np.uint64(0xC2B2AE3D27D4EB4F)


class Source:
    """One capture."""

    def __init__(self, name: str, reader: CaptureReader, bindings: Sequence[Binding], *, singly: bool = False) -> None:
        """Read a capture whose streams are `bindings` in the order in which they begin; `singly`: no runs."""
        self.name = name
        """File name."""
        self.discarded: Counter[str] = Counter()
        """Segments of the streams that are of no use, by cause."""
        self.problem: str | None = None
        """Why the file ended early, None while it did not."""
        self.unfinished = 0
        """Segments whose checksums were not finished, because the host's network card was to do that."""
        self._reader = reader
        self._singly = singly
        self._connections: dict[bytes, _Incarnations] = {}
        for binding in bindings:
            known = self._connections.setdefault(binding.seen.key, _Incarnations([], []))
            known.streams.append(StreamPosition(binding))
            known.isns.append(binding.seen.isn)
        self._known = list(self._connections.values())
        self._keys = _Keys(list(self._connections)) if self._connections else None

    def __iter__(self) -> Iterator[Item]:
        """Yield what is of use, and what is of no use where that is rare; nothing that follows damage in the file."""
        progress, number = (0, 0), 0
        try:
            for batch in self._reader.batches():
                rows = decode(batch, verify=True)
                for item in self._items(batch, rows, number, progress):
                    progress = item.progress
                    yield item
                number += len(batch)
        except CaptureError as error:
            self.problem = str(error)

    def _items(self, batch: PacketBatch, rows: Headers, number: int, progress: Progress) -> Iterator[Item]:
        count = len(batch)
        if self._singly or self._keys is None:
            for low in range(0, count, _AT_A_TIME):
                yield from self._single(batch, rows, slice(low, low + _AT_A_TIME), number, progress)
            return
        tcp = (rows["kind"] == int(Kind.TCP)) & (rows["ip_version"] == 4)
        found = self._keys.find(rows, tcp)
        known = found >= 0
        bad = (rows["ip_checksum"] == _BAD) | (rows["checksum"] == _BAD) | (rows["flags"] & (SYN | RST) != 0)
        odd = np.where(tcp, (rows["short"] != 0) | (known & bad), np.isin(rows["kind"], _UNUSABLE))
        plain = np.flatnonzero(known & ~odd & (rows["payload_length"] > 0))
        known_partial = known & ~odd & ((rows["checksum"] == _PARTIAL) | (rows["ip_checksum"] == _PARTIAL))
        self.unfinished += int(known_partial.sum())
        low = 0
        for stop in [*np.flatnonzero(odd).tolist(), count]:
            begin, end = np.searchsorted(plain, [low, stop])
            for item in self._runs(batch, rows, plain[begin:end], found, number, progress):
                progress = item.progress
                yield item
            if stop < count:
                for item in self._single(batch, rows, slice(stop, stop + 1), number, progress):
                    progress = item.progress
                    yield item
            low = stop + 1

    def _runs(
        self, batch: PacketBatch, rows: Headers, plain: NDArray[np.int64], found: NDArray[np.int64], number: int,
        progress: Progress,
    ) -> Iterator[Item]:  # fmt: skip
        """Yield the segments `plain` in runs that each were at about the same step."""
        while len(plain):
            streams = [known.stream for known in self._known]
            of = found[plain]
            positions, odd = _positions(streams, of, rows["seq"][plain].astype(np.int64))
            count = int(odd.argmax()) if odd.any() else len(plain)
            if count:
                here = plain[:count]
                run = _run(batch, rows, here, streams, of[:count], positions[:count])
                epochs = np.array([stream.binding.epoch.epoch for stream in streams], np.int64)[run.stream]
                for part, progress in _cut(epochs, run.first_steps):
                    yield Item(progress, int(batch.times_ns[here[part.start]]), run.part(part))
            # The header of one of these may confirm a position from which others are near.
            stop = count
            while stop < min(len(plain), count + _ODD_AT_A_TIME) and odd[stop]:
                row = int(plain[stop])
                for item in self._single(batch, rows, slice(row, row + 1), number, progress, counted=True):
                    progress = item.progress
                    yield item
                stop += 1
            plain = plain[stop:]

    def _single(
        self, batch: PacketBatch, rows: Headers, part: slice, number: int, progress: Progress, *, counted: bool = False
    ) -> Iterator[Item]:
        for seen in look_at(batch, rows, part, number):
            item = self._item(seen, progress, counted)
            progress = item.progress
            yield item

    def _item(self, seen: Seen, progress: Progress, counted: bool) -> Item:
        nothing = Item(progress, seen.time_ns, seen=seen)
        if seen.short if seen.tcp else seen.name in _DAMAGED and seen.kind in _UNUSABLE:
            self.discarded["cut" if seen.wire_length > len(seen.data) else "malformed"] += 1
            return nothing
        known = self._connections.get(seen.key)
        if known is None:
            return nothing
        if seen.ip_checksum == _BAD or seen.checksum == _BAD:
            self.discarded["bad_ip_checksum" if seen.ip_checksum == _BAD else "bad_tcp_checksum"] += 1
            return nothing
        # Nothing can be said of these bytes; but each frame of ours has checksums of its header and its payload.
        self.unfinished += not counted and (seen.checksum == _PARTIAL or seen.ip_checksum == _PARTIAL)
        flags = seen.flags
        if flags & RST:
            # What a reset carries is not part of the stream (RFC 9293, section 3.5.3).
            self.discarded["reset"] += bool(seen.payload)
            return nothing
        if flags & SYN:
            known.at_syn(seen.seq)
        stream = known.stream
        if not seen.payload:
            return Item(progress, seen.time_ns, seen=seen, stream=stream)
        position = stream.position((seen.seq + bool(flags & SYN)) % _MODULUS)
        if position < 0 or not stream.flow.carries_bytes:
            self.discarded["bad_position"] += 1
            return nothing
        step = stream.locate(position, position + len(seen.payload))[0].step
        progress = stream.binding.epoch.epoch, step
        return Item(progress, seen.time_ns, None, seen, stream, position, seen.payload)


def _positions(
    streams: Sequence[StreamPosition], of: NDArray[np.int64], sequences: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the positions of segments of streams `of`, and which are to be looked at one by one."""
    reference = np.array([stream.reference for stream in streams], np.int64)[of]
    base = np.array([stream.base for stream in streams], np.int64)[of]
    delta = ((sequences - base - reference + (_MODULUS >> 1)) & (_MODULUS - 1)) - (_MODULUS >> 1)
    empty = ~np.array([stream.flow.carries_bytes for stream in streams], np.bool_)[of]
    return reference + delta, (np.abs(delta) > NEAR) | (reference + delta < 0) | empty


def _run(
    batch: PacketBatch, rows: Headers, plain: NDArray[np.int64], streams: Sequence[StreamPosition],
    of: NDArray[np.int64], positions: NDArray[np.int64],
) -> Run:  # fmt: skip
    lengths = rows["payload_length"][plain]
    first_steps, last_steps = np.zeros(len(plain), np.int64), np.zeros(len(plain), np.int64)
    for index in np.unique(of).tolist():
        mine, schedule = of == index, streams[index].flow.schedule
        first_steps[mine] = schedule.steps_at(positions[mine])
        last_steps[mine] = schedule.steps_at(positions[mine] + lengths[mine] - 1)
    return Run(batch.data, streams, rows["payload"][plain], lengths, of, positions, first_steps, last_steps)


_SLACK = 2
"""Steps that packets of one run may be apart: streams are, by one."""


def _cut(epochs: NDArray[np.int64], steps: NDArray[np.int64]) -> Iterator[tuple[slice, Progress]]:
    """Cut segments where the run makes progress; yield the parts, and how far the run was in each."""
    if not len(steps):
        return
    changes = np.flatnonzero((epochs[1:] != epochs[:-1]) | (steps[1:] != steps[:-1])) + 1
    low, top = 0, (int(epochs[0]), int(steps[0]))
    for at in changes.tolist():
        here = int(epochs[at]), int(steps[at])
        if here > top or here < (top[0], top[1] - _SLACK):
            yield slice(low, at), top
            low, top = at, here
    yield slice(low, len(steps)), top


def merged(sources: Sequence[Source]) -> Iterator[Item]:
    """Yield the packets of all sources, those of the one that is furthest behind first."""
    if len(sources) == 1:
        yield from sources[0]
        return
    heads: list[tuple[Progress, int, int, Item, Iterator[Item]]] = []

    def push(number: int, items: Iterator[Item]) -> None:
        item = next(items, None)
        if item is not None:
            heapq.heappush(heads, (item.progress, item.time_ns, number, item, items))

    for number, source in enumerate(sources):
        push(number, iter(source))
    while heads:
        _, _, number, item, items = heapq.heappop(heads)
        yield item
        push(number, items)
