"""Reading pcapng: any number of sections, each in its own byte order.

Format: https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html (obsolete Packet Block: its appendix A).
Blocks without packets (name resolution, statistics, decryption secrets, custom, unknown) are skipped unread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from capture.model import Interface, Packet, make_packet
from capture.source import CUT_FIX, MAX_BLOCK_BYTES, ByteSource

SECTION_HEADER = 0x0A0D0D0A
INTERFACE_DESCRIPTION = 1
OBSOLETE_PACKET = 2
SIMPLE_PACKET = 3
ENHANCED_PACKET = 6
BYTE_ORDER_MAGIC = 0x1A2B3C4D

OPTION_END = 0
OPTION_IF_NAME = 2
OPTION_IF_TSRESOL = 9
OPTION_IF_TSOFFSET = 14

MAX_INTERFACES = 1 << 16
"""Most interfaces of a section, so that a file of nothing else cannot fill the memory."""

_FRAME_BYTES = 12  # type and length before, length after the body
_MAX_NAME_BYTES = 255
_DAMAGE_FIX = f"the file is damaged from here on; {CUT_FIX}"


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of block that is read."""

    name: str
    least_bytes: int
    """Size of a block with nothing variable in it."""


_KINDS = {
    SECTION_HEADER: _Kind("a Section Header Block", 28),
    INTERFACE_DESCRIPTION: _Kind("an Interface Description Block", 20),
    OBSOLETE_PACKET: _Kind("a Packet Block", 32),
    SIMPLE_PACKET: _Kind("a Simple Packet Block", 16),
    ENHANCED_PACKET: _Kind("an Enhanced Packet Block", 32),
}


class _Clock(NamedTuple):
    """What a packet needs of its interface: ``ticks * multiplier // divisor + offset_ns`` is its time."""

    link_type: int
    multiplier: int
    divisor: int
    offset_ns: int


class PcapngReader:
    """The packets of one pcapng file."""

    def __init__(self, source: ByteSource) -> None:
        """Read `source`, which is at the beginning of a Section Header Block."""
        self._source = source
        self._order = "<"
        self.interfaces: list[Interface] = []
        """Interfaces of the present section, as far as it was read."""
        self._clocks: list[_Clock] = []

    def packets(self) -> Iterator[Packet]:
        """Yield all packets.

        Raises:
            CaptureError: after the whole packets before the damage.
            OSError: the input cannot be read.
        """
        source, clocks = self._source, self._clocks
        number = position = 0
        buffer, end = source.buffer, len(source.buffer)
        head = tail = enhanced = struct.Struct("<II")
        while True:
            if end - position < _FRAME_BYTES:
                end = source.refill(position, _FRAME_BYTES)
                buffer, position = source.buffer, 0
                if end < _FRAME_BYTES:
                    break
            kind, length = head.unpack_from(buffer, position)
            if kind == SECTION_HEADER:  # which reads the same in either byte order
                self._order = self._byte_order(position)
                head, tail = struct.Struct(f"{self._order}II"), struct.Struct(f"{self._order}I")
                enhanced = struct.Struct(f"{self._order}8xIIIII")
                kind, length = head.unpack_from(buffer, position)
            if length > MAX_BLOCK_BYTES or length < _FRAME_BYTES or length & 3:
                raise self._bad_length(position, kind, length)
            if end - position < length:
                if kind not in _KINDS:
                    self._skip(position, kind, length)
                    buffer, end, position = source.buffer, len(source.buffer), 0
                    continue
                end = source.refill(position, length)
                buffer, position = source.buffer, 0
                if end < length:
                    raise source.truncated(source.start, _name(kind), end, length)
            stop = position + length
            (repeated,) = tail.unpack_from(buffer, stop - 4)
            if repeated != length:
                raise self._lengths_disagree(source.start + position, kind, length, repeated)
            if kind == ENHANCED_PACKET and length >= 32:
                interface, high, low, captured, original = enhanced.unpack_from(buffer, position)
                if captured > length - 32 or captured > original or interface >= len(clocks):
                    raise self._bad_packet(position, kind, interface, captured, original, length - 32)
                link_type, multiplier, divisor, offset_ns = clocks[interface]
                begin = position + 28
                number += 1
                yield make_packet(
                    number,
                    (high << 32 | low) * multiplier // divisor + offset_ns,
                    buffer[begin : begin + captured],
                    original,
                    interface,
                    link_type,
                    source.start + position,
                )
            elif kind in _KINDS:
                if length < _KINDS[kind].least_bytes:
                    raise self._bad_length(position, kind, length)
                packet = self._rare_block(position, kind, stop, number + 1)
                if packet is not None:
                    number += 1
                    yield packet
            position = stop
        if end:
            raise source.truncated(source.start, "a block header", end, _FRAME_BYTES)
        source.check_end()

    def _byte_order(self, position: int) -> str:
        magic = self._source.buffer[position + 8 : position + 12]
        for order in "<>":
            if magic == struct.pack(f"{order}I", BYTE_ORDER_MAGIC):
                return order
        problem = f"a Section Header Block whose byte-order magic is {magic.hex()}, not 1a2b3c4d or 4d3c2b1a"
        raise self._source.error(self._source.start + position + 8, problem, _DAMAGE_FIX)

    def _rare_block(self, position: int, kind: int, stop: int, number: int) -> Packet | None:
        """Read the block of `kind` at `position`, which ends at `stop`; return its packet if it holds one."""
        if kind == SECTION_HEADER:
            self._section(position)
            return None
        if kind == INTERFACE_DESCRIPTION:
            self._interface(position, stop)
            return None
        buffer = self._source.buffer
        if kind == SIMPLE_PACKET:
            (original,) = struct.unpack_from(f"{self._order}I", buffer, position + 8)
            begin, interface, ticks = position + 12, 0, None
            # The captured length is not stored: it is what the interface's snaplen leaves of the original one.
            snaplen = self.interfaces[0].snaplen if self.interfaces else 0
            captured = min(original, snaplen) if snaplen else original
        else:
            interface, high, low, captured, original = struct.unpack_from(f"{self._order}H2xIIII", buffer, position + 8)
            begin, ticks = position + 28, high << 32 | low
        room = stop - 4 - begin
        if captured > room or captured > original or interface >= len(self._clocks):
            raise self._bad_packet(position, kind, interface, captured, original, room)
        clock = self._clocks[interface]
        return make_packet(
            number,
            0 if ticks is None else ticks * clock.multiplier // clock.divisor + clock.offset_ns,
            buffer[begin : begin + captured],
            original,
            interface,
            clock.link_type,
            self._source.start + position,
        )

    def _section(self, position: int) -> None:
        major, minor = struct.unpack_from(f"{self._order}HH", self._source.buffer, position + 12)
        if major != 1:
            problem = f"a section of pcapng version {major}.{minor}, and only 1.x is known"
            raise self._source.error(self._source.start + position + 12, problem, _DAMAGE_FIX)
        self.interfaces.clear()
        self._clocks.clear()

    def _interface(self, position: int, stop: int) -> None:
        source, order = self._source, self._order
        if len(self._clocks) >= MAX_INTERFACES:
            problem = f"more than {MAX_INTERFACES} interfaces in one section"
            raise source.error(source.start + position, problem, _DAMAGE_FIX)
        link_type, snaplen = struct.unpack_from(f"{order}H2xI", source.buffer, position + 8)
        name, resolution, offset_s = b"", 6, 0
        for code, begin, length in self._options(position + 16, stop - 4):
            if code == OPTION_IF_NAME:
                name = source.buffer[begin : begin + min(length, _MAX_NAME_BYTES)]
            elif code == OPTION_IF_TSRESOL:
                self._check_option(begin, "if_tsresol", length, 1)
                resolution = source.buffer[begin]
            elif code == OPTION_IF_TSOFFSET:
                self._check_option(begin, "if_tsoffset", length, 8)
                (offset_s,) = struct.unpack_from(f"{order}q", source.buffer, begin)
        self.interfaces.append(Interface(name.decode("utf-8", "replace"), link_type, snaplen))
        self._clocks.append(_clock(link_type, resolution, offset_s))

    def _options(self, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield code, position and length of each option between `position` and `stop`."""
        source = self._source
        while stop - position >= 4:
            code, length = struct.unpack_from(f"{self._order}HH", source.buffer, position)
            if code == OPTION_END:
                return
            if length > stop - position - 4:
                problem = f"option {code} of {length} bytes, more than its block has left ({stop - position - 4})"
                raise source.error(source.start + position, problem, _DAMAGE_FIX)
            yield code, position + 4, length
            position += 4 + (length + 3 & ~3)

    def _check_option(self, begin: int, name: str, length: int, expected: int) -> None:
        if length != expected:
            problem = f"option {name} of {length} bytes instead of {expected}"
            raise self._source.error(self._source.start + begin - 4, problem, _DAMAGE_FIX)

    def _skip(self, position: int, kind: int, length: int) -> None:
        """Go to the end of the block at `position`, which is not all in the buffer, and check its second length."""
        source = self._source
        offset = source.start + position
        source.skip(position, length - 4)
        have = source.refill(0, 4)
        if have < 4:
            raise source.truncated(offset, _name(kind), source.start + have - offset, length)
        (repeated,) = struct.unpack_from(f"{self._order}I", source.buffer)
        if repeated != length:
            raise self._lengths_disagree(offset, kind, length, repeated)
        source.refill(4, 0)

    def _bad_length(self, position: int, kind: int, length: int) -> Exception:
        least = _KINDS[kind].least_bytes if kind in _KINDS else _FRAME_BYTES
        problem = f"{_name(kind)} of {length} bytes: it must be a multiple of 4 between {least} and {MAX_BLOCK_BYTES}"
        return self._source.error(self._source.start + position, problem, _DAMAGE_FIX)

    def _lengths_disagree(self, offset: int, kind: int, length: int, repeated: int) -> Exception:
        problem = f"{_name(kind)} whose length is {length} at its beginning and {repeated} at its end"
        return self._source.error(offset, problem, _DAMAGE_FIX)

    def _bad_packet(
        self, position: int, kind: int, interface: int, captured: int, original: int, room: int
    ) -> Exception:
        if interface >= len(self._clocks):
            problem = f"interface {interface}, but the section has described {len(self._clocks)} so far"
        elif captured > room:
            problem = f"{captured} captured bytes, but room for {room}"
        else:
            problem = f"more bytes captured ({captured}) than it had on the wire ({original})"
        problem = f"{_name(kind)} with {problem}"
        return self._source.error(self._source.start + position, problem, _DAMAGE_FIX)


def _name(kind: int) -> str:
    return _KINDS[kind].name if kind in _KINDS else f"a block of type 0x{kind:08x}"


def _clock(link_type: int, resolution: int, offset_s: int) -> _Clock:
    """Return the clock of an if_tsresol byte: a negative power of 10, or of 2 where the top bit is set."""
    exponent = resolution & 0x7F
    offset_ns = offset_s * 1_000_000_000
    if resolution & 0x80:
        return _Clock(link_type, 1_000_000_000, 1 << exponent, offset_ns)
    if exponent <= 9:
        return _Clock(link_type, 10 ** (9 - exponent), 1, offset_ns)
    return _Clock(link_type, 1, 10 ** (exponent - 9), offset_ns)
