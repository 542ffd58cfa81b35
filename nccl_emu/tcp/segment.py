"""The segments that endpoints exchange, and the reset that answers a segment of no connection."""

from __future__ import annotations

from nccl_emu.tcp.seqnum import SEQ_MASK
from packets.segment import ACK, FIN, FLAGS_OF, PSH, RST, SYN, Segment, TcpFlags

__all__ = ["ACK", "FIN", "FLAGS_OF", "PSH", "RST", "SYN", "Segment", "TcpFlags", "reset_reply"]


def reset_reply(segment: Segment) -> Segment | None:
    """Return the RST that a closed port owes to `segment`, None for a RST (RFC 9293 section 3.10.7.1)."""
    flags = int(segment.flags)
    if flags & RST:
        return None
    if flags & ACK:
        return Segment(segment.dst_port, segment.src_port, segment.ack, 0, FLAGS_OF[RST], 0)
    ack = (segment.seq + segment.length) & SEQ_MASK
    return Segment(segment.dst_port, segment.src_port, 0, ack, FLAGS_OF[RST | ACK], 0)
