"""Captured packets as other tools and network cards write them: link headers, tags, lengths, checksums, containers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from capture.model import Packet
from packets.checksum import internet_checksum, sum_be
from tests.capture.builders import NANO, enhanced, interface, option, pcap_header, record, section

PUSH_ACK, ACK = 0x18, 0x10
_IP, _TCP = 14, 34  # positions in frames of the testbed: Ethernet without tags, IPv4 without options
_TSRESOL_NANOSECONDS = option(9, b"\x09")


@dataclass(frozen=True)
class Form:
    """One packet in a file."""

    data: bytes
    time_ns: int
    link: int = 1
    """LINKTYPE_*."""
    cut: int = 0
    """Bytes by which the wire's length is below that of `data`."""


Change = Callable[[Packet], Form]


def as_is(packet: Packet) -> Form:
    return Form(packet.data, packet.time_ns)


def ethertype(data: bytes) -> bytes:
    return data[12:14]


def relinked(link: int) -> Change:
    """Another link header in place of Ethernet's."""

    def change(packet: Packet) -> Form:
        kind = ethertype(packet.data)
        if link == 1:
            return as_is(packet)
        head = {
            0: struct.pack("<I", 2 if kind == b"\x08\x00" else 30),  # in the host's byte order
            108: struct.pack(">I", 2 if kind == b"\x08\x00" else 24),
            113: struct.pack(">HHH", 4, 1, 6) + packet.data[6:12] + b"\0\0" + kind,
            276: kind + struct.pack(">HIHBB", 0, 3, 1, 4, 6) + packet.data[6:12] + b"\0\0",
        }.get(link, b"")
        return Form(head + packet.data[14:], packet.time_ns, link)

    return change


LINKS = (1, 113, 276, 101, 12, 0, 108)
"""Link types that carry both versions of IP; 228 is IPv4's, 229 IPv6's."""


def tagged(*types: int) -> Change:
    """Tags of these EtherTypes, the outermost first."""
    tags = b"".join(struct.pack(">HH", kind, 100 + number) for number, kind in enumerate(types))
    return lambda packet: Form(packet.data[:12] + tags + packet.data[12:], packet.time_ns)


def tagged_anyhow(packet: Packet) -> Form:
    """From no tag to seven, another depth from one packet to the next."""
    types = (0x88A8, 0x8100, 0x9100, 0x88A8, 0x9200, 0x8100, 0x8100)
    return tagged(*types[: packet.number % 8])(packet)


def trailer(packet: Packet) -> Form:
    return Form(packet.data + b"\xde\xad\xbe\xef", packet.time_ns, cut=4)


def partial(packet: Packet) -> Form:
    """The checksum field as a host leaves it to the card: the pseudo-header's sum."""
    data = bytearray(packet.data)
    _leave_checksum(data, len(data) - _TCP if _is_tcp(data) else 0)
    return Form(bytes(data), packet.time_ns)


def without_length(packet: Packet) -> Form:
    """Total length 0, as segmentation offload leaves it; the IP header's checksum is of that."""
    data = bytearray(packet.data)
    _set_length(data, 0)
    return Form(bytes(data), packet.time_ns)


def joined(packets: Sequence[Packet], most: int, *, length: bool) -> Iterator[Form]:
    """Segments that follow each other in a stream as one, as they are before a card has cut them, or after it has
    joined them.

    Args:
        packets: of one capture.
        most: bytes of a joined segment's payload at most.
        length: whether the IP header tells the length; else it is 0.
    """
    waiting: dict[bytes, tuple[bytearray, int, int]] = {}  # by direction: frame, time, sequence number that follows

    def given(key: bytes) -> Iterator[Form]:
        if key in waiting:
            data, time_ns, _ = waiting.pop(key)
            _set_length(data, len(data) - _IP if length else 0)
            _leave_checksum(data, len(data) - _TCP)
            yield Form(bytes(data), time_ns)

    for packet in packets:
        data = packet.data
        key = data[_IP + 12 : _TCP + 4]  # addresses and ports
        begin = _TCP + (data[_TCP + 12] >> 4 << 2)
        seq, payload = int.from_bytes(data[_TCP + 4 : _TCP + 8], "big"), data[begin:]
        if not payload or data[_TCP + 13] not in (ACK, PUSH_ACK):
            yield from given(key)
            yield partial(packet)
            continue
        if key in waiting:
            frame, time_ns, following = waiting[key]
            if seq == following and data[_IP + 1] == frame[_IP + 1] and len(frame) + len(payload) - begin <= most:
                frame += payload
                waiting[key] = frame, time_ns, (seq + len(payload)) % (1 << 32)
                continue
            yield from given(key)
        waiting[key] = bytearray(data), packet.time_ns, (seq + len(payload)) % (1 << 32)
    for key in list(waiting):
        yield from given(key)


def _is_tcp(data: bytes | bytearray) -> bool:
    return data[12:14] == b"\x08\x00" and data[_IP + 9] == 6


def _set_length(data: bytearray, total: int) -> None:
    data[_IP + 2 : _IP + 4], data[_IP + 10 : _IP + 12] = struct.pack(">H", total), b"\0\0"
    data[_IP + 10 : _IP + 12] = struct.pack(">H", internet_checksum(bytes(data[_IP:_TCP])))


def _leave_checksum(data: bytearray, size: int) -> None:
    if size:
        pseudo = bytes(data[_IP + 12 : _TCP]) + struct.pack(">HI", 6, size)
        data[_TCP + 16 : _TCP + 18] = struct.pack(">H", sum_be(pseudo) or 0xFFFF)


def write_pcap(
    path: Path, forms: Sequence[Form], *, shift: int = 1, order: str = "<", nanoseconds: bool = False
) -> Path:
    """A pcap; all packets have the link type of the first. Fractions of a second are `shift` times too large."""
    unit = 1 if nanoseconds else 1000
    parts = [pcap_header(order, *((NANO,) if nanoseconds else ()), link=forms[0].link, snaplen=1 << 18)]
    for form in forms:
        seconds, fraction = divmod(form.time_ns, 1_000_000_000)
        wire = len(form.data) - form.cut
        parts.append(record(form.data, seconds, fraction // unit * shift, order, original=wire))
    path.write_bytes(b"".join(parts))
    return path


def write_pcapng(path: Path, forms: Sequence[Form], *, order: str = "<") -> Path:
    """A pcapng with an interface for each link type."""
    links = sorted({form.link for form in forms})
    options = option(9, b"\x09", order) + option(0, b"", order)
    parts = [section(order), *(interface(order, link, options=options) for link in links)]
    for form in forms:
        wire = len(form.data) - form.cut
        parts.append(enhanced(form.data, form.time_ns, links.index(form.link), order, original=wire))
    path.write_bytes(b"".join(parts))
    return path
