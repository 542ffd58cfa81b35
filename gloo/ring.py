"""Arithmetic of gloo's ring all-reduce (gloo/allreduce.cc, ``ring``): which message carries which bytes of the tensor.

Data go from rank r to rank r - 1. Chunk c is segments c*S .. c*S + S - 1; after the reduce-scatter rank r holds chunk r
reduced, and the all-gather passes the chunks on unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MAX_SEGMENT_BYTES = 1 << 20
"""Segment at most (``kMaxSegmentSize``), rounded down to whole elements."""
ELEMENT_SIZES = (4, 2, 8, 1)
"""Bytes of an element, the likeliest first: they are not on the wire."""
MAX_RANKS = 4096
"""Ranks of a group at most: what claims more is not believed."""
_MOST_SEGMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """One DATA message of a rank, in the order in which it sends them; empty segments have none."""

    start: int
    """First byte of the tensor that it carries."""
    length: int
    """Bytes, at least 1."""
    gathers: bool
    """Whether the bytes are reduced ones (all-gather), not sums on their way (reduce-scatter)."""


@dataclass(frozen=True, slots=True)
class Segments:
    """How a tensor is cut."""

    count: int
    """Segments, empty ones included: a multiple of the ranks."""
    nbytes: int
    """Bytes of each segment but the last that is not empty."""


def cut(nbytes: int, element: int, ranks: int) -> Segments:
    """Return how `nbytes` bytes of elements of `element` bytes are cut for `ranks` ranks."""
    most = element * max(1, MAX_SEGMENT_BYTES // element)
    count = _round_up(max(-(-nbytes // most), 2 * ranks), ranks)
    return Segments(count, _round_up(-(-nbytes // count), element))


@lru_cache(maxsize=256)
def parts(nbytes: int, element: int, ranks: int, rank: int) -> tuple[Part, ...]:
    """Return the DATA messages that `rank` sends for a tensor of `nbytes` bytes."""
    segments = cut(nbytes, element, ranks)
    each = segments.count // ranks
    found: list[Part] = []
    for gathers, first in ((False, (rank + 1) * each), (True, rank * each)):
        for number in range((ranks - 1) * each):
            start = (first + number) % segments.count * segments.nbytes
            if start < nbytes:
                found.append(Part(start, min(segments.nbytes, nbytes - start), gathers))
    return tuple(found)


def lengths(nbytes: int, element: int, ranks: int, rank: int) -> tuple[int, ...]:
    """Return the lengths of the DATA messages that `rank` sends."""
    return tuple(part.length for part in parts(nbytes, element, ranks, rank))


def solve(seen: Sequence[int], ranks: int, rank: int) -> tuple[int, int] | None:
    """Return bytes of the tensor and of an element whose messages of `rank` have just the lengths `seen`.

    Several element sizes may fit: they cut the tensor alike then, and any of them is returned.

    Returns:
        None where no tensor has them, or two of different size do.
    """
    if not seen or len(seen) > _MOST_SEGMENTS:
        return None
    full = max(seen)
    shorter = {length for length in seen if length != full}
    if len(shorter) > 1:
        return None
    last = shorter.pop() if shorter else full
    # Each segment is sent twice, but for those of two chunks, which are sent once.
    found: dict[int, int] = {}
    most = len(seen)
    for count in range(-(-most // 2), most + 1):
        nbytes = (count - 1) * full + last
        for element in ELEMENT_SIZES:
            if full % element == 0 and last % element == 0 and cut(nbytes, element, ranks).nbytes == full:
                if nbytes not in found and lengths(nbytes, element, ranks, rank) == tuple(seen):
                    found[nbytes] = element
                break
    return found.popitem() if len(found) == 1 else None


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
