"""A TCP segment as a value, with the DSCP of the packet that carries it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag


class TcpFlags(IntFlag):
    """The eight control bits of the TCP header (RFC 9293 section 3.1)."""

    NONE = 0
    FIN = 0x01
    SYN = 0x02
    RST = 0x04
    PSH = 0x08
    ACK = 0x10
    URG = 0x20
    ECE = 0x40
    CWR = 0x80


# IntFlag arithmetic takes about a microsecond per operation, so hot paths use plain ints and this table.
FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10
FLAGS_OF: tuple[TcpFlags, ...] = tuple(TcpFlags(value) for value in range(256))
"""The `TcpFlags` of every value of the header's flag byte."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One TCP segment, with the DSCP of the IP packet that carries it."""

    src_port: int
    """Source port, 0..65535."""
    dst_port: int
    """Destination port, 0..65535."""
    seq: int
    """Sequence number of the first byte (or of the SYN), 32 bits."""
    ack: int
    """Acknowledgment number, 32 bits; meaningful only with the ACK flag."""
    flags: TcpFlags
    """Control bits."""
    window: int
    """Window field as on the wire: 16 bits, already divided by the window scale."""
    payload: bytes = b""
    """Data of the segment."""
    dscp: int = 0
    """Differentiated services codepoint of the IP packet, 0..63."""
    mss: int | None = None
    """Maximum segment size option, None if the segment has none."""
    window_scale: int | None = None
    """Window scale option (a shift count), None if the segment has none."""

    @property
    def length(self) -> int:
        """SEG.LEN of RFC 9293: payload bytes, plus one each for SYN and FIN."""
        flags = int(self.flags)
        return len(self.payload) + ((flags >> 1) & 1) + (flags & 1)
