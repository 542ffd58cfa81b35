"""One direction of one TCP connection: bytes by position, from whichever captures and copies bring them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packets.batch import Bytes
from placement.coverage import Coverage

PAGE_BYTES = 1 << 16
"""Memory is taken in pages, so that a hole costs nothing."""
_MODULUS = 1 << 32
_HALF = 1 << 31
OPEN_START = 1 << 40
"""Position of the first byte that is seen of a stream whose SYN is in no capture: the true ones are not known."""


class Stream:
    """Bytes of one direction between `released` and the newest one.

    Position 0 is the byte behind the SYN; positions have 64 bits, and may be any number of bytes ahead.
    """

    def __init__(self, isn: int | None) -> None:
        """Begin a stream; `isn` is the sequence number of its SYN, None where no capture has it."""
        self.isn = isn
        """Initial sequence number."""
        self.there = Coverage()
        """Positions whose byte has come; what was released stays in it."""
        self.disputed = Coverage()
        """Positions of which two copies told different bytes: neither is believed."""
        self.released = 0 if isn is not None else None
        """Bytes before this position were given back; None before the first byte of an open start."""
        self.end: int | None = None
        """Position of its FIN: the stream's length."""
        self.late_bytes = 0
        """Bytes that came again, or only, when their place had been given back."""
        self._pages: dict[int, Bytes] = {}
        self._reference = 0
        self._zero = None if isn is None else (isn + 1) % _MODULUS

    @property
    def nbytes(self) -> int:
        """Memory that its bytes take."""
        return len(self._pages) * PAGE_BYTES

    @property
    def start(self) -> int:
        """First position that can be read."""
        return self.released or 0

    def positions(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of sequence numbers, each the nearest one to those before.

        Exact while they are less than 2^31 bytes from the newest byte so far.
        """
        if self._zero is None:
            self._zero = int(sequences[0])
            self._reference = OPEN_START
            self._zero = (self._zero - OPEN_START) % _MODULUS
        found: NDArray[np.int64] = (
            (sequences - self._zero - self._reference + _HALF) % _MODULUS - _HALF + self._reference
        )
        return found

    def place(self, position: int, data: Bytes) -> None:
        """Put bytes, at least one, where they belong; those that were there are compared."""
        end = position + len(data)
        if self.released is None:
            self.released = max(0, position - (1 << 24))  # segments may come in another order
        self._reference = max(self._reference, end)
        if position < self.released:
            self.late_bytes += min(end, self.released) - position
            data = data[self.released - position :]
            position = self.released
            if position >= end:
                return
        new = self.there.fill(position, end)
        if new != [(position, end)]:
            at = position
            for start, stop in [*new, (end, end)]:
                if at < start:
                    self._compare(at, data[at - position : start - position])
                at = stop
        for start, stop in new:
            self._write(start, data[start - position : stop - position])

    def finish(self, position: int) -> None:
        """Note that the stream ends at `position`."""
        self.end = position if self.end is None else max(self.end, position)

    def read(self, start: int, end: int) -> Bytes:
        """Return the bytes [start, end), what is not there as any value."""
        out = np.zeros(end - start, np.uint8)
        at = start
        while at < end:
            number, offset = divmod(at, PAGE_BYTES)
            size = min(end - at, PAGE_BYTES - offset)
            page = self._pages.get(number)
            if page is not None:
                out[at - start : at - start + size] = page[offset : offset + size]
            at += size
        return out

    def good(self, start: int, end: int) -> bool:
        """Tell whether all bytes [start, end) are there and undisputed."""
        return start >= end or self.spans(start, end) == [(start, end)]

    def spans(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [start, end) that are there and undisputed, in order."""
        return without(without([(start, end)], self.there.missing(start, end)), covered(self.disputed, start, end))

    def release(self, position: int) -> None:
        """Give back the bytes before `position`."""
        if self.released is None or position <= self.released:
            return
        self.released = position
        for number in [number for number in self._pages if (number + 1) * PAGE_BYTES <= position]:
            del self._pages[number]

    def _write(self, position: int, data: Bytes) -> None:
        at = 0
        while at < len(data):
            number, offset = divmod(position + at, PAGE_BYTES)
            size = min(len(data) - at, PAGE_BYTES - offset)
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = np.empty(PAGE_BYTES, np.uint8)
            page[offset : offset + size] = data[at : at + size]
            at += size

    def _compare(self, position: int, data: Bytes) -> None:
        differing = np.flatnonzero(self.read(position, position + len(data)) != data)
        if len(differing):
            breaks = np.flatnonzero(np.diff(differing) > 1) + 1
            for run in np.split(differing, breaks):
                self.disputed.add(position + int(run[0]), position + int(run[-1]) + 1)


def covered(numbers: Coverage, start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of [start, end) that are in `numbers`, in order."""
    return without([(start, end)], numbers.missing(start, end))


def without(spans: list[tuple[int, int]], holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return `spans` less `holes`; both are in order and disjoint."""
    found: list[tuple[int, int]] = []
    for start, end in spans:
        for low, high in holes:
            if high <= start or low >= end:
                continue
            if start < low:
                found.append((start, low))
            start = max(start, high)
        if start < end:
            found.append((start, end))
    return found
