"""Writing packet captures that tcpdump, Wireshark and scapy read: classic pcap with nanosecond time stamps.

Format: https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap (magic 0xa1b23c4d for nanoseconds).
"""

from __future__ import annotations

import struct
from pathlib import Path
from types import TracebackType

_MAGIC_NANOSECONDS = 0xA1B23C4D
_LINKTYPE_ETHERNET = 1
_SNAPLEN = 262144
_FILE_HEADER = struct.Struct("<IHHiIII")
_RECORD_HEADER = struct.Struct("<IIII")


class PcapWriter:
    """A capture file of Ethernet frames; an existing file is replaced.

    Args:
        path: file to write.

    Raises:
        OSError: the file cannot be created (here) or written (in `write`, `flush`, `close`).
    """

    def __init__(self, path: Path) -> None:
        """Create the file and write its header."""
        self.path = path
        self._file = path.open("wb", buffering=1 << 18)
        self._file.write(_FILE_HEADER.pack(_MAGIC_NANOSECONDS, 2, 4, 0, 0, _SNAPLEN, _LINKTYPE_ETHERNET))

    def write(self, time_ns: int, frame: bytes) -> None:
        """Append a frame.

        Args:
            time_ns: nanoseconds since the epoch.
            frame: from the destination address on, without frame check sequence.
        """
        seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
        kept = frame[:_SNAPLEN]
        self._file.write(_RECORD_HEADER.pack(seconds & 0xFFFFFFFF, nanoseconds, len(kept), len(frame)))
        self._file.write(kept)

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close; closing twice does nothing."""
        self._file.close()

    def __enter__(self) -> PcapWriter:
        """Return itself, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
