"""Walks over captured bytes in plain Python: the reference for `capture.kernels`, and the fallback without it."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from packets.batch import Bytes
from packets.compiled import Kernel

Table = NDArray[np.int64]
"""[7, capacity] Packets found by a scan: index of the first byte, captured bytes, bytes on the wire, time in
nanoseconds, link type, index of the record or block, and interface."""
MAX_BLOCK_BYTES = 1 << 24
"""Largest record or block, 16 MiB: libpcap's limit for a pcapng block. The longest packet that it captures has 256 KiB,
so a larger length is damage; and memory is bounded by a small multiple of this, whatever a file claims."""
FULL, LOOK = 0, -1
"""Why a scan ended, instead of the bytes that it needs: its table is full; Python must handle the next block."""
ENHANCED_PACKET = 6
UNSAFE = -1
"""Divisor of a clock whose times may not fit into 64 bits."""
_MAX_TICKS = 1 << 62
_CAPACITY = 1 << 14


def new_table() -> Table:
    """Return a table for a scan."""
    return np.empty((7, _CAPACITY), np.int64)


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
    """Find the packets in a block of a ring (TPACKET_V3), except those that this machine sent.

    Args:
        block: the block, writable; VLAN tags that the kernel removed from a frame are restored in place, for which
            PACKET_RESERVE keeps 4 bytes free.
        at: index of the first packet's header.
        count: packets in the block.
        tags: whether there are MAC addresses, after which a tag is inserted.
        starts: [count] output, like the next three; see `packets.batch.PacketBatch`.
        lengths: captured bytes.
        wire_lengths: bytes on the wire.
        times_ns: time of arrival in nanoseconds.

    Returns:
        Number of packets found.
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


def _block_example() -> tuple[object, ...]:
    numbers = np.zeros(1, np.int64)
    return np.zeros(100, np.uint8), 0, 1, True, numbers, np.zeros(1, np.int32), numbers, numbers


walk_block = Kernel(_walk_block, "capture.kernels:walk_block", _block_example)
"""See `_walk_block`."""


def _scan_pcap(
    data: Bytes,
    position: int,
    count: int,
    big: bool,
    unit_ns: int,
    link_type: int,
    table: Table,
    odd: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Find the records of a pcap file.

    Args:
        data: a piece of it.
        position: index of the first record.
        count: rows of `table` that are already filled.
        big: whether the file is in network byte order.
        unit_ns: unit of the second half of a time stamp, in nanoseconds.
        link_type: LINKTYPE_* of the file.
        table: output.
        odd: [2] counts packets with more captured than wire bytes, and time stamps with a fraction of 1 s or more.

    Returns:
        Number of filled rows, index of the first record that was not read, and why: `FULL`, `LOOK` (it is damaged), or
        the number of bytes needed from there on.
    """
    unpack = struct.Struct(">IIII" if big else "<IIII").unpack_from
    view = memoryview(data)  # type: ignore[arg-type]
    end, capacity = len(view), table.shape[1]
    while count < capacity:
        begin = position + 16
        if begin > end:
            return count, position, 16
        seconds, units, captured, original = unpack(view, position)
        if captured > MAX_BLOCK_BYTES or not (seconds or units or captured or original):
            return count, position, LOOK
        if begin + captured > end:
            return count, position, 16 + captured
        odd[0] += captured > original
        odd[1] += units * unit_ns >= 1_000_000_000
        time_ns = seconds * 1_000_000_000 + units * unit_ns
        table[:, count] = begin, captured, original, time_ns, link_type, position, 0
        count, position = count + 1, begin + captured
    return count, position, FULL


def _scan_pcapng(
    data: Bytes, position: int, count: int, big: bool, clocks: NDArray[np.int64], table: Table, odd: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Find the Enhanced Packet Blocks of a pcapng section, and skip blocks without packets.

    Args:
        data: a piece of the file.
        position: index of the first block.
        count: rows of `table` that are already filled.
        big: whether the section is in network byte order.
        clocks: [interfaces, 4] link type; then time = ticks * multiplier // divisor + offset in nanoseconds.
        table: output.
        odd: as in `_scan_pcap`.

    Returns:
        As `_scan_pcap`; `LOOK` also for other blocks with packets or interfaces.
    """
    order = ">" if big else "<"
    head, tail = struct.Struct(f"{order}II").unpack_from, struct.Struct(f"{order}I").unpack_from
    enhanced = struct.Struct(f"{order}8xIIIII").unpack_from
    view = memoryview(data)  # type: ignore[arg-type]
    end, capacity = len(view), table.shape[1]
    while count < capacity:
        if position + 12 > end:
            return count, position, 12
        kind, length = head(view, position)
        if length > MAX_BLOCK_BYTES or length < 12 or length & 3 or kind in (0x0A0D0D0A, 1, 2, 3):
            return count, position, LOOK
        if position + length > end:
            return count, position, length
        if tail(view, position + length - 4)[0] != length:
            return count, position, LOOK
        if kind == ENHANCED_PACKET:
            if length < 32:
                return count, position, LOOK
            interface, high, low, captured, original = enhanced(view, position)
            if captured > length - 32 or interface >= len(clocks) or high >> 31:
                return count, position, LOOK
            link_type, multiplier, divisor, offset_ns = clocks[interface].tolist()
            ticks = high << 32 | low
            if divisor == UNSAFE or ticks // divisor > _MAX_TICKS // multiplier:
                return count, position, LOOK
            odd[0] += captured > original
            time_ns = ticks // divisor * multiplier + ticks % divisor * multiplier // divisor + offset_ns
            table[:, count] = position + 28, captured, original, time_ns, link_type, position, interface
            count += 1
        position += length
    return count, position, FULL


def _pcap_example() -> tuple[object, ...]:
    return np.zeros(9, np.uint8), 0, 0, True, 1, 1, new_table(), np.zeros(2, np.int64)


def _pcapng_example() -> tuple[object, ...]:
    return np.zeros(9, np.uint8), 0, 0, True, np.zeros((1, 4), np.int64), new_table(), np.zeros(2, np.int64)


scan_pcap = Kernel(_scan_pcap, "capture.kernels:scan_pcap", _pcap_example)
"""See `_scan_pcap`."""
scan_pcapng = Kernel(_scan_pcapng, "capture.kernels:scan_pcapng", _pcapng_example)
"""See `_scan_pcapng`."""
