"""Walks over captured bytes in plain Python: what `capture.kernels` must do, and what runs without it."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from packets.batch import Bytes
from packets.compiled import Kernel

_PACKET_HEADER = struct.Struct("=IIIIIIHHIIH")
"""tpacket3_hdr: next, seconds, nanoseconds, captured and wire length, status, positions of the frame and of what the
network layer sees, hash, tag control information and tag protocol of a VLAN tag."""
_LEAST_BYTES = 68
"""That header, padded to 48 bytes, and a sockaddr_ll of 20."""
_PACKET_TYPE = 58
_OUTGOING = 4
_VLAN_VALID, _TAG_PROTOCOL_VALID = 0x10, 0x40
_TAG_BYTES = 4


def _walk_block(
    block: Bytes,
    at: int,
    count: int,
    tags: bool,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    wire_lengths: NDArray[np.int64],
    times_ns: NDArray[np.int64],
) -> int:
    """Find the packets in a block of a ring (TPACKET_V3), those that this machine sent left out.

    Args:
        block: the block; where the kernel took a VLAN tag out of a frame it is put in again, in place, for which
            PACKET_RESERVE keeps 4 bytes free.
        at: index of the first packet's header.
        count: packets in the block.
        tags: whether there are MAC addresses, behind which a tag has its place.
        starts: [count] are filled, see `packets.batch.PacketBatch`, as the next three.
        lengths: captured bytes.
        wire_lengths: bytes on the wire.
        times_ns: when they came.

    Returns:
        How many packets were found.
    """
    found = 0
    view = memoryview(block)  # type: ignore[arg-type]
    for _ in range(count):
        if at < 0 or at + _LEAST_BYTES > len(block):
            break
        header = _PACKET_HEADER.unpack_from(view, at)
        step, seconds, nanoseconds, captured, wire, status, mac, _, _, control, protocol = header
        start = at + mac
        if mac < _LEAST_BYTES + _TAG_BYTES or start + captured > len(block):
            break
        if block[at + _PACKET_TYPE] != _OUTGOING:
            if tags and status & _VLAN_VALID and captured >= 12:
                tag = struct.pack("!HH", protocol if status & _TAG_PROTOCOL_VALID else 0x8100, control & 0xFFFF)
                frame = bytes(block[start : start + 12]) + tag
                start, captured, wire = start - _TAG_BYTES, captured + _TAG_BYTES, wire + _TAG_BYTES
                block[start : start + 16] = np.frombuffer(frame, np.uint8)
            starts[found], lengths[found], wire_lengths[found] = start, captured, wire
            times_ns[found] = seconds * 1_000_000_000 + nanoseconds
            found += 1
        if not step:
            break
        at += step
    return found


walk_block = Kernel(_walk_block, "capture.kernels:walk_block")
"""See `_walk_block`."""
