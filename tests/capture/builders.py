"""Captures made field by field, in either byte order, right or wrong: independent of the project's writers."""

from __future__ import annotations

import io
import struct
from typing import BinaryIO, cast

from capture.errors import CaptureError
from capture.model import Packet
from capture.reader import CaptureReader

MICRO, NANO = 0xA1B2C3D4, 0xA1B23C4D


def pcap_header(order: str = "<", magic: int = MICRO, link: int = 1, snaplen: int = 65535, minor: int = 4) -> bytes:
    return struct.pack(f"{order}IHHiIII", magic, 2, minor, 0, 0, snaplen, link)


def record(
    data: bytes,
    seconds: int = 1,
    units: int = 0,
    order: str = "<",
    captured: int | None = None,
    original: int | None = None,
) -> bytes:
    """A pcap record; `captured` and `original` are lies unless they are left out."""
    captured = len(data) if captured is None else captured
    original = captured if original is None else original
    return struct.pack(f"{order}IIII", seconds, units, captured, original) + data


def block(kind: int, body: bytes, order: str = "<", length: int | None = None, repeated: int | None = None) -> bytes:
    """A pcapng block; `length` and `repeated` are lies unless they are left out."""
    body += bytes(-len(body) % 4)
    length = 12 + len(body) if length is None else length
    repeated = length if repeated is None else repeated
    return struct.pack(f"{order}II", kind, length) + body + struct.pack(f"{order}I", repeated)


def section(order: str = "<", major: int = 1, minor: int = 0, options: bytes = b"") -> bytes:
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, major, minor, -1) + options, order)


def option(code: int, value: bytes, order: str = "<", length: int | None = None) -> bytes:
    head = struct.pack(f"{order}HH", code, len(value) if length is None else length)
    return head + value + bytes(-len(value) % 4)


def interface(order: str = "<", link: int = 1, snaplen: int = 0, options: bytes = b"") -> bytes:
    return block(1, struct.pack(f"{order}HHI", link, 0, snaplen) + options, order)


def enhanced(
    data: bytes,
    ticks: int = 1,
    index: int = 0,
    order: str = "<",
    captured: int | None = None,
    original: int | None = None,
    options: bytes = b"",
) -> bytes:
    captured = len(data) if captured is None else captured
    original = captured if original is None else original
    head = struct.pack(f"{order}IIIII", index, ticks >> 32, ticks & 0xFFFFFFFF, captured, original)
    return block(6, head + data + bytes(-len(data) % 4) + options, order)


def simple(data: bytes, original: int, order: str = "<") -> bytes:
    return block(3, struct.pack(f"{order}I", original) + data, order)


def obsolete(data: bytes, ticks: int = 1, index: int = 0, order: str = "<", original: int | None = None) -> bytes:
    original = len(data) if original is None else original
    head = struct.pack(f"{order}HHIIII", index, 7, ticks >> 32, ticks & 0xFFFFFFFF, len(data), original)
    return block(2, head + data, order)


def read(content: bytes) -> list[Packet]:
    """Read all of `content`, which must be whole."""
    with CaptureReader(io.BytesIO(content), "test") as reader:
        return list(reader)


def read_what_can_be(content: bytes) -> tuple[list[Packet], CaptureError | None]:
    """Read `content` up to its end or up to damage."""
    packets: list[Packet] = []
    try:
        with CaptureReader(io.BytesIO(content), "test") as reader:
            for packet in reader:
                packets.append(packet)
    except CaptureError as error:
        return packets, error
    return packets, None


class _Pieces(io.RawIOBase):
    """A stream that returns as little as it likes."""

    def __init__(self, content: bytes, sizes: list[int]) -> None:
        self.content, self.sizes = io.BytesIO(content), list(sizes)

    def read(self, size: int = -1) -> bytes:
        self.sizes.append(self.sizes.pop(0))
        return self.content.read(min(size, self.sizes[0]))


def in_pieces(content: bytes, sizes: list[int]) -> BinaryIO:
    """A stream of `content` that returns at most the next of `sizes`, over and over, whatever it is asked for."""
    return cast(BinaryIO, _Pieces(content, sizes))
