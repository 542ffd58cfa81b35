"""Parser of a single Ethernet frame with a TCP segment over IPv4, for code that handles single frames."""

from __future__ import annotations

import struct
from typing import NamedTuple

from packets.headers import Checksum, Kind
from packets.reference import decode_packet
from packets.segment import FLAGS_OF, Segment
from packets.template import PacketError

_U16 = struct.Struct("!H")
_PROTOCOL_TCP = 6
_IPV4, _IPV6 = 0x0800, 0x86DD
_FRAGMENT, _MALFORMED, _TCP, _OK = int(Kind.FRAGMENT), int(Kind.MALFORMED), int(Kind.TCP), int(Checksum.OK)


class ParsedFrame(NamedTuple):
    """A parsed frame; its fields can be trusted only if both checksums are right.

    A named tuple, because one is created for each frame and a frozen dataclass takes several times as long.
    """

    src_mac: str
    """Source MAC address, as in "02:00:00:00:00:01"."""
    dst_mac: str
    """Destination MAC address."""
    vlan: int | None
    """VLAN identifier of the outermost tag, None without one."""
    src_ip: str
    """Source IPv4 address in dotted decimal."""
    dst_ip: str
    """Destination IPv4 address."""
    ttl: int
    """Time to live."""
    ident: int
    """IPv4 identification field."""
    ecn: int
    """ECN bits of the IPv4 header, 0..3."""
    segment: Segment
    """The TCP segment, with the DSCP of the IPv4 header."""
    ip_checksum_ok: bool
    """Whether the IPv4 header checksum is right."""
    tcp_checksum_ok: bool
    """Whether the TCP checksum (pseudo-header, header, payload) is right."""

    @property
    def checksums_ok(self) -> bool:
        """Whether both checksums are right: only then may the segment be used."""
        return self.ip_checksum_ok and self.tcp_checksum_ok


def parse_frame(frame: bytes | memoryview) -> ParsedFrame | None:
    """Parse `frame` (from the destination MAC on); return None if it is not TCP over IPv4.

    VLAN tags, IPv4 options and unknown TCP options are skipped. Bytes after the IPv4 total length are Ethernet padding
    and ignored. A wrong checksum is a field of the result. Raises `PacketError`, and nothing else, for a frame that is
    cut off, inconsistent, or a fragment.
    """
    view = memoryview(frame)
    size = len(frame)
    header = decode_packet(view, 0, size, size, 1, True)
    if header.kind in (_MALFORMED, _FRAGMENT) and header.ethertype != _IPV6:
        if header.ip_version and header.protocol != _PROTOCOL_TCP:
            return None
        if header.kind == _FRAGMENT:
            raise PacketError("IPv4 fragments are not supported", header.network + 6)
        layer = "TCP" if header.transport else "IPv4" if header.ethertype == _IPV4 else "Ethernet"
        raise PacketError(f"the {layer} header is cut off or inconsistent with the frame's {size} bytes", size)
    if header.kind != _TCP or header.ip_version != 4:
        return None
    mss = scale = None
    if header.payload > header.transport + 20:
        mss, scale = _parse_options(view, header.transport + 20, header.payload)
    payload = bytes(view[header.payload : header.payload + header.payload_length])
    segment = Segment(
        header.source_port, header.destination_port, header.seq, header.ack, FLAGS_OF[header.flags], header.window,
        payload, header.tos >> 2, mss, scale,
    )  # fmt: skip
    network = header.network
    return ParsedFrame(
        view[6:12].hex(":"),
        view[:6].hex(":"),
        header.vlan if header.vlan_depth else None,
        dotted(header.source_low),
        dotted(header.destination_low),
        view[network + 8],
        _U16.unpack_from(view, network + 4)[0],
        header.tos & 3,
        segment,
        header.ip_checksum == _OK,
        header.checksum == _OK,
    )


def dotted(address: int) -> str:
    """Return an IPv4 address in dotted decimal."""
    return f"{address >> 24}.{address >> 16 & 0xFF}.{address >> 8 & 0xFF}.{address & 0xFF}"


def _parse_options(view: memoryview, start: int, end: int) -> tuple[int | None, int | None]:
    """Return the MSS and window scale options between `start` and `end`."""
    mss = scale = None
    at = start
    while at < end:
        kind = view[at]
        if kind == 0:
            break
        if kind == 1:
            at += 1
            continue
        length = view[at + 1] if at + 1 < end else 0
        if length < 2 or at + length > end:
            raise PacketError(f"TCP option {kind} has length {length}", at)
        if kind == 2 and length == 4:
            mss = _U16.unpack_from(view, at + 2)[0]
        elif kind == 3 and length == 3:
            scale = view[at + 2]
        elif kind in (2, 3):
            raise PacketError(f"TCP option {kind} has length {length}", at)
        at += length
    return mss, scale
