"""Compiled walks over captured bytes: the functions of `capture.walk`, for numba."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from packets.compiled import jit


@jit
def _u16(data, at):
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@jit
def _u32(data, at):
    return _u16(data, at) | _u16(data, at + 2) << 16


@jit
def walk_block(block, at, count, tags, starts, lengths, wire_lengths, times_ns):
    """Do what `capture.walk.walk_block` does."""
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
