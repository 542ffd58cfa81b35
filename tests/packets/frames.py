"""Packets for decoders: whole ones of every make, and what damage makes of them."""

from __future__ import annotations

import random
import struct

from packets.checksum import internet_checksum, sum_be

TAGS = (0x8100, 0x88A8, 0x9100, 0x9200)
LINK_TYPES = (0, 1, 12, 101, 108, 113, 228, 229, 276, 147)


def tcp(
    payload: bytes, source: bytes, destination: bytes, rng: random.Random, partial: bool = False, options: bytes = b""
) -> bytes:
    """A TCP segment; a `partial` checksum holds the pseudo-header's sum only."""
    offset = 5 + len(options) // 4
    header = struct.pack("!HHIIBBHHH", 4000, rng.randrange(65536), rng.getrandbits(32), rng.getrandbits(32),
                         offset << 4, rng.getrandbits(8), rng.getrandbits(16), 0, 0)  # fmt: skip
    segment = header + options + payload
    length = len(segment)
    pseudo = source + destination + struct.pack("!IBBH", length, 0, 0, 6)
    checksum = sum_be(pseudo) or 0xFFFF if partial else internet_checksum(pseudo + segment + b"\0" * (length & 1))
    return segment[:16] + struct.pack("!H", checksum) + segment[18:]


def roce(payload: bytes, rng: random.Random, port: int = 4791) -> bytes:
    """A UDP datagram with a base transport header; the iCRC is not right."""
    pad = -len(payload) % 4
    bth = bytes([rng.getrandbits(8), rng.getrandbits(8) & 0xCF | pad << 4]) + rng.randbytes(10)
    body = bth + payload + bytes(pad) + b"\0\0\0\0"
    return struct.pack("!HHHH", 50000, port, 8 + len(body), rng.choice((0, 0x1234))) + body


def ipv4(protocol: int, carried: bytes, source: bytes, destination: bytes, rng: random.Random, zero: bool) -> bytes:
    options = rng.choice((b"", b"", b"", b"\1\1\1\0", b"\x07\x0b\4" + bytes(9)))
    total = 0 if zero else 20 + len(options) + len(carried)
    fragment = rng.choice((0, 0x4000, 0x4000, 0x4000, 0x2000 if rng.random() < 0.1 else 0))
    header = struct.pack("!BBHHHBBH", 0x45 + len(options) // 4, rng.getrandbits(8), total & 0xFFFF, 7, fragment, 64,
                         protocol, 0) + source + destination + options  # fmt: skip
    checksum = 0 if zero and rng.random() < 0.3 else internet_checksum(header)
    return header[:10] + struct.pack("!H", checksum) + header[12:] + carried


def ipv6(protocol: int, carried: bytes, source: bytes, destination: bytes, rng: random.Random, zero: bool) -> bytes:
    extensions: list[tuple[int, bytes]] = []
    if zero and rng.random() < 0.5:
        extensions.append((0, b"\xc2\4JJJJ"))
    for kind in rng.sample((0, 43, 60, 135, 44), rng.choice((0, 0, 0, 1, 2))):
        if kind == 44:
            extensions.append((kind, struct.pack("!HI", rng.choice((0, 0, 8, 1)), 5)))
        else:
            extensions.append((kind, rng.choice((b"\0" * 6, b"\1\4" + bytes(4), b"\1\14" + bytes(12)))))
    parts, following = [carried], protocol
    for kind, body in reversed(extensions):
        parts.append(bytes([following, 0 if kind == 44 else (len(body) + 2) // 8 - 1 if len(body) > 6 else 0]) + body)
        following = kind
    inner = b"".join(reversed(parts))
    inner = inner.replace(b"\xc2\4JJJJ", b"\xc2\4" + struct.pack("!I", len(inner)), 1)
    length = 0 if zero else len(inner)
    return (
        struct.pack("!IHBB", 6 << 28 | rng.getrandbits(28), length & 0xFFFF, following, 64)
        + source
        + destination
        + inner
    )


def packet(rng: random.Random, link_type: int, size: int = 80) -> bytes:
    """A whole packet of a link type, of a random make."""
    version = {228: 4, 229: 6}.get(link_type, rng.choice((4, 4, 6)))
    width = 4 if version == 4 else 16
    source, destination = rng.randbytes(width), rng.randbytes(width)
    payload = rng.randbytes(rng.randrange(size))
    kind = rng.randrange(8)
    if kind < 5:
        protocol, carried = 6, tcp(payload, source, destination, rng, kind == 1, rng.choice((b"", b"\1\1\1\0")))
    elif kind < 7:
        protocol, carried = 17, roce(payload, rng, rng.choice((4791, 4791, 53)))
    else:
        protocol, carried = rng.randrange(256), payload
    build = ipv4 if version == 4 else ipv6
    inner = build(protocol, carried, source, destination, rng, rng.random() < 0.15)
    ethertype = struct.pack("!H", 0x0800 if version == 4 else 0x86DD)
    if rng.random() < 0.05:
        ethertype = rng.choice((b"\x08\x06", b"\x00\x26", b"\x89\x15"))
    tags = b"".join(rng.randbytes(2) + struct.pack("!H", rng.choice(TAGS)) for _ in range(rng.choice((0, 0, 1, 2, 5))))
    # A tag's own EtherType stands before it: shift them by one.
    chain = ethertype if not tags else struct.pack("!H", rng.choice(TAGS)) + tags[:-2] + ethertype
    if link_type == 1:
        return rng.randbytes(12) + chain + inner
    if link_type == 113:
        return rng.randbytes(14) + chain + inner
    if link_type == 276:
        return chain[:2] + rng.randbytes(18) + chain[2:] + inner
    return (rng.randbytes(4) if link_type in (0, 108) else b"") + inner


def hostile(rng: random.Random) -> tuple[bytes, int, int]:
    """A packet that may be damaged, its length on the wire, and its link type."""
    link_type = rng.choice(LINK_TYPES) if rng.random() < 0.7 else 1
    data = bytearray(packet(rng, link_type) if rng.random() < 0.95 else rng.randbytes(rng.randrange(100)))
    wire = len(data)
    if rng.random() < 0.3 and data:
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(min(len(data), 90))] = rng.choice((0, 1, 6, 17, 44, 0x45, 0xFF, rng.getrandbits(8)))
    if rng.random() < 0.3:
        del data[rng.randrange(len(data) + 1) :]
        wire = rng.choice((wire, len(data)))
    elif rng.random() < 0.1:
        data += rng.randbytes(rng.randrange(1, 9))
    return bytes(data), wire, link_type
