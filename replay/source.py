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
from capture.model import LINKTYPE_ETHERNET, Packet
from packets.frame import ParsedFrame, parse_frame
from packets.segment import RST, SYN
from packets.template import PacketError
from replay.collector import StreamPosition
from replay.peek import dotted
from replay.plan import Binding

Connection = tuple[str, int, str, int]
"""Source address and port, destination address and port."""


class Item(NamedTuple):
    """A packet, what it is, and how far the run was."""

    progress: tuple[int, int]
    """Epoch and step."""
    packet: Packet
    """The packet."""
    stream: StreamPosition | None
    """The stream that it belongs to, None for other traffic."""
    position: int
    """Stream position of its first payload byte."""
    payload: bytes
    """TCP payload, empty where it has no use."""


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

    def __init__(self, name: str, packets: Iterable[Packet], bindings: Sequence[Binding]) -> None:
        """Read `packets`, whose streams are `bindings` in the order in which they begin."""
        self.name = name
        """File name."""
        self.discarded: Counter[str] = Counter()
        """Segments of the streams that are of no use, by cause."""
        self.problem: str | None = None
        """Why the file ended early, None while it did not."""
        self._packets = packets
        self._connections: dict[Connection, _Incarnations] = {}
        for binding in bindings:
            known = self._connections.setdefault(dotted(binding.seen.key), _Incarnations([], []))
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

    def _item(self, packet: Packet, progress: tuple[int, int]) -> Item:
        nothing = Item(progress, packet, None, 0, b"")
        if packet.link_type != LINKTYPE_ETHERNET:
            return nothing
        try:
            parsed = parse_frame(packet.data)
        except PacketError:
            self.discarded["cut" if packet.original_length > len(packet.data) else "malformed"] += 1
            return nothing
        known = self._connections.get(connection_of(parsed)) if parsed is not None else None
        if known is None or parsed is None:
            return nothing
        segment = parsed.segment
        if not parsed.checksums_ok:
            self.discarded["bad_ip_checksum" if not parsed.ip_checksum_ok else "bad_tcp_checksum"] += 1
            return nothing
        flags = int(segment.flags)
        if flags & RST:
            # What a reset carries is not part of the stream (RFC 9293, section 3.5.3).
            self.discarded["reset"] += bool(segment.payload)
            return nothing
        if flags & SYN:
            known.at_syn(segment.seq)
        stream = known.streams[known.current]
        if not segment.payload:
            return Item(progress, packet, stream, 0, b"")
        position = stream.position((segment.seq + bool(flags & SYN)) % (1 << 32))
        if position < 0 or not stream.flow.carries_bytes:
            self.discarded["bad_position"] += 1
            return nothing
        step = stream.locate(position, position + len(segment.payload))[0].step
        return Item((stream.binding.epoch.epoch, step), packet, stream, position, segment.payload)


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
            heapq.heappush(heads, (item.progress, item.packet.time_ns, number, item, items))

    for number, source in enumerate(sources):
        push(number, iter(source))
    while heads:
        _, _, number, item, items = heapq.heappop(heads)
        tick()
        yield item
        push(number, items)
