"""Messages on the wire: a header of six 64-bit words, then the payload (gloo/transport/tcp/pair.h, ``Op``).

No magic, no checksum, no version; words are in the sender's byte order, which is little-endian on all that is used.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import NamedTuple

HEADER_BYTES = 48
"""Header, which is the whole message but for data."""
SEQUENCE_BYTES = 8
"""What the side that connects sends first of all: a signed number, its rank (gloo/transport/tcp/device.cc)."""
MAX_LENGTH = 1 << 40
"""Bytes of one message at most; what claims more is no header."""
_HEADER = struct.Struct("<6Q")
_SEQUENCE = struct.Struct("<q")
_CANDIDATE = re.compile(rb"(?s)(?=.{8}[\x01-\x03]\0{10}.{4}[\x01-\x08]\0{8}.{8}\0{8})")


class Opcode(IntEnum):
    """Messages that PyTorch's collectives use."""

    DATA = 1
    """SEND_UNBOUND_BUFFER: `Header.length` bytes of payload follow."""
    SEND_READY = 2
    """Announces a DATA message in its own direction."""
    RECV_READY = 3
    """Asks for a DATA message in the other direction."""


class Prefix(IntEnum):
    """Collective that a slot belongs to (gloo/types.h)."""

    GATHER = 1
    ALLGATHER = 2
    REDUCE = 3
    ALLREDUCE = 4
    SCATTER = 5
    BROADCAST = 6
    BARRIER = 7
    ALLTOALL = 8


class Header(NamedTuple):
    """One header."""

    opcode: Opcode
    """What it is."""
    slot: int
    """Collective: see `prefix_of` and `tag_of`."""
    length: int
    """Bytes of the DATA message that it is, or announces."""

    @property
    def message_bytes(self) -> int:
        """Bytes of the whole message."""
        return HEADER_BYTES + (self.length if self.opcode is Opcode.DATA else 0)


_OPCODES = {int(opcode): opcode for opcode in Opcode}


def parse_header(data: bytes, at: int = 0) -> Header | None:
    """Return the header at `data`[at], None where there is none that a collective could send."""
    if len(data) - at < HEADER_BYTES:
        return None
    size, code, slot, offset, length, remote_offset = _HEADER.unpack_from(data, at)
    opcode = _OPCODES.get(code)
    if opcode is None or offset or remote_offset or length > MAX_LENGTH:
        return None
    header = Header(opcode, slot, length)
    return header if size == header.message_bytes else None


def build_header(header: Header) -> bytes:
    """Return the bytes of a header."""
    return _HEADER.pack(header.message_bytes, header.opcode, header.slot, 0, header.length, 0)


def find_header(data: bytes, at: int = 0) -> int:
    """Return where the first header of a collective at or behind `data`[at] begins, -1 without one.

    A header has more than 28 bytes of one possible value each, so that no payload passes for one by chance.
    """
    for found in _CANDIDATE.finditer(data, at):
        header = parse_header(data, found.start())
        if header is not None and is_collective(header.slot):
            return found.start()
    return -1


def parse_sequence(data: bytes) -> int | None:
    """Return the number that the side that connects begins with, None where no rank can be meant."""
    if len(data) < SEQUENCE_BYTES:
        return None
    (number,) = _SEQUENCE.unpack_from(data)
    return int(number) if 0 <= number < 1 << 24 else None


def build_sequence(number: int) -> bytes:
    """Return the bytes that the side that connects begins with."""
    return _SEQUENCE.pack(number)


def build_slot(prefix: Prefix, tag: int) -> int:
    """Return the slot of a process group's collective number `tag`."""
    return prefix << 56 | tag << 24


def prefix_of(slot: int) -> int:
    """Return the slot's prefix, a `Prefix` in collectives."""
    return slot >> 56


def tag_of(slot: int) -> int:
    """Return the slot's tag: the number of its collective in the process group, in order of issue."""
    return slot >> 24 & 0xFFFFFFFF


def is_collective(slot: int) -> bool:
    """Tell whether it can be a collective's; point-to-point messages have the user's tag as slot."""
    return 1 <= prefix_of(slot) <= len(Prefix) and not slot & 0xFFFFFF
