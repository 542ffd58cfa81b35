"""Reading classic pcap: microseconds or nanoseconds, either byte order.

Format: https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-06.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from capture.model import Interface
from capture.source import CUT_FIX, ByteSource
from capture.walk import FULL, LOOK, MAX_BLOCK_BYTES, Table, new_table, scan_pcap

FILE_HEADER_BYTES = 24
MAGIC_MICROSECONDS = 0xA1B2C3D4
MAGIC_NANOSECONDS = 0xA1B23C4D
_RECORD_HEADER_BYTES = 16
_LINKTYPE_MASK = 0xFFFF  # the upper half is the length of a frame check sequence, which is left in place
_DAMAGE_FIX = f"the file is damaged from here on; {CUT_FIX}"


class PcapReader:
    """The packets of one pcap file."""

    def __init__(self, source: ByteSource, order: str, nanoseconds: bool) -> None:
        """Read the file header.

        Args:
            source: input, at its beginning.
            order: byte order, ``<`` or ``>`` as in `struct`.
            nanoseconds: whether time stamps are in nanoseconds, according to the magic.

        Raises:
            CaptureError: the header is cut off, or of a version with other record headers.
        """
        self._source = source
        self._order = order
        self._unit_ns = 1 if nanoseconds else 1000
        self.odd = np.zeros(2, np.int64)
        """Packets with more captured than wire bytes, and time stamps with a fraction of a second or more."""
        have = source.refill(0, FILE_HEADER_BYTES)
        if have < FILE_HEADER_BYTES:
            raise source.truncated(0, "the pcap file header", have, FILE_HEADER_BYTES)
        major, minor, snaplen, network = struct.unpack_from(f"{order}4xHH8xII", source.view)
        if (major, minor) != (2, 4):
            problem = f"pcap version {major}.{minor}, but only 2.4 is supported"
            raise source.error(4, problem, "convert it with: editcap -F pcap OLD NEW")
        self.interfaces = [Interface("", network & _LINKTYPE_MASK, snaplen)]

    def tables(self) -> Iterator[Table]:
        """Yield the packets in the source's current buffer, until there are none.

        Raises:
            CaptureError: after the complete packets before the damage.
            OSError: the input cannot be read.
        """
        source, big, link_type = self._source, self._order == ">", self.interfaces[0].link_type
        position, number = FILE_HEADER_BYTES, 1
        while True:
            table = new_table()
            count, position, need = scan_pcap(
                source.buffer, position, 0, big, self._unit_ns, link_type, table, self.odd
            )
            number += count
            if count:
                yield table[:, :count]
            if need == FULL:
                continue
            if need == LOOK:
                raise self._damage(position)
            have = source.refill(position, need)
            position = 0
            if not have:
                source.check_end()
                return
            if have < need:
                what = f"packet {number}" if need > _RECORD_HEADER_BYTES else f"the header of packet {number}"
                if have >= _RECORD_HEADER_BYTES:
                    (captured,) = struct.unpack_from(f"{self._order}8xI", source.view)
                    what, need = f"packet {number}", _RECORD_HEADER_BYTES + captured
                raise source.truncated(source.start, what, have, need)

    def _damage(self, position: int) -> Exception:
        source = self._source
        (captured,) = struct.unpack_from(f"{self._order}8xI", source.view, position)
        problem = f"a packet of {captured} captured bytes, more than {MAX_BLOCK_BYTES}"
        if not captured:
            # Space that was reserved but never written, after a crash or a sparse copy, would otherwise become
            # gigabytes of empty packets from 1970.
            problem = "a hole of zeros instead of a packet"
        return source.error(source.start + position, problem, _DAMAGE_FIX)
