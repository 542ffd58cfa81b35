"""Ethernet/IPv4/TCP frames of segments: a fast writer, and a reader that survives anything.

The writer lays out what scapy builds, byte for byte, but writes only the fields that differ between segments.
The reader verifies both checksums and reports them, because what to do with a damaged frame is its caller's
decision.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from jobspec.segment import FLAGS_OF, Segment

_ETHERNET_BYTES = 14
_VLAN_BYTES = 4
_IPV4_BYTES = 20
_TCP_BYTES = 20
_ETHERTYPE_IPV4 = 0x0800
_ETHERTYPE_VLAN = 0x8100
_PROTOCOL_TCP = 6
_FRAGMENT_BITS = 0x3FFF
"""More-fragments flag and fragment offset."""

# addresses and EtherType; then version, TOS, length, id, flags and offset, TTL, protocol, checksum,
# addresses; then ports, seq, ack, data offset and flags, window, checksum, urgent pointer
_HEADERS = struct.Struct("!14s BBHHHBBH8s HHIIHHHH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_TCP = struct.Struct("!HHIIHHHH")
_U16 = struct.Struct("!H")

_NUMPY_FROM = 512
"""Payload bytes from which numpy's sum is faster than an integer conversion."""
_U32 = np.dtype("<u4")
_U64 = np.dtype("<u8")


class PacketError(Exception):
    """A frame that is no whole Ethernet/IPv4/TCP packet, or a segment that fits into none."""

    def __init__(self, reason: str, offset: int) -> None:
        """Keep the `reason` and the `offset` in bytes from the start of the frame."""
        self.reason = reason
        self.offset = offset
        super().__init__(f"{reason} (at byte {offset} of the frame)")


class ParsedFrame(NamedTuple):
    """A frame taken apart; its fields are to be trusted where both checksums are right.

    A named tuple, because one is made for each frame and a frozen dataclass takes several times as long.
    """

    src_mac: str
    """Source MAC address, as in "02:00:00:00:00:01"."""
    dst_mac: str
    """Destination MAC address."""
    vlan: int | None
    """VLAN identifier of an 802.1Q tag, None without one."""
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


def _sum_le(data: bytes | memoryview) -> int:
    """Return a number congruent mod 0xFFFF to the sum of `data`'s little-endian 16-bit words, zero padded.

    2**16 = 1 mod 0xFFFF, so that words of any multiple of 16 bits give the same residue.
    """
    size = len(data)
    if size < _NUMPY_FROM:
        return int.from_bytes(data, "little")
    words = size >> 2
    total = int(np.add.reduce(np.frombuffer(data, _U32, words), 0, _U64))
    return total + int.from_bytes(data[words << 2 :], "little")


def _sum_be(data: bytes | memoryview) -> int:
    """Return the sum of `data`'s big-endian 16-bit words mod 0xFFFF, zero padded.

    Swapping the bytes of the sum equals swapping those of each word (RFC 1071 section 2).
    """
    total = _sum_le(data) % 0xFFFF
    return (total >> 8) | ((total & 0xFF) << 8)


def internet_checksum(header: bytes) -> int:
    """Return the Internet checksum of a header that is not all zero, its checksum field taken as 0 (RFC 1071)."""
    return _checksum(_sum_be(header))


def _checksum(total: int) -> int:
    """Return the Internet checksum field for a positive sum of 16-bit words (RFC 1071)."""
    return 0xFFFF - (total % 0xFFFF or 0xFFFF)


class FrameTemplate:
    """Builds the frames of one direction of one pair of hosts.

    Everything that is equal in all frames is laid out once, by scapy; `build` writes the rest.
    """

    def __init__(
        self,
        src_mac: str,
        dst_mac: str,
        src_ip: str,
        dst_ip: str,
        *,
        ttl: int = 64,
        dont_fragment: bool = True,
    ) -> None:
        """Lay out the constant fields; raises `PacketError` for an address that scapy does not take."""
        for name, address in (("src_mac", src_mac), ("dst_mac", dst_mac)):
            if not _is_mac(address):
                raise PacketError(f"{name} must be six hexadecimal bytes with colons, got {address!r}", 0)
        for name, address in (("src_ip", src_ip), ("dst_ip", dst_ip)):
            if not _is_ipv4(address):
                raise PacketError(f"{name} must be a dotted IPv4 address, got {address!r}", _ETHERNET_BYTES)
        if not 1 <= ttl <= 255:
            raise PacketError(f"ttl must be in 1..255, got {ttl}", _ETHERNET_BYTES + 8)
        # Late: it takes 0.4 s, and most of what reads frames, and every command line, builds none.
        from scapy.layers.inet import IP, TCP
        from scapy.layers.l2 import Ether

        flags = "DF" if dont_fragment else 0
        layers = Ether(src=src_mac, dst=dst_mac) / IP(src=src_ip, dst=dst_ip, ttl=ttl, flags=flags) / TCP()
        raw = bytes(layers)
        self._ethernet = raw[:_ETHERNET_BYTES]
        ip = raw[_ETHERNET_BYTES : _ETHERNET_BYTES + _IPV4_BYTES]
        self._fragment = _U16.unpack_from(ip, 6)[0]
        self._ttl = ttl
        self._addresses = ip[12:20]
        addresses = _sum_be(self._addresses)
        self._ip_sum = 0x4500 + self._fragment + (ttl << 8) + _PROTOCOL_TCP + addresses
        self._pseudo_sum = _PROTOCOL_TCP + addresses

    def build(self, segment: Segment, ident: int = 0) -> bytes:
        """Return the frame of `segment` with IPv4 identification `ident`, ECN bits 0, no trailing padding.

        Raises `PacketError` for a field that does not fit into its place.
        """
        payload = segment.payload
        flags = int(segment.flags)
        options = b""
        if segment.mss is not None or segment.window_scale is not None:
            options = _encode_options(segment.mss, segment.window_scale)
        tcp_length = _TCP_BYTES + len(options) + len(payload)
        total_length = _IPV4_BYTES + tcp_length
        tos = segment.dscp << 2
        offset_flags = (5 + (len(options) >> 2)) << 12 | flags
        seq, ack, window = segment.seq, segment.ack, segment.window
        src_port, dst_port = segment.src_port, segment.dst_port
        # A 32-bit field adds as its two halves do: 2**16 = 1 mod 0xFFFF.
        tcp_sum = self._pseudo_sum + tcp_length + src_port + dst_port + seq + ack + offset_flags + window
        tcp_sum += _sum_be(payload)
        if options:
            tcp_sum += _sum_be(options)
        try:
            headers = _HEADERS.pack(
                self._ethernet,
                0x45,
                tos,
                total_length,
                ident,
                self._fragment,
                self._ttl,
                _PROTOCOL_TCP,
                _checksum(self._ip_sum + tos + total_length + ident),
                self._addresses,
                src_port,
                dst_port,
                seq,
                ack,
                offset_flags,
                window,
                _checksum(tcp_sum),
                0,
            )
        except struct.error:
            raise _misfit(segment, ident, total_length) from None
        return b"".join((headers, options, payload))


def parse_frame(frame: bytes | memoryview) -> ParsedFrame | None:
    """Return what `frame` (from the destination MAC on) holds, None where it is not TCP over IPv4.

    One 802.1Q tag and IPv4 options are skipped, unknown TCP options too. Bytes behind the IPv4 total length
    are Ethernet padding and ignored. A wrong checksum is a field of the result. Raises `PacketError`, and
    nothing else, for a frame that is cut off, contradicts itself or is a fragment.
    """
    size = len(frame)
    if size < _ETHERNET_BYTES:
        raise PacketError(f"Ethernet header needs {_ETHERNET_BYTES} bytes, the frame has {size}", size)
    view = memoryview(frame)
    ethertype = _U16.unpack_from(view, 12)[0]
    ip_start = _ETHERNET_BYTES
    vlan = None
    if ethertype == _ETHERTYPE_VLAN:
        if size < _ETHERNET_BYTES + _VLAN_BYTES:
            raise PacketError("802.1Q tag is cut off", size)
        tag, ethertype = struct.unpack_from("!HH", view, _ETHERNET_BYTES)
        vlan = tag & 0xFFF
        ip_start += _VLAN_BYTES
    if ethertype != _ETHERTYPE_IPV4:
        return None
    if size < ip_start + _IPV4_BYTES:
        raise PacketError("IPv4 header is cut off", size)
    (version_length, tos, total_length, ident, fragment, ttl, protocol, _, src, dst) = _IPV4.unpack_from(view, ip_start)
    ip_bytes = (version_length & 0xF) << 2
    if version_length >> 4 != 4:
        raise PacketError(f"EtherType says IPv4, the version field {version_length >> 4}", ip_start)
    if ip_bytes < _IPV4_BYTES:
        raise PacketError(f"IPv4 header length is {ip_bytes}, less than {_IPV4_BYTES}", ip_start)
    end = ip_start + total_length
    if total_length < ip_bytes or end > size:
        room = size - ip_start
        reason = f"IPv4 total length is {total_length}: must be in {ip_bytes}..{room}"
        raise PacketError(reason, ip_start + 2)
    if protocol != _PROTOCOL_TCP:
        return None
    if fragment & _FRAGMENT_BITS:
        raise PacketError("IPv4 fragments are not supported", ip_start + 6)
    tcp_start = ip_start + ip_bytes
    if end < tcp_start + _TCP_BYTES:
        raise PacketError("TCP header is cut off", end)
    (src_port, dst_port, seq, ack, offset_flags, window, _, _) = _TCP.unpack_from(view, tcp_start)
    payload_start = tcp_start + (offset_flags >> 12 << 2)
    if not tcp_start + _TCP_BYTES <= payload_start <= end:
        raise PacketError(f"TCP data offset is {offset_flags >> 12} words", tcp_start + 12)
    mss = scale = None
    if payload_start > tcp_start + _TCP_BYTES:
        mss, scale = _parse_options(view, tcp_start + _TCP_BYTES, payload_start)
    flags = FLAGS_OF[offset_flags & 0xFF]
    segment = Segment(src_port, dst_port, seq, ack, flags, window, bytes(view[payload_start:end]), tos >> 2, mss, scale)
    pseudo = _sum_le(src + dst) + _swap(_PROTOCOL_TCP) + _swap(end - tcp_start)
    return ParsedFrame(
        view[6:12].hex(":"),
        view[:6].hex(":"),
        vlan,
        _dotted(src),
        _dotted(dst),
        ttl,
        ident,
        tos & 3,
        segment,
        _sum_le(view[ip_start:tcp_start]) % 0xFFFF == 0,
        (_sum_le(view[tcp_start:end]) + pseudo) % 0xFFFF == 0,
    )


def _dotted(address: bytes) -> str:
    return f"{address[0]}.{address[1]}.{address[2]}.{address[3]}"


def _swap(word: int) -> int:
    return (word >> 8) | ((word & 0xFF) << 8)


def _encode_options(mss: int | None, window_scale: int | None) -> bytes:
    """Return the TCP options, padded with zeros to whole words as scapy does."""
    options = b""
    if mss is not None:
        if not 0 <= mss <= 0xFFFF:
            raise PacketError(f"mss must be in 0..65535, got {mss}", _ETHERNET_BYTES + 40)
        options += struct.pack("!BBH", 2, 4, mss)
    if window_scale is not None:
        if not 0 <= window_scale <= 0xFF:
            raise PacketError(f"window_scale must be in 0..255, got {window_scale}", _ETHERNET_BYTES + 40)
        options += struct.pack("!BBB", 3, 3, window_scale)
    return options + bytes(-len(options) % 4)


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


def _misfit(segment: Segment, ident: int, total_length: int) -> PacketError:
    """Return the error for the first field that does not fit."""
    ip, tcp = _ETHERNET_BYTES, _ETHERNET_BYTES + _IPV4_BYTES
    fields = (
        ("dscp", segment.dscp, 63, ip + 1),
        ("IPv4 total length", total_length, 0xFFFF, ip + 2),
        ("ident", ident, 0xFFFF, ip + 4),
        ("src_port", segment.src_port, 0xFFFF, tcp),
        ("dst_port", segment.dst_port, 0xFFFF, tcp + 2),
        ("seq", segment.seq, 0xFFFFFFFF, tcp + 4),
        ("ack", segment.ack, 0xFFFFFFFF, tcp + 8),
        ("window", segment.window, 0xFFFF, tcp + 14),
    )
    for name, value, largest, offset in fields:
        if not 0 <= value <= largest:
            return PacketError(f"{name} must be in 0..{largest}, got {value}", offset)
    return PacketError("a field of the segment is not an integer in range", tcp)


def _is_mac(address: str) -> bool:
    parts = address.split(":")
    return len(parts) == 6 and all(len(part) == 2 and _is_number(part, 16, 255) for part in parts)


def _is_ipv4(address: str) -> bool:
    parts = address.split(".")
    return len(parts) == 4 and all(_is_number(part, 10, 255) for part in parts)


def _is_number(text: str, base: int, largest: int) -> bool:
    try:
        return text.isascii() and text.isalnum() and 0 <= int(text, base) <= largest
    except ValueError:
        return False
