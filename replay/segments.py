"""Captured packets as replay looks at them: TCP segments over IPv4, and the names of everything else."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from packets.batch import PacketBatch
from packets.decode import decode
from packets.frame import dotted as dotted_address
from packets.headers import Headers, Kind
from packets.names import packet_name

_KEY = struct.Struct("!IIHH")
_COLUMNS = (
    "kind", "ip_version", "source_low", "destination_low", "source_port", "destination_port", "flags", "seq", "payload",
    "payload_length", "wire_payload_length", "short", "ip_checksum", "checksum", "protocol", "ethertype",
)  # fmt: skip
_AT_A_TIME = 512  # so few become Python objects at once
_TCP, _ROCE = int(Kind.TCP), int(Kind.ROCE)


class Seen(NamedTuple):
    """One packet."""

    number: int
    """1-based position in the file."""
    time_ns: int
    """Nanoseconds since the epoch."""
    data: memoryview
    """Captured bytes, from the link header on."""
    wire_length: int
    """Bytes on the wire."""
    link_type: int
    """LINKTYPE_* of `data`."""
    kind: int
    """A `packets.headers.Kind`."""
    name: str
    """``tcp`` for a TCP segment over IPv4, ``rocev2``, or what it is instead."""
    key: bytes
    """Of a TCP segment: source and destination IPv4 address and port, 12 bytes: one direction of one connection."""
    flags: int
    """Flag byte of the TCP header."""
    seq: int
    """Sequence number."""
    payload: bytes
    """Payload as far as it was captured, without Ethernet padding."""
    wire_payload: int
    """Bytes of the payload on the wire."""
    short: int
    """1 where the snapshot length cut the payload."""
    ip_checksum: int
    """A `packets.headers.Checksum`."""
    checksum: int
    """A `packets.headers.Checksum`; not checked unless asked for."""

    @property
    def tcp(self) -> bool:
        """Whether it is a whole TCP header over IPv4."""
        return self.name == "tcp"


def look(batches: Iterable[PacketBatch], *, verify: bool = False) -> Iterator[Seen]:
    """Yield the packets of a capture; `verify` asks for TCP checksums.

    Raises whatever `batches` raises.
    """
    number = 0
    for batch in batches:
        rows = decode(batch, verify=verify)
        for low in range(0, len(batch), _AT_A_TIME):
            yield from look_at(batch, rows, slice(low, low + _AT_A_TIME), number)
        number += len(batch)


def look_at(batch: PacketBatch, rows: Headers, part: slice, number: int) -> Iterator[Seen]:
    """Yield some packets of a batch, whose headers are `rows` and before which there were `number` packets."""
    view = memoryview(batch.data)  # type: ignore[arg-type]
    number += part.start
    packets = zip(
        batch.starts[part].tolist(),
        batch.lengths[part].tolist(),
        batch.wire_lengths[part].tolist(),
        batch.times_ns[part].tolist(),
        batch.link_types[part].tolist(),
        *(rows[name][part].tolist() for name in _COLUMNS),
        strict=True,
    )
    for start, size, wire, time_ns, link, kind, version, source, destination, port, to, flags, seq, begin, \
            count, whole, short, ip_checksum, checksum, protocol, ethertype in packets:  # fmt: skip
        number += 1
        name, key, payload = "tcp", b"", b""
        if kind == _TCP and version == 4:
            key, payload = _KEY.pack(source, destination, port, to), bytes(view[begin : begin + count])
        else:
            name = "rocev2" if kind == _ROCE else packet_name(kind, version, protocol, ethertype, link)
        data = view[start : start + size]
        yield Seen(number, time_ns, data, wire, link, kind, name, key, flags, seq, payload, whole, short,
                   ip_checksum, checksum)  # fmt: skip


def dotted(key: bytes) -> tuple[str, int, str, int]:
    """Return source address and port, destination address and port of a `Seen.key`."""
    source, destination, source_port, destination_port = _KEY.unpack(key)
    return dotted_address(source), source_port, dotted_address(destination), destination_port
