"""Writing captures that tcpdump, Wireshark and scapy read, with nanosecond time stamps: classic pcap, and pcapng.

Formats: https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap (magic 0xa1b23c4d for nanoseconds),
https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from capture.model import LINKTYPE_ETHERNET
from capture.pcap import MAGIC_NANOSECONDS
from capture.pcapng import (
    BYTE_ORDER_MAGIC,
    INTERFACE_DESCRIPTION,
    OPTION_IF_NAME,
    OPTION_IF_TSRESOL,
    SECTION_HEADER,
)
from capture.walk import ENHANCED_PACKET

_SNAPLEN = 262144
_NANOSECONDS = 9  # if_tsresol: units of 10**-9 s
_FILE_HEADER = struct.Struct("<IHHiIII")
_RECORD_HEADER = struct.Struct("<IIII")
_BLOCK_HEADER = struct.Struct("<II")
_SECTION_BODY = struct.Struct("<IHHq")
_INTERFACE_BODY = struct.Struct("<HHI")
_OPTION_HEADER = struct.Struct("<HH")
_PACKET_HEADER = struct.Struct("<IIIIIII")
_LENGTH = struct.Struct("<I")

Opener = Callable[[str, int], int]
"""Opens a path with the flags of `os.open`, and returns the file descriptor."""


class _FileWriter:
    """The file, shared by both formats."""

    def __init__(self, path: Path, opener: Opener | None = None) -> None:
        self.path = path
        self._file = open(path, "wb", buffering=1 << 18, opener=opener)  # noqa: SIM115 - `close` does

    def flush(self) -> None:
        """Flush everything written so far to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close; closing twice does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        """Return itself, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


class PcapWriter(_FileWriter):
    """A pcap file of Ethernet frames; an existing file is replaced.

    Args:
        path: file to write.
        opener: as for the built-in `open`, to create the file with another mode than the umask's.

    Raises:
        OSError: the file cannot be created (here) or written (in `write`, `flush`, `close`).
    """

    def __init__(self, path: Path, opener: Opener | None = None) -> None:
        """Create the file and write its header."""
        super().__init__(path, opener)
        self._file.write(_FILE_HEADER.pack(MAGIC_NANOSECONDS, 2, 4, 0, 0, _SNAPLEN, LINKTYPE_ETHERNET))

    def write(self, time_ns: int, frame: bytes, original_length: int | None = None) -> None:
        """Append a frame.

        Args:
            time_ns: nanoseconds since the epoch.
            frame: from the destination address on, without frame check sequence.
            original_length: its bytes on the wire, if `frame` is only a part of them.
        """
        seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
        kept = frame[:_SNAPLEN]
        length = len(frame) if original_length is None else original_length
        self._file.write(_RECORD_HEADER.pack(seconds & 0xFFFFFFFF, nanoseconds, len(kept), length))
        self._file.write(kept)


class PcapngWriter(_FileWriter):
    """A pcapng file of Ethernet frames from one or several interfaces; an existing file is replaced.

    Args:
        path: file to write.
        interfaces: their names; `write` refers to them by index.

    Raises:
        ValueError: no interface, or a name of more than 65535 bytes.
        OSError: the file cannot be created (here) or written (in `write`, `flush`, `close`).
    """

    def __init__(self, path: Path, interfaces: Sequence[str]) -> None:
        """Create the file, and write the section header and the interfaces."""
        if not interfaces:
            raise ValueError(f"{path}: a pcapng file needs at least one interface")
        names = [name.encode() for name in interfaces]
        for name in names:
            if len(name) > 0xFFFF:
                raise ValueError(f"{path}: an interface's name has {len(name)} bytes, more than 65535")
        super().__init__(path)
        self._interfaces = len(names)
        self._block(SECTION_HEADER, _SECTION_BODY.pack(BYTE_ORDER_MAGIC, 1, 0, -1))
        for name in names:
            options = _option(OPTION_IF_NAME, name) + _option(OPTION_IF_TSRESOL, bytes([_NANOSECONDS])) + bytes(4)
            self._block(INTERFACE_DESCRIPTION, _INTERFACE_BODY.pack(LINKTYPE_ETHERNET, 0, _SNAPLEN) + options)

    def write(self, time_ns: int, frame: bytes, interface: int = 0, original_length: int | None = None) -> None:
        """Append a frame.

        Args:
            time_ns: nanoseconds since the epoch, at most 64 bits.
            frame: from the destination address on, without frame check sequence.
            interface: index into the writer's interfaces.
            original_length: its bytes on the wire, if `frame` is only a part of them.

        Raises:
            ValueError: there is no such interface.
        """
        if not 0 <= interface < self._interfaces:
            raise ValueError(f"{self.path}: interface {interface} of {self._interfaces}: indices start at 0")
        kept = frame[:_SNAPLEN]
        padding = -len(kept) % 4
        total = 32 + len(kept) + padding
        high, low = time_ns >> 32 & 0xFFFFFFFF, time_ns & 0xFFFFFFFF
        length = len(frame) if original_length is None else original_length
        self._file.write(_PACKET_HEADER.pack(ENHANCED_PACKET, total, interface, high, low, len(kept), length))
        self._file.write(kept)
        self._file.write(bytes(padding) + _LENGTH.pack(total))

    def _block(self, kind: int, body: bytes) -> None:
        total = 12 + len(body)
        self._file.write(_BLOCK_HEADER.pack(kind, total) + body + _LENGTH.pack(total))


def _option(code: int, value: bytes) -> bytes:
    return _OPTION_HEADER.pack(code, len(value)) + value + bytes(-len(value) % 4)
