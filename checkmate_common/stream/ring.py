"""The ring all-reduce as arithmetic: which rank sends which chunk at which hop, and the elements of a chunk.

Ring of ranks 0..N-1, each sending to its successor (r + 1) mod N. Reduce-scatter hop s = 0..N-2: rank r sends chunk
(r - s) mod N. After it rank r owns the reduced chunk (r + 1) mod N. All-gather hop h = 0..N-2: rank r sends chunk
(r + 1 - h) mod N, so hop 0 over all ranks carries each reduced chunk exactly once.

Source: Baidu's ring all-reduce as NCCL runs it (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum


class Phase(IntEnum):
    """Half of a ring all-reduce; the value is the code in the frame header."""

    REDUCE_SCATTER = 0
    ALL_GATHER = 1


def hops(ring_size: int) -> Iterator[tuple[Phase, int]]:
    """Yield (phase, hop) in the order in which every rank sends them for one bucket."""
    for phase in Phase:
        for hop in range(ring_size - 1):
            yield phase, hop


def chunk_sent(phase: Phase, rank: int, hop: int, ring_size: int) -> int:
    """Return the chunk that `rank` sends to its successor at `hop` (0..N-2) of `phase`."""
    if phase is Phase.REDUCE_SCATTER:
        return (rank - hop) % ring_size
    return (rank + 1 - hop) % ring_size


def sender_of(phase: Phase, chunk: int, hop: int, ring_size: int) -> int:
    """Return the rank that sends `chunk` at `hop` of `phase`: the inverse of `chunk_sent`."""
    if phase is Phase.REDUCE_SCATTER:
        return (chunk + hop) % ring_size
    return (chunk - 1 + hop) % ring_size


def split(start: int, stop: int, parts: int, index: int) -> tuple[int, int]:
    """Return the half-open range of part `index` of [start, stop) cut into `parts` parts.

    Sizes of parts differ by at most one element; some parts are empty if there are fewer elements than parts.
    """
    size = stop - start
    return start + index * size // parts, start + (index + 1) * size // parts


def chunk_range(elements: int, channels: int, channel: int, ring_size: int, chunk: int) -> tuple[int, int]:
    """Return the half-open element range of `chunk` on `channel` of a bucket of `elements`.

    The bucket is first cut into one contiguous part per channel, and each part into one chunk per rank.
    """
    first, last = split(0, elements, channels, channel)
    return split(first, last, ring_size, chunk)
