"""Compiled walks over captured bytes: the functions of `capture.walk`, for numba."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from capture.walk import MAX_BLOCK_BYTES
from packets.compiled import jit

_MAX_TICKS = 1 << 62


@jit
def _u16(data, at):
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@jit
def _u32(data, at):
    return _u16(data, at) | _u16(data, at + 2) << 16


@jit
def walk_block(block, at, count, tags, starts, lengths, wire_lengths, times_ns):
    """Equivalent of `capture.walk.walk_block`."""
    found = 0
    for _ in range(count):
        if at < 0 or at + 68 > len(block):
            break
        mac, captured, wire, status = (
            _u16(block, at + 24),
            _u32(block, at + 12),
            _u32(block, at + 16),
            _u32(block, at + 20),
        )
        start = at + mac
        if mac < 72 or start + captured > len(block):
            break
        if block[at + 58] != 4:
            if tags and status & 0x10 and captured >= 12:
                for place in range(start, start + 12):
                    block[place - 4] = block[place]
                tag, value = _u16(block, at + 36) if status & 0x40 else 0x8100, _u32(block, at + 32)
                block[start + 8], block[start + 9] = tag >> 8, tag & 0xFF
                block[start + 10], block[start + 11] = value >> 8 & 0xFF, value & 0xFF
                start, captured, wire = start - 4, captured + 4, wire + 4
            starts[found], lengths[found], wire_lengths[found] = start, captured, wire
            times_ns[found] = _u32(block, at + 4) * 1_000_000_000 + _u32(block, at + 8)
            found += 1
        step = _u32(block, at)
        if step == 0:
            break
        at += step
    return found


@jit
def _number(data, at, big):
    if big:
        return _swapped(_u32(data, at))
    return _u32(data, at)


@jit
def _swapped(value):
    return value >> 24 | value >> 8 & 0xFF00 | value << 8 & 0xFF0000 | value << 24 & 0xFF000000


@jit
def scan_pcap(data, position, count, big, unit_ns, link_type, table, odd):
    """Equivalent of `capture.walk.scan_pcap`."""
    end, capacity = len(data), table.shape[1]
    while count < capacity:
        begin = position + 16
        if begin > end:
            return count, position, 16
        seconds, units = _number(data, position, big), _number(data, position + 4, big)
        captured, original = _number(data, position + 8, big), _number(data, position + 12, big)
        if captured > MAX_BLOCK_BYTES or seconds | units | captured | original == 0:
            return count, position, -1
        if begin + captured > end:
            return count, position, 16 + captured
        odd[0] += captured > original
        odd[1] += units * unit_ns >= 1_000_000_000
        table[0, count], table[1, count], table[2, count] = begin, captured, original
        table[3, count] = seconds * 1_000_000_000 + units * unit_ns
        table[4, count], table[5, count], table[6, count] = link_type, position, 0
        count, position = count + 1, begin + captured
    return count, position, 0


@jit
def scan_pcapng(data, position, count, big, clocks, table, odd):
    """Equivalent of `capture.walk.scan_pcapng`."""
    end, capacity = len(data), table.shape[1]
    while count < capacity:
        if position + 12 > end:
            return count, position, 12
        kind, length = _number(data, position, big), _number(data, position + 4, big)
        if length > MAX_BLOCK_BYTES or length < 12 or length & 3 or kind in (0x0A0D0D0A, 1, 2, 3):
            return count, position, -1
        if position + length > end:
            return count, position, length
        if _number(data, position + length - 4, big) != length:
            return count, position, -1
        if kind == 6:
            if length < 32:
                return count, position, -1
            interface, high = _number(data, position + 8, big), _number(data, position + 12, big)
            captured, original = _number(data, position + 20, big), _number(data, position + 24, big)
            if captured > length - 32 or interface >= len(clocks) or high >> 31:
                return count, position, -1
            ticks = high << 32 | _number(data, position + 16, big)
            multiplier, divisor = clocks[interface, 1], clocks[interface, 2]
            if divisor < 1 or ticks // divisor > _MAX_TICKS // multiplier:
                return count, position, -1
            odd[0] += captured > original
            time_ns = ticks // divisor * multiplier + ticks % divisor * multiplier // divisor
            table[0, count], table[1, count], table[2, count] = position + 28, captured, original
            table[3, count], table[4, count] = time_ns + clocks[interface, 3], clocks[interface, 0]
            table[5, count], table[6, count] = position, interface
            count += 1
        position += length
    return count, position, 0
