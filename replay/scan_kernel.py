"""Compiled form of `replay.scan._find`, for numba."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from checkmate_common.stream.frame import HEADER_BYTES, MAGIC
from packets.compiled import jit
from replay.scan import TAIL

_M0, _M1, _M2, _M3 = (np.uint8(byte) for byte in MAGIC)
_HEADER, _TAIL = np.int64(HEADER_BYTES), np.int64(TAIL)
_MASK = np.int64((1 << 32) - 1)
_STRIDE = 8192


@jit
def _any(data, low, high):
    """Tell whether the magic begins at low..high-1: a loop without an early end is vectorised."""
    one, two, three, four = data[low:high], data[low + 1 : high + 1], data[low + 2 : high + 2], data[low + 3 : high + 3]
    seen = np.uint8(0)
    for index in range(len(one)):
        seen |= (one[index] == _M0) & (two[index] == _M1) & (three[index] == _M2) & (four[index] == _M3)
    return seen != 0


@jit
def _is_magic(data, at):
    return data[at] == _M0 and data[at + 1] == _M1 and data[at + 2] == _M2 and data[at + 3] == _M3


@jit
def _places(data, begin, end, places):
    """Note where the magic begins with a header's bytes before `end`; return how many."""
    count = 0
    last = end - _HEADER + 1
    low = begin
    while low < last:
        high = min(last, low + _STRIDE)
        if _any(data, low, high):
            for at in range(low, high):
                if _is_magic(data, at):
                    if count < len(places):
                        places[count] = at
                    count += 1
        low = high
    return count


@jit
def find(
    at, data, starts, lengths, sequences, streams, following, sizes, tails, rows, found_sequences, headers
):  # fmt: skip
    """See `replay.scan._find`."""
    found = 0
    room = len(rows)
    places = np.empty(room, np.int64)
    seam = np.empty(2 * _HEADER, np.uint8)
    seam_places = np.empty(_HEADER, np.int64)
    for row in range(at, len(starts)):
        stream, begin, length = streams[row], starts[row], lengths[row]
        sequence = sequences[row]
        tail = sizes[stream] if sequence == following[stream] else 0
        in_seam = 0
        if tail:
            # Headers that begin in the tail end at most 63 bytes into the payload.
            reach = min(_TAIL, length)
            seam[:tail] = tails[stream, :tail]
            seam[tail : tail + reach] = data[begin : begin + reach]
            for place in range(min(tail, tail + reach - _HEADER + 1)):
                if _is_magic(seam, place):
                    seam_places[in_seam] = place
                    in_seam += 1
        count = _places(data, begin, begin + length, places)
        if found and found + in_seam + count > room:
            return row, found
        for index in range(min(in_seam, room - found)):
            place = seam_places[index]
            rows[found], found_sequences[found] = row, (sequence - tail + place) & _MASK
            headers[found, :] = seam[place : place + _HEADER]
            found += 1
        for index in range(min(count, room - found)):
            place = places[index]
            rows[found], found_sequences[found] = row, (sequence + place - begin) & _MASK
            headers[found, :] = data[place : place + _HEADER]
            found += 1
        following[stream] = (sequence + length) & _MASK
        if length >= _TAIL:
            tails[stream, :] = data[begin + length - _TAIL : begin + length]
            sizes[stream] = _TAIL
        else:
            keep = min(tail, _TAIL - length)
            for index in range(keep):
                tails[stream, index] = tails[stream, tail - keep + index]
            tails[stream, keep : keep + length] = data[begin : begin + length]
            sizes[stream] = keep + length
    return len(starts), found
