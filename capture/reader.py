"""Opening a capture of any kind: pcap or pcapng, plain or gzip, from a file, a pipe or standard input."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal

import numpy as np

from capture.model import Interface, Packet, make_packet
from capture.pcap import MAGIC_MICROSECONDS, MAGIC_NANOSECONDS, PcapReader
from capture.pcapng import SECTION_HEADER, PcapngReader
from capture.source import ByteSource, is_file
from capture.walk import Table
from packets.batch import Bytes, PacketBatch

_PCAP_MAGICS = {
    magic.to_bytes(4, "little" if order == "<" else "big"): (order, magic == MAGIC_NANOSECONDS)
    for magic in (MAGIC_MICROSECONDS, MAGIC_NANOSECONDS)
    for order in "<>"
}
_PCAPNG_MAGIC = SECTION_HEADER.to_bytes(4, "big")  # reads the same in either byte order

_CONVERT = "convert it with: editcap -F pcapng OLD NEW"
_REFUSED = {
    bytes.fromhex("a1b2cd34"): (
        "a 'modified' pcap file (Kuznetzov's patch of libpcap, longer records)",
        _CONVERT,
    ),
    bytes.fromhex("1c0001ac"): ("an IXIA pcap file (hardware time stamps)", _CONVERT),
    bytes.fromhex("1c0001ab"): ("an IXIA pcap file (software time stamps)", _CONVERT),
    b"snoo": ("a snoop file", _CONVERT),
    b"GMBU": ("a Microsoft Network Monitor file", _CONVERT),
    b"RTSS": ("a Microsoft Network Monitor file", _CONVERT),
    b"\x28\xb5\x2f\xfd": ("zstd-compressed", "decompress it with: zstd -d"),
    b"\x04\x22\x4d\x18": ("lz4-compressed", "decompress it with: lz4 -d"),
    b"\xfd7zX": ("xz-compressed", "decompress it with: xz -d"),
    b"BZh9": ("bzip2-compressed", "decompress it with: bzip2 -d"),
    b"PK\x03\x04": ("a zip archive", "unpack it with: unzip"),
    b"\x1f\x8b\x08\x00": ("gzip-compressed twice", "decompress it once with: gzip -d"),
}
_NOT_A_CAPTURE_FIX = "expected a pcap or pcapng file as written by tcpdump and Wireshark, plain or gzip-compressed"


class CaptureReader:
    """The packets of one capture, in order, read lazily.

    Memory does not grow with the input. Iterate once: a second loop continues where the first stopped, and is empty
    after an error. Closing it (or leaving its ``with`` block) closes the file if it was opened here.

    The checksum of gzip input is at its end, so wrong bytes may be reported only there.
    """

    def __init__(self, path: Path | BinaryIO, name: str | None = None) -> None:
        """Open the file and read its first bytes.

        Args:
            path: a file, or a stream that is read from its current position on.
            name: name of the input in errors; by default `path` or the stream's name.

        Raises:
            CaptureError: it is empty or not a capture, or its file header is cut off.
            OSError: the file cannot be opened or read.
        """
        self._owned: io.FileIO | None = None
        self._closed = False
        stream: BinaryIO
        if isinstance(path, Path):
            # Unbuffered, because a ByteSource buffers and reads large pieces.
            stream = self._owned = io.FileIO(path, opener=_open)
        else:
            stream = path
        try:
            self._source = ByteSource(stream, name or _name(path))
            self.size: int | None = _size(stream)
            """Size of the (compressed) input in bytes; None for pipes."""
            self.format: Literal["pcap", "pcapng"]
            """Kind of file."""
            self._reader = self._recognise()
        except BaseException:
            self.close()
            raise
        self._pieces = self._reader.tables()
        self._packets = self._packet_by_packet()

    @property
    def bytes_read(self) -> int:
        """Bytes read from the input so far, up to `size`; up to a buffer ahead of the packets."""
        return self._source.bytes_read

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """Interfaces known so far: the only one of a pcap, those of the current section of a pcapng."""
        return tuple(self._reader.interfaces)

    @property
    def oddities(self) -> dict[str, int]:
        """Oddities so far, with the number of packets; they do not affect the packets' bytes."""
        longer, late = self._reader.odd.tolist()
        found = {
            "packets with more bytes captured than on the wire: their IP length is used": longer,
            "time stamps whose fraction is a second or more: times are unreliable": late,
        }
        return {name: count for name, count in found.items() if count}

    def batches(self) -> Iterator[PacketBatch]:
        """Yield the packets that were not yet returned, some thousands at a time.

        Raises:
            CaptureError: while iterating, after the last complete packet before the damage.
            OSError: while iterating, the input cannot be read.
            ValueError: the reader was closed.
        """
        self._check_open()
        for table in self._pieces:
            yield _batch(self._source.buffer, table)

    def __iter__(self) -> Iterator[Packet]:
        """Return the packets that were not yet returned, one by one; errors as in `batches`."""
        self._check_open()
        return self._packets

    def _packet_by_packet(self) -> Iterator[Packet]:
        number = 0
        for table in self._pieces:
            view, offset = self._source.view, self._source.start
            for start, size, original, time_ns, link_type, record, interface in table.T.tolist():
                number += 1
                data = bytes(view[start : start + size])
                yield make_packet(number, time_ns, data, original, interface, link_type, offset + record)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self._source.name}: the capture was closed")

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        self._closed = True
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> CaptureReader:
        """Return itself, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _recognise(self) -> PcapReader | PcapngReader:
        source = self._source
        have = source.refill(0, 4)
        magic = source.buffer[:4].tobytes()
        if magic in _PCAP_MAGICS:
            self.format = "pcap"
            return PcapReader(source, *_PCAP_MAGICS[magic])
        if magic == _PCAPNG_MAGIC:
            self.format = "pcapng"
            return PcapngReader(source)
        if not have:
            source.check_end()
            raise source.error(0, "the file is empty", "capture again")
        if have < 4:
            raise source.truncated(0, "the file header", have, 4)
        for known in (magic, magic[::-1]):
            if known in _REFUSED:
                what, fix = _REFUSED[known]
                raise source.error(0, f"this is {what}, which is not supported", fix)
        raise source.error(0, f"this is not a capture file: it begins with {magic.hex()}", _NOT_A_CAPTURE_FIX)


def open_capture(path: Path | str) -> CaptureReader:
    """Open the capture at `path`, or on standard input if it is ``-``.

    Raises:
        CaptureError: it is empty or not a capture, or its file header is cut off.
        OSError: the file cannot be opened or read.
    """
    if str(path) == "-":
        return CaptureReader(sys.stdin.buffer, "standard input")
    return CaptureReader(Path(path))


def _name(path: Path | BinaryIO) -> str:
    if isinstance(path, Path):
        return str(path)
    name = getattr(path, "name", None)
    return name if isinstance(name, str) else "stream"


def _open(path: str, flags: int) -> int:
    """Open a regular file; opening a named pipe or a device could wait forever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # FileIO itself refuses directories
        os.close(descriptor)
        what = "a pipe" if stat.S_ISFIFO(mode) else "a device"
        raise OSError(errno.EINVAL, f"it is {what}; if standard input is supported, give it there, as -", path)
    return descriptor


def _size(stream: BinaryIO) -> int | None:
    return os.fstat(stream.fileno()).st_size if is_file(stream) else None


def _batch(data: Bytes, table: Table) -> PacketBatch:
    starts, lengths, wire_lengths, times_ns, link_types = table[:5]
    return PacketBatch(data, starts, lengths.astype(np.int32), wire_lengths, times_ns, link_types.astype(np.uint16))
