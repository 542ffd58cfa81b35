"""Plain messages that repeat a part of a reduced tensor, and where in it they belong.

A p2p message carries no position. It is placed only where there is one possibility:

* somewhere in the proven part of the tensor, because its bytes are there and nowhere else; then it may also supply
  elements that are lost next to them;
* or in the part that no captured flow could have shown, because it is exactly as long as that part, and its bytes
  do not occur in the proven part (else it is a copy of that).

Where it differs from the all-gather it is in conflict, and the all-gather wins.

Which all-reduce it repeats only counting tells, where its bytes do not: there must be exactly one message for each
all-reduce of the ring, in the order of the PSNs, and nothing else of either may be open or lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocev2.flow import FlowKey
from rocev2.messages import Write
from rocev2.place import LINE, Tensor
from rocev2.psn import gaps, wrap
from rocev2.results import MissingPsn, P2pMessage

WORD = 4
_LEAST_BYTES = 64  # fewer equal bytes prove nothing
_MOST_MATCHES = 2
_MOST_BYTES = 16 << 20  # of a message
_MOST_LOST = 64  # bytes for each one that was captured
_MOST_COMPARED = 64  # all-reduces that a message is compared with


@dataclass(slots=True)
class PlainMessage:
    """One plain message, with the holes that losses leave."""

    source: bytes
    destination: bytes
    dest_qp: int
    data: NDArray[np.uint8]
    """Its bytes, shape (bytes,)."""
    there: NDArray[np.bool_]
    """Which of them were captured, shape (bytes,)."""
    lost: list[MissingPsn]
    """Its packets that the capture lacks."""
    first_psn: int
    """Unwrapped PSN of its first packet."""
    last_psn: int
    first_order: int
    last_order: int


def plain_message(key: FlowKey, write: Write, mtu: int | None) -> PlainMessage | None:
    """Return a message by offset, None when its size is not known, or nearly all of it is lost."""
    length = write.length
    if length is None:
        length = write.immediate if write.immediate > 0 and write.ended else None
    if length is None or length > min(_MOST_BYTES, _MOST_LOST * write.bytes):
        return None
    data = np.zeros(length, np.uint8)
    there = np.zeros(length, np.bool_)
    at = (write.first, 0) if write.first is not None else (write.last_psn, length - len(write.packet(-1)))
    step = mtu or length  # without an MTU there is one packet
    offsets = write.offsets(at[1], at[0], step)
    fits = (offsets >= 0) & (offsets + write.frames["size"] <= length)
    for offset, place, size in write.pieces(at[1], at[0], step, fits):
        data[offset : offset + size] = write.data[place : place + size]
        there[offset : offset + size] = True
    packets = 1 if mtu is None else -(-length // mtu)
    first = write.first_psn if write.single else write.first
    if first is None:
        first = write.last_psn - packets + 1
    lost = [
        MissingPsn(key.dest_qp, wrap(low), wrap(high)) for low, high in gaps(write.runs(), first, first + packets - 1)
    ]
    return PlainMessage(*key, data, there, lost, first, first + packets - 1, write.order, write.last_order)


class Position(NamedTuple):
    """Where a message belongs."""

    outcome: str
    start: int | None
    differing: int = 0


def locate(message: PlainMessage, tensor: Tensor) -> Position:
    """Return where in a tensor a message belongs, if that can be told."""
    length = len(message.data)
    if length % WORD or length > tensor.bytes:
        return Position("unrelated", None)
    known: NDArray[np.bool_] = np.repeat(tensor.covered, LINE)
    value = tensor.lines.view(np.uint8)
    hidden = _hidden(tensor)
    fits_hidden = hidden is not None and hidden[1] - LINE < hidden[0] + length <= hidden[1]
    matches = _matches(message, value, known)
    if len(matches) == 1 and not (fits_hidden and matches[0] == (hidden or (0, 0))[0]):
        return Position("agrees", matches[0])
    if matches:
        # It is a copy of something that is known; where its length would put it, it may differ.
        conflict = _conflict(message, tensor, value, known)
        return conflict if conflict.differing else Position("ambiguous", None)
    if fits_hidden and hidden is not None:
        start = hidden[0]
        part = slice(start, start + length)
        differing = known[part] & message.there & (value[part] != message.data)
        if differing.any():
            return Position("conflict", start, int(differing.sum()))
        return Position("supplies", start)
    return _conflict(message, tensor, value, known)


def _conflict(message: PlainMessage, tensor: Tensor, value: NDArray[np.uint8], known: NDArray[np.bool_]) -> Position:
    """Return a conflict with the chunk that has the length of the message, if there is one."""
    length = len(message.data)
    found = tensor.found
    base = 0
    for shape in found.loops:
        for chunk in range(found.ranks):
            start = base + shape.start(chunk, 0)
            stop = base + (shape.start(chunk + 1, 0) if chunk + 1 < found.ranks else shape.rest)
            if stop - LINE < start + length <= stop and length:
                part = slice(start, start + length)
                differing = known[part] & message.there & (value[part] != message.data)
                return Position("conflict", start, int(differing.sum()))
        base += shape.rest
    return Position("unrelated", None)


def _hidden(tensor: Tensor) -> tuple[int, int] | None:
    """Return the bytes that no captured flow carries in the all-gather, None unless they are one range."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], tensor.observable, [True])).astype(np.int8)))
    if len(edges) != 2:
        return None
    return int(edges[0]) * LINE, int(edges[1]) * LINE


def _matches(message: PlainMessage, value: NDArray[np.uint8], known: NDArray[np.bool_]) -> list[int]:
    """Return the first few byte offsets where the message agrees with all that is known, and enough is known."""
    length = len(message.data)
    words = np.ascontiguousarray(message.data).view("<u4")
    there = np.logical_and.reduce(message.there.reshape(-1, WORD), axis=1)
    tensor_words, tensor_known = value.view("<u4"), np.logical_and.reduce(known.reshape(-1, WORD), axis=1)
    places = len(tensor_words) - len(words) + 1
    counts = np.concatenate(([0], np.cumsum(tensor_known)))
    known_there = counts[len(words) :] - counts[:places]
    least = min(_LEAST_BYTES, length) // WORD
    candidates = np.flatnonzero(known_there >= least)  # elsewhere too little is known to prove anything
    compared = np.zeros(places, np.int64)
    positions = np.flatnonzero(there)
    both_ends = np.empty_like(positions)  # places that reach into the known part from either side fall soon
    both_ends[0::2] = positions[: (len(positions) + 1) // 2]
    both_ends[1::2] = positions[(len(positions) + 1) // 2 :][::-1]
    for position in both_ends:
        at = candidates + position
        seen = tensor_known[at]
        compared[candidates] += seen
        candidates = candidates[~seen | (tensor_words[at] == words[position])]
        if not len(candidates):
            return []
    enough = candidates[compared[candidates] >= least]
    return [int(place) * WORD for place in enough[:_MOST_MATCHES]]


def match(
    rows: Sequence[Sequence[PlainMessage]], tensors: Sequence[Tensor], counted: bool, use: bool
) -> list[tuple[PlainMessage, Position, Tensor | None]]:
    """Return where messages between the hosts of a ring belong.

    Args:
        rows: messages by queue pair, in PSN order.
        tensors: the all-reduces of the ring, in the order of their steps.
        counted: whether those are all that there were.
        use: let messages supply what the all-reduces lack.
    """
    done: list[tuple[PlainMessage, Position, Tensor | None]] = []
    for row in rows:
        paired = counted and len(row) == len(tensors) and _unbroken(row) and len(rows) == 1
        for number, message in enumerate(row):
            if paired:
                tensor: Tensor | None = tensors[number]
                position = locate(message, tensors[number])
            else:
                tensor, position = _by_content(message, tensors)
            if tensor is not None and position.outcome == "conflict":
                tensor.p2p_conflicts += position.differing
            elif use and tensor is not None and position.start is not None:
                supply(message, tensor, position.start)
            done.append((message, position, tensor))
    return done


def _unbroken(row: Sequence[PlainMessage]) -> bool:
    """Return whether no whole message can be lost between those that are there."""
    return all(before.last_psn + 1 == after.first_psn for before, after in pairwise(row))


def _by_content(message: PlainMessage, tensors: Sequence[Tensor]) -> tuple[Tensor | None, Position]:
    """Return the only tensor that a message fits."""
    if len(tensors) > _MOST_COMPARED:
        return None, Position("ambiguous", None)
    positions = [(tensor, locate(message, tensor)) for tensor in tensors]
    fits = [(tensor, position) for tensor, position in positions if position.outcome in ("agrees", "supplies")]
    if len(fits) == 1 and (fits[0][1].outcome == "agrees" or not any(p.outcome == "ambiguous" for _, p in positions)):
        # A part that nobody saw may hold anything: only a count says that a message belongs there.
        return fits[0] if fits[0][1].outcome == "agrees" else (None, Position("ambiguous", None))
    if fits:
        return None, Position("ambiguous", None)
    return next((item for item in positions if item[1].outcome != "unrelated"), (None, Position("unrelated", None)))


def supply(message: PlainMessage, tensor: Tensor, start: int) -> None:
    """Let a message supply the bytes of a tensor that are not covered."""
    if tensor.from_p2p is None or tensor.extra is None:
        tensor.from_p2p = np.zeros(tensor.bytes, np.bool_)
        tensor.extra = bytearray(tensor.bytes)
    part = slice(start, start + len(message.data))
    known: NDArray[np.bool_] = np.repeat(tensor.covered, LINE)
    lacking = ~known[part] & message.there & ~tensor.from_p2p[part]
    extra = np.frombuffer(tensor.extra, np.uint8)
    extra[part][lacking] = message.data[lacking]
    tensor.from_p2p[part] |= lacking
    if not tensor.observable[start // LINE : -(-(start + len(message.data)) // LINE)].all():
        tensor.missing_psn += message.lost


def report(message: PlainMessage, position: Position, all_reduce: int | None, itemsize: int) -> P2pMessage:
    """Return what is told of a message."""
    related = position.outcome != "unrelated"
    return P2pMessage(
        dest_qp=message.dest_qp,
        first_packet=message.first_order,
        last_packet=message.last_order,
        bytes=len(message.data),
        outcome=position.outcome,
        all_reduce=all_reduce if related else None,
        start=position.start if related else None,
        differing=-(-position.differing // itemsize),
    )
