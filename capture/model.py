"""Contents of a capture file: packets and interfaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

LINKTYPE_ETHERNET = 1
"""Link type of Ethernet frames (https://www.tcpdump.org/linktypes.html)."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One captured packet."""

    number: int
    """1-based position in the file, as Wireshark numbers frames."""
    time_ns: int
    """Nanoseconds since the epoch, rounded down; 0 in a pcapng Simple Packet Block, which has no time."""
    data: bytes
    """Captured bytes, for Ethernet from the destination address on."""
    original_length: int
    """Bytes on the wire; more than ``len(data)`` if the snapshot length cut the packet."""
    interface: int
    """Index into the interfaces of its section (pcapng); 0 in pcap."""
    link_type: int
    """LINKTYPE_* of `data`; 1 = Ethernet."""
    offset: int
    """Byte offset of the packet's record or block in the file (in the decompressed data of a gzip file)."""


class _Draft:
    """A packet under construction.

    A frozen dataclass sets each field with a call, which took a third of the reading time. This class sets the same
    slots directly, and then becomes a `Packet`.
    """

    __slots__ = ("data", "interface", "link_type", "number", "offset", "original_length", "time_ns")

    def __init__(
        self,
        number: int,
        time_ns: int,
        data: bytes,
        original_length: int,
        interface: int,
        link_type: int,
        offset: int,
    ) -> None:
        self.number = number
        self.time_ns = time_ns
        self.data = data
        self.original_length = original_length
        self.interface = interface
        self.link_type = link_type
        self.offset = offset
        self.__class__ = Packet  # type: ignore[assignment]


make_packet = cast(Callable[[int, int, bytes, int, int, int, int], Packet], _Draft)
"""`Packet`, made faster; takes the fields by position."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface of a capture."""

    name: str
    """Its name, empty if the file has none; at most 255 bytes of it are kept."""
    link_type: int
    """LINKTYPE_* of its packets."""
    snaplen: int
    """Snapshot length: most bytes captured of a packet, 0 for all."""
