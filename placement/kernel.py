"""Places segments as nearly all arrive: each byte right behind those that are there. Compiled (`packets.compiled`).

A segment is taken wholly or not at all, in order, and the result is that of `placement.assembler.Assembler.place`; what
is not simple is left to that. Frames whose last byte comes are only noted: verifying them is the caller's, at the
latest before anything comes that could tell the difference.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from checkmate_common.stream.frame import HEADER_BYTES
from packets.compiled import jit
from placement.slots import State, Tally
from placement.stop import Count, Stop

_HEADER = np.int64(HEADER_BYTES)
_PIECES = 64
_COVERED_STATE, _VERIFIED, _OBJECT = int(State.COVERED), int(State.VERIFIED), int(State.OBJECT)
_REMAINING, _COVERED, _RECEIVED = int(Tally.REMAINING), int(Tally.COVERED), int(Tally.RECEIVED)
_WIRE, _WIRE_PAYLOAD, _UNEXPECTED = int(Tally.WIRE), int(Tally.WIRE_PAYLOAD), int(Tally.UNEXPECTED)
_NONE = -1
_END, _VERIFY, _OTHER = int(Stop.END), int(Stop.VERIFY), int(Stop.OTHER)
_UNKNOWN, _BAD_POSITION = int(Count.UNKNOWN_CONNECTION), int(Count.BAD_POSITION)
_DUPLICATE, _REDUNDANT = int(Count.DUPLICATE), int(Count.REDUNDANT)


@jit
def _unwrap(sequence, reference, modulus):
    half = modulus >> 1
    return reference + ((sequence - 1 - reference + half) & (modulus - 1)) - half


# Loops over slices with one index and no early end are vectorised: twenty times as fast.


@jit
def _same(one, at, other, start, count):
    left, right = one[at : at + count], other[start : start + count]
    differing = np.uint8(0)
    for index in range(len(left)):
        differing |= left[index] ^ right[index]
    return differing == 0


@jit
def _copy(target, at, source, start, count):
    to, of = target[at : at + count], source[start : start + count]
    for index in range(len(to)):
        to[index] = of[index]


@jit
def _find(starts, low, high, hint, offset):
    """Return the last copy of low..high-1 that begins at or before `offset`, `low` - 1 where none does."""
    if low <= hint < high and starts[hint] <= offset:
        if hint + 1 == high or offset < starts[hint + 1]:
            return hint
        if hint + 2 == high or offset < starts[hint + 2]:
            return hint + 1
    while low < high:
        middle = (low + high) >> 1
        if starts[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return low - 1


@jit
def place_segments(
    at, data, starts, lengths, sequences, connections, damaged,
    flow_of, reference, ahead, hint,
    base, limit, first_step, last_step, next_step,
    first_copy, step_length, copy_start, copy_size, copy_following, copy_header, copy_frame, copy_redundant,
    frame_payload, frame_copies,
    memory, prefix, filled, state, headed, tallies, counts, covered, modulus, offline,
):  # fmt: skip
    """See `placement.assembler`; returns the next segment, a `Stop`, and the rows of `covered` that were filled."""
    window = len(memory)
    copy_of = np.empty(_PIECES, np.int64)
    inner_of = np.empty(_PIECES, np.int64)
    size_of = np.empty(_PIECES, np.int64)
    step_of = np.empty(_PIECES, np.int64)
    found = 0
    for segment in range(at, len(starts)):
        connection = connections[segment]
        if damaged[segment]:
            return segment, _OTHER, found
        if connection < 0:
            counts[_UNKNOWN] += 1
            continue
        length = lengths[segment]
        if length == 0:
            continue
        position = _unwrap(sequences[segment], reference[connection], modulus)
        # Frames that are to be verified would move the reference to `ahead`.
        if _unwrap(sequences[segment], ahead[connection], modulus) != position:
            return segment, _VERIFY, found
        if position < 0:
            counts[_BAD_POSITION] += 1
            continue
        flow = flow_of[connection]
        if position < base[flow] or position + length > limit[flow]:
            return segment, _OTHER, found
        # Look at all pieces before anything changes.
        low, high = first_copy[flow], first_copy[flow + 1]
        source = starts[segment]
        rest = length
        pieces = 0
        while rest > 0:
            if pieces == _PIECES:
                return segment, _OTHER, found
            steps = (position - base[flow]) // step_length[flow]
            offset = position - base[flow] - steps * step_length[flow]
            step = first_step + steps
            copy = _find(copy_start, low, high, hint[connection], offset)
            if step >= next_step + window:
                return segment, _VERIFY if found else _OTHER, found
            if copy < low or offset >= copy_start[copy] + copy_size[copy]:
                if not offline:
                    return segment, _OTHER, found
                stop = copy_start[copy + 1] if copy + 1 < high else step_length[flow]
                size = min(rest, stop - offset)
                copy_of[pieces], size_of[pieces], step_of[pieces] = _NONE, size, step
                pieces += 1
                rest -= size
                position += size
                continue
            if copy == high - 1 and step == last_step:
                return segment, _OTHER, found
            inner = offset - copy_start[copy]
            size = min(rest, copy_size[copy] - inner)
            if step >= next_step:
                row = step % window
                frame = copy_frame[copy]
                known = state[row, frame]
                if known == _OBJECT:
                    return segment, _OTHER, found
                if known == _COVERED_STATE:
                    return segment, _VERIFY, found
                shared = frame_copies[frame] > 1
                if known != _VERIFIED or shared or offline:
                    there = prefix[row, copy]
                    if inner > there:
                        return segment, _OTHER, found
                    if offline and inner < min(there, _HEADER) and not _same(
                        memory[row], copy_header[copy] + inner,
                        data, source + length - rest, min(there, _HEADER, inner + size) - inner,
                    ):  # fmt: skip
                        return segment, _OTHER, found
                    if known == _VERIFIED:
                        begin, end = inner if offline else max(inner, there), inner + size
                    elif shared:
                        begin, end = inner, min(inner + size, filled[row, frame] + _HEADER)
                    else:
                        begin, end = inner, min(inner + size, there)
                    begin = max(begin, _HEADER)
                    if begin < end and not _same(
                        memory[row], frame_payload[frame] + begin - _HEADER,
                        data, source + length - rest + begin - inner, end - begin,
                    ):  # fmt: skip
                        return segment, _OTHER, found
            copy_of[pieces], inner_of[pieces], size_of[pieces], step_of[pieces] = copy, inner, size, step
            hint[connection] = copy
            pieces += 1
            rest -= size
            position += size
        duplicate = redundant = over = False
        for piece in range(pieces):
            copy, inner, size, step = copy_of[piece], inner_of[piece], size_of[piece], step_of[piece]
            if copy == _NONE:
                if step >= next_step:
                    tallies[step % window, _UNEXPECTED] += size
                source += size
                continue
            placed = 0
            if step >= next_step:
                row = step % window
                tallies[row, _WIRE] += size
                tallies[row, _WIRE_PAYLOAD] += max(0, inner + size - max(inner, _HEADER))
                frame = copy_frame[copy]
                known = state[row, frame]
                there = prefix[row, copy]
                end = inner + size
                if end > there:
                    if there < _HEADER:
                        head = min(end, _HEADER) - there
                        _copy(memory[row], copy_header[copy] + there, data, source + there - inner, head)
                        if not copy_redundant[copy] and known != _VERIFIED:
                            placed += head
                    have = filled[row, frame]
                    if known != _VERIFIED and end - _HEADER > have:
                        count = end - _HEADER - have
                        _copy(memory[row], frame_payload[frame] + have, data, source + have + _HEADER - inner, count)
                        filled[row, frame] = end - _HEADER
                        placed += count
                    prefix[row, copy] = end
                    if end >= _HEADER:
                        headed[row, frame] = True
                    tallies[row, _RECEIVED] += placed
                    there = end
                whole = there == copy_size[copy]
                following = base[flow] + (step - first_step) * step_length[flow] + copy_following[copy]
                if known == _VERIFIED:
                    if whole:
                        reference[connection] = max(reference[connection], following)
                        ahead[connection] = max(ahead[connection], following)
                elif headed[row, frame] and filled[row, frame] == copy_size[copy] - _HEADER:
                    state[row, frame] = _COVERED_STATE
                    tallies[row, _COVERED] += 1
                    over = over or tallies[row, _COVERED] == tallies[row, _REMAINING]
                    covered[found, 0], covered[found, 1], covered[found, 2] = row, copy, connection
                    found += 1
                    if whole:
                        ahead[connection] = max(ahead[connection], following)
            if placed < size:
                if copy_redundant[copy]:
                    redundant = True
                else:
                    duplicate = True
            source += size
        counts[_DUPLICATE] += duplicate
        counts[_REDUNDANT] += redundant
        if over or found + _PIECES > len(covered):
            return segment + 1, _VERIFY, found
    return len(starts), _END, found
