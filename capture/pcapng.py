"""Reading pcapng: any number of sections, each in its own byte order.

Format: https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html (obsolete Packet Block: its appendix A).
Blocks without packets (name resolution, statistics, decryption secrets, custom, unknown) are skipped unread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from capture.errors import CaptureError
from capture.model import Interface
from capture.source import CUT_FIX, ByteSource
from capture.walk import (
    ENHANCED_PACKET,
    FULL,
    LOOK,
    MAX_BLOCK_BYTES,
    UNSAFE,
    Table,
    new_table,
    scan_pcapng,
)

SECTION_HEADER = 0x0A0D0D0A
INTERFACE_DESCRIPTION = 1
OBSOLETE_PACKET = 2
SIMPLE_PACKET = 3
BYTE_ORDER_MAGIC = 0x1A2B3C4D

OPTION_END = 0
OPTION_IF_NAME = 2
OPTION_IF_TSRESOL = 9
OPTION_IF_TSOFFSET = 14

MAX_INTERFACES = 1 << 16
"""Most interfaces of a section, so that a file full of them cannot fill the memory."""

_FRAME_BYTES = 12  # type and length before, length after the body
_MAX_NAME_BYTES = 255
_MAX_TIME_NS = (1 << 63) - 1
_DAMAGE_FIX = f"the file is damaged from here on; {CUT_FIX}"


@dataclass(frozen=True, slots=True)
class _Kind:
    """A supported kind of block."""

    name: str
    least_bytes: int
    """Size of a block without variable parts."""


_KINDS = {
    SECTION_HEADER: _Kind("a Section Header Block", 28),
    INTERFACE_DESCRIPTION: _Kind("an Interface Description Block", 20),
    OBSOLETE_PACKET: _Kind("a Packet Block", 32),
    SIMPLE_PACKET: _Kind("a Simple Packet Block", 16),
    ENHANCED_PACKET: _Kind("an Enhanced Packet Block", 32),
}


class _Clock(NamedTuple):
    """Clock of an interface: the time of a packet is ``ticks * multiplier // divisor + offset_ns``."""

    link_type: int
    multiplier: int
    divisor: int
    offset_ns: int

    @property
    def row(self) -> tuple[int, int, int, int]:
        """The clock for a scan, limited to values that cannot exceed 64 bits."""
        safe = self.divisor <= 1 << 33 and abs(self.offset_ns) < 1 << 62
        return (self.link_type, self.multiplier, self.divisor, self.offset_ns) if safe else (0, 1, UNSAFE, 0)


class PcapngReader:
    """The packets of one pcapng file."""

    def __init__(self, source: ByteSource) -> None:
        """Read `source`, positioned at a Section Header Block."""
        self._source = source
        self._order = "<"
        self.interfaces: list[Interface] = []
        """Interfaces of the current section read so far."""
        self.odd = np.zeros(2, np.int64)
        """See `capture.pcap.PcapReader`."""
        self._clocks: list[_Clock] = []
        self._rows = np.zeros((0, 4), np.int64)

    def tables(self) -> Iterator[Table]:
        """Yield the packets in the source's current buffer, until there are none.

        Raises:
            CaptureError: after the complete packets before the damage.
            OSError: the input cannot be read.
        """
        source = self._source
        position = 0
        while True:
            table, count, need = new_table(), 0, LOOK
            error = None
            while need == LOOK and count < table.shape[1]:
                big = self._order == ">"
                clocks = self._rows[: len(self._clocks)]
                count, position, need = scan_pcapng(source.buffer, position, count, big, clocks, table, self.odd)
                if need == LOOK:
                    if count and self._kind(position) == SECTION_HEADER:
                        break  # `interfaces` are those of the packets that were returned last
                    try:
                        position, count, need = self._read_block(position, table, count)
                    except CaptureError as caught:
                        error = caught
                        break
            if count:
                yield table[:, :count]
            if error is not None:
                raise error
            if need in (FULL, LOOK):
                continue
            kind = self._kind(position)
            if need > _FRAME_BYTES and kind not in _KINDS:
                self._skip(position, kind, need)
                position = 0
                continue
            have = source.refill(position, need)
            position = 0
            if not have:
                source.check_end()
                return
            if have < need:
                what = _name(self._kind(0)) if need > _FRAME_BYTES else "a block header"
                raise source.truncated(source.start, what, have, need)

    def _kind(self, position: int) -> int:
        view = self._source.view
        return int(struct.unpack_from(f"{self._order}I", view, position)[0]) if position + 4 <= len(view) else -1

    def _read_block(self, position: int, table: Table, count: int) -> tuple[int, int, int]:
        """Read the block at `position`, whose header is in the buffer.

        Returns:
            Its end (or its start, if more is needed), the number of filled rows of `table`, and the bytes that it
            needs, `LOOK` for none.
        """
        source = self._source
        view = source.view
        kind, length = struct.unpack_from(f"{self._order}II", view, position)
        if kind == SECTION_HEADER:  # which reads the same in either byte order
            self._order = self._byte_order(position)
            kind, length = struct.unpack_from(f"{self._order}II", view, position)
        if length > MAX_BLOCK_BYTES or length < _FRAME_BYTES or length & 3:
            raise self._bad_length(position, kind, length)
        stop = position + length
        if stop > len(view):
            return position, count, length
        (repeated,) = struct.unpack_from(f"{self._order}I", view, stop - 4)
        if repeated != length:
            raise self._lengths_disagree(source.start + position, kind, length, repeated)
        if length < _KINDS[kind].least_bytes:
            raise self._bad_length(position, kind, length)
        if kind == SECTION_HEADER:
            self._section(position)
        elif kind == INTERFACE_DESCRIPTION:
            self._interface(position, stop)
        else:
            table[:, count] = self._packet(position, kind, stop)
            count += 1
        return stop, count, LOOK

    def _byte_order(self, position: int) -> str:
        magic = self._source.buffer[position + 8 : position + 12].tobytes()
        for order in "<>":
            if magic == struct.pack(f"{order}I", BYTE_ORDER_MAGIC):
                return order
        problem = f"a Section Header Block whose byte-order magic is {magic.hex()}, not 1a2b3c4d or 4d3c2b1a"
        raise self._source.error(self._source.start + position + 8, problem, _DAMAGE_FIX)

    def _packet(self, position: int, kind: int, stop: int) -> tuple[int, ...]:
        """Return the row of a `Table` for the packet block at `position`, which ends at `stop`."""
        view, order = self._source.view, self._order
        begin, ticks = position + 28, 0
        if kind == SIMPLE_PACKET:
            (original,) = struct.unpack_from(f"{order}I", view, position + 8)
            begin, interface = position + 12, 0
            # The captured length is not stored: it is the original one limited by the interface's snaplen.
            snaplen = self.interfaces[0].snaplen if self.interfaces else 0
            captured = min(original, snaplen) if snaplen else original
        else:
            fields = "H2xIIII" if kind == OBSOLETE_PACKET else "IIIII"
            interface, high, low, captured, original = struct.unpack_from(f"{order}{fields}", view, position + 8)
            ticks = high << 32 | low
        room = stop - 4 - begin
        if captured > room or interface >= len(self._clocks):
            raise self._bad_packet(position, kind, interface, captured, room)
        clock = self._clocks[interface]
        self.odd[0] += captured > original
        time_ns = 0 if kind == SIMPLE_PACKET else ticks * clock.multiplier // clock.divisor + clock.offset_ns
        time_ns = max(-_MAX_TIME_NS, min(_MAX_TIME_NS, time_ns))
        return begin, captured, original, time_ns, clock.link_type, position, interface

    def _section(self, position: int) -> None:
        major, minor = struct.unpack_from(f"{self._order}HH", self._source.view, position + 12)
        if major != 1:
            problem = f"a section of pcapng version {major}.{minor}, but only 1.x is supported"
            raise self._source.error(self._source.start + position + 12, problem, _DAMAGE_FIX)
        self.interfaces.clear()
        self._clocks.clear()

    def _interface(self, position: int, stop: int) -> None:
        source, order = self._source, self._order
        if len(self._clocks) >= MAX_INTERFACES:
            problem = f"more than {MAX_INTERFACES} interfaces in one section"
            raise source.error(source.start + position, problem, _DAMAGE_FIX)
        link_type, snaplen = struct.unpack_from(f"{order}H2xI", source.view, position + 8)
        name, resolution, offset_s = b"", 6, 0
        for code, begin, length in self._options(position + 16, stop - 4):
            if code == OPTION_IF_NAME:
                name = source.buffer[begin : begin + min(length, _MAX_NAME_BYTES)].tobytes()
            elif code == OPTION_IF_TSRESOL:
                self._check_option(begin, "if_tsresol", length, 1)
                resolution = source.view[begin]
            elif code == OPTION_IF_TSOFFSET:
                self._check_option(begin, "if_tsoffset", length, 8)
                (offset_s,) = struct.unpack_from(f"{order}q", source.view, begin)
        self.interfaces.append(Interface(name.decode("utf-8", "replace"), link_type, snaplen))
        self._clocks.append(_clock(link_type, resolution, offset_s))
        if len(self._clocks) > len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros((2 * len(self._clocks), 4), np.int64)))
        self._rows[len(self._clocks) - 1] = self._clocks[-1].row

    def _options(self, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield code, position and length of each option between `position` and `stop`."""
        source = self._source
        while stop - position >= 4:
            code, length = struct.unpack_from(f"{self._order}HH", source.view, position)
            if code == OPTION_END:
                return
            if length > stop - position - 4:
                problem = f"option {code} of {length} bytes, more than the rest of its block ({stop - position - 4})"
                raise source.error(source.start + position, problem, _DAMAGE_FIX)
            yield code, position + 4, length
            position += 4 + (length + 3 & ~3)

    def _check_option(self, begin: int, name: str, length: int, expected: int) -> None:
        if length != expected:
            problem = f"option {name} of {length} bytes instead of {expected}"
            raise self._source.error(self._source.start + begin - 4, problem, _DAMAGE_FIX)

    def _skip(self, position: int, kind: int, length: int) -> None:
        """Skip to the end of the block at `position`, only partly in the buffer, and check its second length."""
        source = self._source
        offset = source.start + position
        source.skip(position, length - 4)
        have = source.refill(0, 4)
        if have < 4:
            raise source.truncated(offset, _name(kind), source.start + have - offset, length)
        (repeated,) = struct.unpack_from(f"{self._order}I", source.view)
        if repeated != length:
            raise self._lengths_disagree(offset, kind, length, repeated)
        source.refill(4, 0)

    def _bad_length(self, position: int, kind: int, length: int) -> CaptureError:
        least = _KINDS[kind].least_bytes if kind in _KINDS else _FRAME_BYTES
        problem = f"{_name(kind)} of {length} bytes: it must be a multiple of 4 between {least} and {MAX_BLOCK_BYTES}"
        return self._source.error(self._source.start + position, problem, _DAMAGE_FIX)

    def _lengths_disagree(self, offset: int, kind: int, length: int, repeated: int) -> CaptureError:
        problem = f"{_name(kind)} whose length is {length} at its beginning and {repeated} at its end"
        return self._source.error(offset, problem, _DAMAGE_FIX)

    def _bad_packet(self, position: int, kind: int, interface: int, captured: int, room: int) -> CaptureError:
        if interface >= len(self._clocks):
            problem = f"interface {interface}, but the section has described only {len(self._clocks)} so far"
        else:
            problem = f"{captured} captured bytes, but room for {room}"
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
