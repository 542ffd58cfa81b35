"""First reading of captures: which streams of gradient frames there are, and what their headers say of the layout.

Looks for frame headers (magic and CRC32C) in TCP payloads. Nothing is placed by what is found here alone: every
frame is verified when it is placed. Memory: some hundred bytes for each connection (of a bounded number), and for each
bucket, channel and chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from jobspec.dtypes import DType
from jobspec.frame import HEADER_BYTES, MAGIC, FrameError, FrameHeader
from jobspec.ring import Phase
from packets.headers import Kind
from packets.segment import SYN
from replay.segments import Seen

_TAIL = HEADER_BYTES - 1
"""Most bytes of a header that can be at the end of a segment without being a whole one."""
_MODULUS = 1 << 32
MAX_CONNECTIONS = 1 << 16
"""Connections that are followed at a time; beyond that, those without frame headers are forgotten."""


@dataclass(frozen=True)
class SeenHeader:
    """A valid frame header and where in the stream it is."""

    header: FrameHeader
    """Its fields."""
    seq: int
    """TCP sequence number of its first byte."""

    @property
    def epoch(self) -> EpochKey:
        """The epoch that it belongs to."""
        return self.header.job, self.header.group, self.header.epoch


@dataclass
class SeenStream:
    """One direction of one TCP connection in one file, from its SYN (or the file's begin) to the next one."""

    key: bytes
    """See `replay.segments.Seen.key`."""
    isn: int | None = None
    """Sequence number of its SYN, None where the file has none."""
    first: SeenHeader | None = None
    """First frame header, None where none was found."""
    last: SeenHeader | None = None
    """Last frame header."""
    original: bool = False
    """Whether it carries reduce-scatter frames: traffic between ranks, not replicas."""
    hops: set[int] = field(default_factory=set)
    """Hops of the all-gather that it carries frames of."""
    payload_bytes: int = 0
    """TCP payload, repeated bytes included."""
    _tail: bytes = b""
    _next: int = -1

    def scan(self, seq: int, payload: bytes) -> list[SeenHeader]:
        """Return the frame headers in a segment, those too that began in the one before it."""
        self.payload_bytes += len(payload)
        start = seq
        if seq == self._next and self._tail:
            start, payload = (seq - len(self._tail)) % _MODULUS, self._tail + payload
        self._next = (start + len(payload)) % _MODULUS
        found: list[SeenHeader] = []
        at = payload.find(MAGIC)
        while at >= 0 and at + HEADER_BYTES <= len(payload):
            try:
                header = FrameHeader.unpack(payload[at : at + HEADER_BYTES])
            except FrameError:
                at = payload.find(MAGIC, at + 1)
                continue
            found.append(SeenHeader(header, (start + at) % _MODULUS))
            at = payload.find(MAGIC, at + HEADER_BYTES)
        self._tail = payload[-_TAIL:]
        if found:
            self.first = self.first or found[0]
            self.last = found[-1]
        for seen in found:
            if seen.header.phase is Phase.ALL_GATHER:
                self.hops.add(seen.header.hop)
            else:
                self.original = True
        return found


EpochKey = tuple[int, int, int]
"""Job number, group number, epoch."""


@dataclass
class Census:
    """What the headers of one epoch of one group say, to infer its layout from."""

    versions: set[int] = field(default_factory=set)
    """Layout versions."""
    channels: int = 0
    """Channels seen: the highest plus one."""
    ranks: int = 0
    """Ring size: hops run from 0 to N - 2."""
    frame_payload: int = 0
    """Largest payload."""
    first_step: int = 0
    """Lowest step."""
    last_step: int = 0
    """Highest step."""
    dtypes: dict[int, DType] = field(default_factory=dict)
    """Element type by bucket."""
    ends: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)
    """First element and one past the last seen, by bucket, channel and chunk."""
    contradiction: str | None = None
    """Why the headers cannot all be of one layout."""

    def add(self, header: FrameHeader) -> None:
        """Take a valid header into account."""
        self.versions.add(header.layout_version)
        self.channels = max(self.channels, header.channel + 1)
        self.ranks = max(self.ranks, header.hop + 2, header.chunk + 1, header.rank + 1)
        self.frame_payload = max(self.frame_payload, header.payload_bytes)
        self.first_step = min(self.first_step or header.step, header.step)
        self.last_step = max(self.last_step, header.step)
        if self.dtypes.setdefault(header.bucket, header.dtype) is not header.dtype:
            self.contradiction = f"bucket {header.bucket} has two element types"
        place = (header.bucket, header.channel, header.chunk)
        begin, end = header.element_offset, header.element_offset + header.payload_bytes // header.dtype.itemsize
        low, high = self.ends.get(place, (begin, end))
        self.ends[place] = min(low, begin), max(high, end)


class Survey:
    """What all files hold."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.streams: list[list[SeenStream]] = []
        """Streams with frame headers or a SYN, by file, in the order in which they begin."""
        self.epochs: dict[EpochKey, Census] = {}
        """What the headers of each epoch say."""
        self.other: Counter[str] = Counter()
        """Packets that are no part of a stream with frame headers, by name."""
        self.packets = 0
        """All packets."""
        self.unread_links: set[int] = set()
        """Link types that are not decoded."""
        self.cut = 0
        """Packets of which only a part was captured."""
        self._counts: Counter[bytes] = Counter()

    def read(self, packets: Iterable[Seen]) -> None:
        """Look through the next file.

        Raises whatever `packets` raises; what came before stays.
        """
        streams: list[SeenStream] = []
        self.streams.append(streams)
        current: dict[bytes, SeenStream] = {}
        counts = self._counts
        for seen in packets:
            self.packets += 1
            self.cut += seen.wire_length > len(seen.data)
            if seen.kind == Kind.UNKNOWN_LINK:
                self.unread_links.add(seen.link_type)
            if not seen.tcp:
                self.other[seen.name] += 1
                continue
            counts[seen.key] += 1
            stream = current.get(seen.key)
            syn = bool(seen.flags & SYN)
            if stream is None or (syn and stream.isn != seen.seq and (stream.payload_bytes or stream.isn)):
                if len(current) >= MAX_CONNECTIONS:
                    self._make_room(current)
                stream = current[seen.key] = SeenStream(seen.key)
            if syn:
                stream.isn = seen.seq
            if seen.payload:
                known = stream.first is not None
                for found in stream.scan((seen.seq + syn) % _MODULUS, seen.payload):
                    header = found.header
                    self.epochs.setdefault((header.job, header.group, header.epoch), Census()).add(header)
                if not known and stream.first is not None:
                    streams.append(stream)

    def _make_room(self, current: dict[bytes, SeenStream]) -> None:
        """Forget the connections without frame headers, so that a file of nothing else cannot fill the memory."""
        for key in [key for key, stream in current.items() if stream.first is None]:
            del current[key]
            self.other["tcp"] += self._counts.pop(key, 0)

    def finish(self) -> None:
        """Name the TCP packets that carry no frames, once all files were read."""
        ours = {stream.key for streams in self.streams for stream in streams}
        back = {key[4:8] + key[:4] + key[10:12] + key[8:10] for key in ours}
        for key, count in self._counts.items():
            if key not in ours:
                self.other["tcp acknowledgments" if key in back else "tcp"] += count
        self._counts.clear()
