"""One capture as a source of segments, and several of them in the order in which the run made progress.

Captures of several ports are read side by side, always from the one that is furthest behind in (epoch, step), so that
a window of few steps suffices, however the clocks of the machines that captured differ. Packet times only break ties.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from capture.errors import CaptureError
from packets.frame import ParsedFrame
from packets.headers import Checksum, Kind
from packets.segment import RST, SYN
from replay.collector import StreamPosition
from replay.plan import Binding
from replay.segments import Seen

Connection = tuple[str, int, str, int]
"""Source address and port, destination address and port."""


class Item(NamedTuple):
    """A packet, what it is, and how far the run was."""

    progress: tuple[int, int]
    """Epoch and step."""
    seen: Seen | None
    """The packet, None for a replica that the switch program made."""
    stream: StreamPosition | None
    """The stream that it belongs to, None for other traffic."""
    position: int
    """Stream position of its first payload byte."""
    payload: bytes
    """TCP payload, empty where it has no use."""


_UNUSABLE = (int(Kind.TRUNCATED), int(Kind.MALFORMED), int(Kind.FRAGMENT))
_DAMAGED = ("ipv4/tcp", "ipv4/fragment", "ipv4 (malformed)", "short frame")
_BAD, _PARTIAL = int(Checksum.BAD), int(Checksum.PARTIAL)


@dataclass
class _Incarnations:
    """The streams of one connection in one file, in order, told apart by their SYN."""

    streams: list[StreamPosition]
    isns: list[int | None]
    current: int = 0

    def at_syn(self, seq: int) -> None:
        if seq in self.isns:
            self.current = self.isns.index(seq)


class Source:
    """One capture."""

    def __init__(self, name: str, packets: Iterable[Seen], bindings: Sequence[Binding]) -> None:
        """Read `packets`, whose streams are `bindings` in the order in which they begin."""
        self.name = name
        """File name."""
        self.discarded: Counter[str] = Counter()
        """Segments of the streams that are of no use, by cause."""
        self.problem: str | None = None
        """Why the file ended early, None while it did not."""
        self._packets = packets
        self.unfinished = 0
        """Segments whose checksums were not finished, because the host's network card was to do that."""
        self._connections: dict[bytes, _Incarnations] = {}
        for binding in bindings:
            known = self._connections.setdefault(binding.seen.key, _Incarnations([], []))
            known.streams.append(StreamPosition(binding))
            known.isns.append(binding.seen.isn)

    def __iter__(self) -> Iterator[Item]:
        """Yield all packets; what follows damage in the file is not there."""
        progress = (0, 0)
        try:
            for packet in self._packets:
                item = self._item(packet, progress)
                progress = item.progress
                yield item
        except CaptureError as error:
            self.problem = str(error)

    def _item(self, seen: Seen, progress: tuple[int, int]) -> Item:
        nothing = Item(progress, seen, None, 0, b"")
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
        self.unfinished += seen.checksum == _PARTIAL or seen.ip_checksum == _PARTIAL
        flags = seen.flags
        if flags & RST:
            # What a reset carries is not part of the stream (RFC 9293, section 3.5.3).
            self.discarded["reset"] += bool(seen.payload)
            return nothing
        if flags & SYN:
            known.at_syn(seen.seq)
        stream = known.streams[known.current]
        if not seen.payload:
            return Item(progress, seen, stream, 0, b"")
        position = stream.position((seen.seq + bool(flags & SYN)) % (1 << 32))
        if position < 0 or not stream.flow.carries_bytes:
            self.discarded["bad_position"] += 1
            return nothing
        step = stream.locate(position, position + len(seen.payload))[0].step
        return Item((stream.binding.epoch.epoch, step), seen, stream, position, seen.payload)


def connection_of(parsed: ParsedFrame) -> Connection:
    """Return the connection, and which direction of it, that a frame belongs to."""
    return parsed.src_ip, parsed.segment.src_port, parsed.dst_ip, parsed.segment.dst_port


def merged(sources: Sequence[Source], tick: Callable[[], None]) -> Iterator[Item]:
    """Yield the packets of all sources, those of the one that is furthest behind first; `tick` is called with each."""
    if len(sources) == 1:
        for item in sources[0]:
            tick()
            yield item
        return
    heads: list[tuple[tuple[int, int], int, int, Item, Iterator[Item]]] = []

    def push(number: int, items: Iterator[Item]) -> None:
        item = next(items, None)
        if item is not None:
            heapq.heappush(
                heads, (item.progress, item.seen.time_ns if item.seen is not None else 0, number, item, items)
            )

    for number, source in enumerate(sources):
        push(number, iter(source))
    while heads:
        _, _, number, item, items = heapq.heappop(heads)
        tick()
        yield item
        push(number, items)
