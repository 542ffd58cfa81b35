"""Reading classic pcap: microseconds or nanoseconds, either byte order.

Format: https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-06.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from capture.model import Interface, Packet, make_packet
from capture.source import CUT_FIX, MAX_BLOCK_BYTES, ByteSource

FILE_HEADER_BYTES = 24
MAGIC_MICROSECONDS = 0xA1B2C3D4
MAGIC_NANOSECONDS = 0xA1B23C4D
_RECORD_HEADER_BYTES = 16
_LINKTYPE_MASK = 0xFFFF  # the upper half tells the length of a frame check sequence, which we leave in place
_HOLE = bytes(_RECORD_HEADER_BYTES)
_DAMAGE_FIX = f"the file is damaged from here on; {CUT_FIX}"


class PcapReader:
    """The packets of one pcap file."""

    def __init__(self, source: ByteSource, order: str, nanoseconds: bool) -> None:
        """Read the file header.

        Args:
            source: input, at its beginning.
            order: byte order, ``<`` or ``>`` as in `struct`.
            nanoseconds: whether the magic says so.

        Raises:
            CaptureError: the header is cut off, or of a version whose record headers mean something else.
        """
        self._source = source
        self._order = order
        self._unit_ns = 1 if nanoseconds else 1000
        have = source.refill(0, FILE_HEADER_BYTES)
        if have < FILE_HEADER_BYTES:
            raise source.truncated(0, "the pcap file header", have, FILE_HEADER_BYTES)
        major, minor, snaplen, network = struct.unpack_from(f"{order}4xHH8xII", source.buffer)
        if (major, minor) != (2, 4):
            problem = f"pcap version {major}.{minor}, and only 2.4 is known"
            raise source.error(4, problem, "convert it with: editcap -F pcap OLD NEW")
        self.interfaces = [Interface("", network & _LINKTYPE_MASK, snaplen)]

    def packets(self) -> Iterator[Packet]:
        """Yield all packets.

        Raises:
            CaptureError: after the whole packets before the damage.
            OSError: the input cannot be read.
        """
        source, unit_ns = self._source, self._unit_ns
        unpack = struct.Struct(f"{self._order}IIII").unpack_from
        units_per_s = 1_000_000_000 // unit_ns
        link_type = self.interfaces[0].link_type
        buffer, end, position = source.buffer, len(source.buffer), FILE_HEADER_BYTES
        number = 0
        while True:
            begin = position + _RECORD_HEADER_BYTES
            if begin > end:
                end = source.refill(position, _RECORD_HEADER_BYTES)
                buffer, position, begin = source.buffer, 0, _RECORD_HEADER_BYTES
                if end < begin:
                    break
            seconds, units, captured, original = unpack(buffer, position)
            stop = begin + captured
            if captured > original or captured > MAX_BLOCK_BYTES or units >= units_per_s or not original:
                self._check_record(position, units, captured, original)
            if stop > end:
                need = _RECORD_HEADER_BYTES + captured
                end = source.refill(position, need)
                buffer, position, begin, stop = source.buffer, 0, _RECORD_HEADER_BYTES, need
                if end < stop:
                    raise source.truncated(source.start, f"packet {number + 1}", end, need)
            number += 1
            yield make_packet(
                number,
                (seconds * units_per_s + units) * unit_ns,
                buffer[begin:stop],
                original,
                0,
                link_type,
                source.start + position,
            )
            position = stop
        if end:
            raise source.truncated(source.start, f"the header of packet {number + 1}", end, _RECORD_HEADER_BYTES)
        source.check_end()

    def _check_record(self, position: int, units: int, captured: int, original: int) -> None:
        """Raise a CaptureError if the record header at `position` cannot be true."""
        source = self._source
        offset = source.start + position
        if captured > MAX_BLOCK_BYTES:
            problem = f"a packet of {captured} captured bytes, more than {MAX_BLOCK_BYTES}"
            raise source.error(offset, problem, _DAMAGE_FIX)
        if captured > original:
            problem = f"a packet with more bytes captured ({captured}) than it had on the wire ({original})"
            raise source.error(offset, problem, _DAMAGE_FIX)
        units_per_s = 1_000_000_000 // self._unit_ns
        if units >= units_per_s:
            problem = f"a time stamp with {units} units of {self._unit_ns} ns after the second, which has {units_per_s}"
            raise source.error(offset, problem, _DAMAGE_FIX)
        # Space that was reserved and never written, as a crash or a sparse copy leaves it, would otherwise be
        # gigabytes of empty packets from 1970.
        if source.buffer.startswith(_HOLE, position):
            raise source.error(offset, "a hole of zeros instead of a packet", _DAMAGE_FIX)
