"""Ethernet/IPv4/TCP frames for segments, byte for byte as scapy builds them: only varying fields are written."""

from __future__ import annotations

import struct

from packets.checksum import complement, sum_be
from packets.segment import Segment

_ETHERNET_BYTES = 14
_IPV4_BYTES = 20
_TCP_BYTES = 20
_PROTOCOL_TCP = 6

# addresses and EtherType; then version, TOS, length, id, flags and offset, TTL, protocol, checksum,
# addresses; then ports, seq, ack, data offset and flags, window, checksum, urgent pointer
_HEADERS = struct.Struct("!14s BBHHHBBH8s HHIIHHHH")
_U16 = struct.Struct("!H")


class PacketError(Exception):
    """A frame is not a complete Ethernet/IPv4/TCP packet, or a segment does not fit into one."""

    def __init__(self, reason: str, offset: int) -> None:
        """Keep the `reason` and the `offset` in bytes from the start of the frame."""
        self.reason = reason
        self.offset = offset
        super().__init__(f"{reason} (at byte {offset} of the frame)")


class FrameTemplate:
    """Builds the frames of one direction of one pair of hosts.

    Constant fields are laid out once, by scapy; `build` writes the rest.
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
        """Lay out the constant fields; raises `PacketError` for an invalid address."""
        for name, address in (("src_mac", src_mac), ("dst_mac", dst_mac)):
            if not _is_mac(address):
                raise PacketError(f"{name} must be six hexadecimal bytes with colons, got {address!r}", 0)
        for name, address in (("src_ip", src_ip), ("dst_ip", dst_ip)):
            if not _is_ipv4(address):
                raise PacketError(f"{name} must be a dotted IPv4 address, got {address!r}", _ETHERNET_BYTES)
        if not 1 <= ttl <= 255:
            raise PacketError(f"ttl must be in 1..255, got {ttl}", _ETHERNET_BYTES + 8)
        # Imported here: it takes 0.4 s, and most code that reads frames, and every command line, builds none.
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
        addresses = sum_be(self._addresses)
        self._ip_sum = 0x4500 + self._fragment + (ttl << 8) + _PROTOCOL_TCP + addresses
        self._pseudo_sum = _PROTOCOL_TCP + addresses

    def build(self, segment: Segment, ident: int = 0) -> bytes:
        """Return the frame of `segment` with IPv4 identification `ident`, ECN bits 0, no trailing padding.

        Raises `PacketError` for a field that is out of range.
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
        # A 32-bit field adds like its two halves: 2**16 = 1 mod 0xFFFF.
        tcp_sum = self._pseudo_sum + tcp_length + src_port + dst_port + seq + ack + offset_flags + window
        tcp_sum += sum_be(payload)
        if options:
            tcp_sum += sum_be(options)
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
                complement(self._ip_sum + tos + total_length + ident),
                self._addresses,
                src_port,
                dst_port,
                seq,
                ack,
                offset_flags,
                window,
                complement(tcp_sum),
                0,
            )
        except struct.error:
            raise _range_error(segment, ident, total_length) from None
        return b"".join((headers, options, payload))


def _encode_options(mss: int | None, window_scale: int | None) -> bytes:
    """Return the TCP options, padded with zeros to whole words like scapy."""
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


def _range_error(segment: Segment, ident: int, total_length: int) -> PacketError:
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
