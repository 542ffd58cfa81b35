"""First reading of captures: which streams of gradient frames there are, and what their headers say of the layout.

Looks for frame headers (magic and CRC32C) in TCP payloads. Nothing is placed by what is found here alone: every
frame is verified when it is placed. Memory: some hundred bytes for each connection (of a bounded number), and for each
bucket, channel and chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import HEADER_BYTES, FrameError, FrameHeader
from checkmate_common.stream.ring import Phase
from packets.batch import PacketBatch
from packets.decode import decode
from packets.headers import Headers, Kind
from packets.names import packet_name
from packets.segment import SYN
from replay.scan import Candidates, Tails, find_candidates

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
    number: int = -1
    """Of `replay.scan.Tails`."""

    def add(self, sequence: int, data: bytes) -> SeenHeader | None:
        """Take a candidate for a frame header (`replay.scan`); return it if it is valid, None if it is not."""
        if self.last is not None and (sequence - self.last.seq) % _MODULUS < HEADER_BYTES:
            return None  # within the last one, or the last one once more
        try:
            header = FrameHeader.unpack(data)
        except FrameError:
            return None
        seen = self.last = SeenHeader(header, sequence)
        self.first = self.first or seen
        if header.phase is Phase.ALL_GATHER:
            self.hops.add(header.hop)
        else:
            self.original = True
        return seen


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
        self._candidates = Candidates()

    def read(self, batches: Iterable[PacketBatch]) -> None:
        """Look through the next file.

        Raises whatever `batches` raises; what came before stays.
        """
        streams: list[SeenStream] = []
        self.streams.append(streams)
        following = _Streams(self)
        for batch in batches:
            rows = decode(batch, verify=False)
            self.packets += len(batch)
            self.cut += int((batch.wire_lengths > batch.lengths).sum())
            tcp = (rows["kind"] == int(Kind.TCP)) & (rows["ip_version"] == 4)
            if not tcp.all():
                self._name_others(rows[~tcp], batch.link_types[~tcp])
                rows = rows[tcp]
            payloads = _Payloads(batch.data, rows["payload"].copy(), rows["payload_length"].copy(),
                                 rows["seq"].astype(np.int64))  # fmt: skip
            which, keys = _connections(rows)
            for key, count in zip(keys, np.bincount(which, minlength=len(keys)).tolist(), strict=True):
                self._counts[key] += count
            low = 0
            for at in [*np.flatnonzero(rows["flags"] & SYN).tolist(), len(rows)]:
                numbers = following.numbers(which[low:at], keys)
                self._scan(payloads.part(slice(low, at)), numbers, following, streams)
                if at < len(rows):
                    self._syn(payloads.part(slice(at, at + 1)), keys[which[at]], following, streams)
                low = at + 1

    def _name_others(self, rows: Headers, links: NDArray[np.uint16]) -> None:
        fields = ("kind", "ip_version", "protocol", "ethertype")
        columns = np.stack([*(rows[name].astype(np.int64) for name in fields), links.astype(np.int64)], axis=1)
        kinds, counts = np.unique(columns, axis=0, return_counts=True)
        for (kind, version, protocol, ethertype, link), count in zip(kinds.tolist(), counts.tolist(), strict=True):
            name = "rocev2" if kind == Kind.ROCE else packet_name(kind, version, protocol, ethertype, link)
            self.other[name] += count
            if kind == Kind.UNKNOWN_LINK:
                self.unread_links.add(link)

    def _syn(self, payload: _Payloads, key: bytes, following: _Streams, streams: list[SeenStream]) -> None:
        sequence = int(payload.sequences[0])
        stream = following.current.get(key)
        if stream is None or (stream.isn != sequence and (stream.payload_bytes or stream.isn)):
            stream = following.begin(key)
        stream.isn = sequence
        data = payload._replace(sequences=(payload.sequences + 1) % _MODULUS)
        self._scan(data, np.array([stream.number]), following, streams)

    def _scan(
        self, payloads: _Payloads, numbers: NDArray[np.int64], following: _Streams, streams: list[SeenStream]
    ) -> None:
        """Look for frame headers in payloads of the streams with these numbers."""
        some = payloads.lengths > 0
        if not some.all():
            payloads, numbers = payloads.part(some), numbers[some]
        for number, size in enumerate(np.bincount(numbers, payloads.lengths).tolist() if len(numbers) else ()):
            if size:
                following.by_number[number].payload_bytes += int(size)
        found, tails, at = self._candidates, following.tails, 0
        while at < len(numbers):
            at, count = find_candidates(
                at, *payloads, numbers, tails.following, tails.sizes, tails.bytes,
                found.rows, found.sequences, found.headers,
            )  # fmt: skip
            for row, sequence, data in zip(
                found.rows[:count].tolist(), found.sequences[:count].tolist(), found.headers[:count], strict=True
            ):
                stream = following.by_number[int(numbers[row])]
                known = stream.first is not None
                seen = stream.add(sequence, data.tobytes())
                if seen is not None:
                    self.epochs.setdefault(seen.epoch, Census()).add(seen.header)
                    if not known:
                        streams.append(stream)

    def forget(self, key: bytes) -> None:
        """Forget a connection without frame headers: there are too many."""
        self.other["tcp"] += self._counts.pop(key, 0)

    def finish(self) -> None:
        """Name the TCP packets that carry no frames, once all files were read."""
        ours = {stream.key for streams in self.streams for stream in streams}
        back = {key[4:8] + key[:4] + key[10:12] + key[8:10] for key in ours}
        for key, count in self._counts.items():
            if key not in ours:
                self.other["tcp acknowledgments" if key in back else "tcp"] += count
        self._counts.clear()


class _Payloads(NamedTuple):
    """Payloads of segments; n is their number."""

    data: NDArray[np.uint8]
    """Memory that they lie in."""
    starts: NDArray[np.int64]
    """[n] First byte in `data`."""
    lengths: NDArray[np.int64]
    """[n] Bytes."""
    sequences: NDArray[np.int64]
    """[n] Sequence number of the first byte."""

    def part(self, which: slice | NDArray[np.bool_]) -> _Payloads:
        """Return some of them."""
        return _Payloads(self.data, *(column[which] for column in self[1:]))


class _Streams:
    """The present streams of one file."""

    def __init__(self, survey: Survey) -> None:
        self.current: dict[bytes, SeenStream] = {}
        self.by_number: dict[int, SeenStream] = {}
        self.tails = Tails()
        self._survey = survey

    def begin(self, key: bytes) -> SeenStream:
        """Begin a stream in place of the present one of the connection, if any."""
        before = self.current.pop(key, None)
        if before is not None:
            self._end(before)
        if len(self.current) >= MAX_CONNECTIONS:
            # So that a file of nothing else cannot fill the memory.
            for other in [other for other, stream in self.current.items() if stream.first is None]:
                self._end(self.current.pop(other))
                self._survey.forget(other)
        stream = SeenStream(key, number=self.tails.take())
        self.current[key] = self.by_number[stream.number] = stream
        return stream

    def _end(self, stream: SeenStream) -> None:
        self.tails.give_back(stream.number)
        del self.by_number[stream.number]

    def numbers(self, which: NDArray[np.int64], keys: list[bytes]) -> NDArray[np.int64]:
        """Return the number of the stream of each segment, by the index of its connection's key."""
        found = np.zeros(len(keys), np.int64)
        for index in np.unique(which).tolist():
            stream = self.current.get(keys[index]) or self.begin(keys[index])
            found[index] = stream.number
        return found[which]


def _connections(segments: Headers) -> tuple[NDArray[np.int64], list[bytes]]:
    """Return the index of each segment's connection among the keys (`replay.segments.Seen.key`) that are returned."""
    columns = np.empty((len(segments), 3), ">u4")
    columns[:, 0], columns[:, 1] = segments["source_low"], segments["destination_low"]
    columns[:, 2] = segments["source_port"].astype(np.uint32) << np.uint32(16) | segments["destination_port"]
    keys = columns.view("V12").ravel()
    # Sorting 12-byte keys is slow, and neighbours are mostly of one connection.
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else np.zeros(0, np.int64)
    known: dict[bytes, int] = {}
    numbers = [known.setdefault(key.tobytes(), len(known)) for key in keys[begins]]
    return np.repeat(np.array(numbers, np.int64), np.diff(np.append(begins, len(keys)))), list(known)
