"""The invariant CRC that ends every RoCEv2 packet (IBTA volume 1, annex A17.3.3 and 7.8.1)."""

from __future__ import annotations

import struct
import zlib

_LRH = b"\xff" * 8  # RoCEv2 has no LRH; the CRC starts over 64 one-bits in its place


def icrc(network: bytes | memoryview, udp: bytes | memoryview, body: bytes | memoryview) -> int:
    """Return the iCRC; it travels least significant byte first.

    Args:
        network: the IP header, without options or extension headers (20 or 40 bytes).
        udp: the UDP header (8 bytes).
        body: from the BTH up to the iCRC, without it (at least 12 bytes).

    Fields that routers change are taken as ones: TOS, TTL and checksum (IPv4); traffic class, flow label and hop limit
    (IPv6); the UDP checksum; FECN, BECN and the reserved bits of the BTH.
    """
    if len(network) == 20:
        masked = b"".join((network[:1], b"\xff", network[2:8], b"\xff", network[9:10], b"\xff\xff", network[12:20]))
    else:
        first = bytes((network[0] | 0x0F,))
        masked = b"".join((first, b"\xff\xff\xff", network[4:7], b"\xff", network[8:40]))
    head = b"".join((_LRH, masked, udp[:6], b"\xff\xff", body[:4], b"\xff", body[5:12]))
    return zlib.crc32(body[12:], zlib.crc32(head))


def icrc_bytes(network: bytes, udp: bytes, body: bytes) -> bytes:
    """Return the iCRC as its four bytes on the wire; see `icrc`."""
    return struct.pack("<I", icrc(network, udp, body))
