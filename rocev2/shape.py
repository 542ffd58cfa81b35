"""Arithmetic of NCCL's ring all-reduce with protocol LL, in data bytes (all_reduce.h, runRing, NCCL 2.18).

Per loop a tensor part of `rest` bytes is cut into chunks of
``min(32768, ceil(rest / (channels * ranks * grain)) * grain)`` bytes; chunk k of channel c starts at
``(k * channels + c) * chunk``. The grain is 8 bytes per thread of the kernel, whose number NCCL picks by size.
A rank with ring index r sends, per loop, chunks r-1, r-2, ..., r+1 (reduce-scatter), r, r-1, ..., r+2 (all-gather).
Newer NCCL (2.19 on) cuts contiguous parts per channel: for one channel that is the same, for several it is not, and
what does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHUNK_BYTES = 32768
"""Data bytes of a full LL slot: the largest chunk."""
GRAINS = (4096, 2048, 1024, 768)
"""Chunk alignments in data bytes: 512, 256, 128 and 96 threads."""


def divide_up(number: int, by: int) -> int:
    """Return number / by, rounded up."""
    return -(-number // by)


def chunk_bytes(rest: int, pieces: int, grain: int) -> int:
    """Return the chunk size of a loop over `rest` bytes, cut in `pieces` = channels * ranks chunks."""
    return min(CHUNK_BYTES, divide_up(rest, pieces * grain) * grain)


def sent_chunk(ring_index: int, step: int, ranks: int) -> int:
    """Return which chunk a rank sends at `step` (0 .. 2 * ranks - 3) of a loop."""
    return (ring_index - 1 - step) % ranks


@dataclass(frozen=True, slots=True)
class LoopShape:
    """One loop of an all-reduce."""

    ranks: int
    channels: int
    rest: int
    """Data bytes that this loop covers."""
    chunk: int
    """Bytes of a full chunk."""

    def start(self, chunk: int, channel: int) -> int:
        """Return where a chunk starts, in bytes from the start of the loop."""
        return min(self.rest, (chunk * self.channels + channel) * self.chunk)

    def size(self, chunk: int, channel: int) -> int:
        """Return how many bytes a chunk has: 0 beyond the end of the tensor."""
        return max(0, min(self.chunk, self.rest - (chunk * self.channels + channel) * self.chunk))

    @property
    def full(self) -> bool:
        """Whether every chunk is as large as a slot allows, so that another loop may follow."""
        return self.rest == self.ranks * self.channels * CHUNK_BYTES

    @property
    def uniform(self) -> bool:
        """Whether all chunks have the same size, so that sizes cannot tell the phases apart."""
        return self.rest == self.ranks * self.channels * self.chunk


class Contradiction(Exception):
    """The sizes are those of no all-reduce."""


class Undetermined(Exception):
    """Too much is lost: the sizes fit more than one all-reduce."""


def solve(ranks: int, channels: int, known: Mapping[int, int], bounds: Mapping[int, tuple[int, int]]) -> LoopShape:
    """Return the only loop whose chunks have the given sizes.

    Args:
        ranks: ranks of the ring.
        channels: channels that take part.
        known: sizes in bytes by position ``chunk * channels + channel``; positions that are lost are absent.
        bounds: least and greatest size of positions that are not `known`.

    Raises:
        Contradiction: there is none.
        Undetermined: there is more than one, as far as can be seen.
    """
    pieces = ranks * channels
    filled = [position for position, size in known.items() if size]
    if not filled:
        raise Contradiction if len(known) == pieces else Undetermined
    last = max(filled)
    before = {known[position] for position in filled if position < last}
    if len(before) > 1 or any(position < last and not size for position, size in known.items()):
        raise Contradiction
    tail = known[last]
    if before:
        chunk = before.pop()
        if tail > chunk:
            raise Contradiction
    elif last == 0:
        if pieces > 1 and known.get(1) != 0 and any(tail % grain == 0 for grain in GRAINS):
            raise Undetermined  # it may be a full chunk with others behind it
        chunk = _first_only(tail, pieces)
    else:
        raise Undetermined  # only the last chunk is known: the size of those before it is not
    if tail == chunk and last + 1 < pieces and known.get(last + 1) != 0:
        raise Undetermined  # the next one may hold anything
    shape = LoopShape(ranks, channels, last * chunk + tail, chunk)
    if chunk not in {chunk_bytes(shape.rest, pieces, grain) for grain in GRAINS}:
        raise Contradiction
    for position, (least, most) in bounds.items():
        if not least <= shape.size(*divmod(position, channels)) <= most:
            raise Contradiction
    return shape


def _first_only(size: int, pieces: int) -> int:
    """Return a chunk size for a loop whose first chunk alone holds data (where the others start does not matter)."""
    for grain in GRAINS:
        chunk = chunk_bytes(size, pieces, grain)
        if chunk >= size:
            return chunk
    raise Contradiction


def loops(total: int, ranks: int, channels: int, grain: int = GRAINS[0]) -> list[tuple[int, LoopShape]]:
    """Return the loops of an all-reduce of `total` data bytes, each with its start."""
    found = []
    start = 0
    while start < total:
        rest = min(total - start, ranks * channels * CHUNK_BYTES)
        found.append((start, LoopShape(ranks, channels, rest, chunk_bytes(total - start, ranks * channels, grain))))
        start += rest
    return found
