"""Finds where frame headers may begin in TCP segments, those too that lie in two segments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from checkmate_common.stream.frame import HEADER_BYTES, MAGIC, FrameError, FrameHeader
from packets.compiled import Kernel

TAIL = HEADER_BYTES - 1
"""Most bytes of a header that can be at the end of a segment without being a whole one."""
_MODULUS = 1 << 32
_FOUND = 4096
"""Candidates that are looked for at a time."""


def headers_in(text: bytes) -> Iterator[tuple[int, FrameHeader]]:
    """Yield the valid frame headers in some bytes of a stream, and where each begins."""
    at = text.find(MAGIC)
    while 0 <= at <= len(text) - HEADER_BYTES:
        with suppress(FrameError):
            yield at, FrameHeader.unpack(text[at : at + HEADER_BYTES])
            at += HEADER_BYTES - 1
        at = text.find(MAGIC, at + 1)


class Tails:
    """The last bytes of each of some streams, by number; n streams. Memory: 80 bytes for each."""

    def __init__(self, capacity: int = 64) -> None:
        """Make room for `capacity` streams."""
        self.following = np.full(capacity, -1, np.int64)
        """[n] Sequence number of the byte that follows; -1 at the begin."""
        self.sizes = np.zeros(capacity, np.int64)
        """[n] Bytes of the tail."""
        self.bytes = np.zeros((capacity, TAIL), np.uint8)
        """[n, TAIL] The tail."""
        self._free = list(range(capacity))[::-1]

    def take(self) -> int:
        """Return the number of a new stream."""
        if not self._free:
            more = Tails(len(self.sizes))
            self._free = [len(self.sizes) + number for number in more._free]
            self.following = np.append(self.following, more.following)
            self.sizes = np.append(self.sizes, more.sizes)
            self.bytes = np.append(self.bytes, more.bytes, axis=0)
        return self._free.pop()

    def give_back(self, number: int) -> None:
        """Forget a stream."""
        self.following[number], self.sizes[number] = -1, 0
        self._free.append(number)


def _find(
    at: int,
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    sequences: NDArray[np.int64],
    streams: NDArray[np.int64],
    following: NDArray[np.int64],
    sizes: NDArray[np.int64],
    tails: NDArray[np.uint8],
    rows: NDArray[np.int64],
    found_sequences: NDArray[np.int64],
    headers: NDArray[np.uint8],
) -> tuple[int, int]:
    """Look through segments from `at` on; return the next one to look at, and how many candidates were found.

    A candidate is a place where the magic is, with enough bytes for a header from there on. Ends early where there is
    no room for the candidates of one more segment.

    Args:
        at: first segment.
        data: memory that the payloads lie in.
        starts: [n] first payload byte of each segment.
        lengths: [n] payload bytes.
        sequences: [n] sequence number of the first payload byte.
        streams: [n] number of the stream, see `Tails`.
        following: see `Tails`; changed.
        sizes: see `Tails`; changed.
        tails: see `Tails`; changed.
        rows: [m] filled with the segment in which a candidate ends.
        found_sequences: [m] filled with the sequence number of its first byte.
        headers: [m, HEADER_BYTES] filled with its bytes.
    """
    found = 0
    for row in range(at, len(starts)):
        stream, begin, length = int(streams[row]), int(starts[row]), int(lengths[row])
        first, text = int(sequences[row]), data[begin : begin + length].tobytes()
        if first == following[stream] and sizes[stream]:
            tail = tails[stream, : sizes[stream]].tobytes()
            first, text = (first - len(tail)) % _MODULUS, tail + text
        places = []
        place = text.find(MAGIC)
        while 0 <= place <= len(text) - HEADER_BYTES:
            places.append(place)
            place = text.find(MAGIC, place + 1)
        if found and found + len(places) > len(rows):
            return row, found
        for place in places[: len(rows)]:
            rows[found], found_sequences[found] = row, (first + place) % _MODULUS
            headers[found] = np.frombuffer(text, np.uint8, HEADER_BYTES, place)
            found += 1
        following[stream] = (first + len(text)) % _MODULUS
        kept = text[-TAIL:]
        sizes[stream] = len(kept)
        tails[stream, : len(kept)] = np.frombuffer(kept, np.uint8)
    return len(starts), found


def _example() -> tuple[object, ...]:
    none, tails = np.zeros(0, np.int64), Tails(1)
    headers = np.zeros((1, HEADER_BYTES), np.uint8)
    data = np.frombuffer(b"", np.uint8)
    return 0, data, none, none, none, none, tails.following, tails.sizes, tails.bytes, none, none, headers


find_candidates = Kernel(_find, "replay.scan_kernel:find", _example)
"""See `_find`."""


class Candidates:
    """Room for what `find_candidates` finds."""

    def __init__(self, count: int = _FOUND) -> None:
        """Make room for `count`; of one segment with more, the first are found."""
        self.rows = np.zeros(count, np.int64)
        self.sequences = np.zeros(count, np.int64)
        self.headers = np.zeros((count, HEADER_BYTES), np.uint8)
