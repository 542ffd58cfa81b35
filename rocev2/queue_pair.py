"""One direction of a connection: requests in PSN order, each once, holes left open.

The PSN is the sender's own order. In which order a capture has the packets does not matter: all of them are sorted
when the capture has ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from rocev2.headers import RoceFrame
from rocev2.psn import MODULUS, unwrap, wrap

_MOST_RANGES = 1000
_LEAST_MTU = 256


class Request(NamedTuple):
    """A request packet at its place."""

    psn: int
    """Unwrapped PSN."""
    order: int
    """Position in the capture of its first copy; for reports only."""
    opcode: int
    address: int
    rkey: int
    length: int
    immediate: int
    payload: bytes


class PsnRanges:
    """A set of unwrapped PSNs, kept as ranges."""

    def __init__(self) -> None:
        """Start empty."""
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, psn: int) -> bool:
        """Add a number; return False if it is there already."""
        starts, stops = self._starts, self._stops
        place = bisect_right(starts, psn)
        if place and psn < stops[place - 1]:
            return False
        joins_before = place > 0 and stops[place - 1] == psn
        joins_after = place < len(starts) and starts[place] == psn + 1
        if joins_before and joins_after:
            stops[place - 1] = stops[place]
            del starts[place], stops[place]
        elif joins_before:
            stops[place - 1] = psn + 1
        elif joins_after:
            starts[place] = psn
        else:
            starts.insert(place, psn)
            stops.insert(place, psn + 1)
        return True

    def gaps(self) -> list[tuple[int, int]]:
        """Return what lies between its least and its greatest number, as inclusive ranges."""
        return [(stop, start - 1) for stop, start in zip(self._stops, self._starts[1:], strict=False)]


class QueuePair:
    """Takes the requests to one destination queue pair.

    A second copy that differs from the first makes both worthless: nobody can tell which one the receiver took, so the
    PSN counts as lost.
    """

    def __init__(self) -> None:
        """Start before the first packet."""
        self._kept: dict[int, Request | None] = {}
        self._seen = PsnRanges()
        self._newest: int | None = None
        self.reads: dict[int, int] = {}
        """Unwrapped PSN of each READ request -> bytes that it asks for."""
        self.duplicates = self.conflicting = self.reordered = 0

    def add(self, frame: RoceFrame, order: int, read: bool, keep: bool) -> None:
        """Take one packet; only the PSN counts unless `keep`."""
        if self._newest is None:
            self._newest = frame.psn + MODULUS
        psn = unwrap(frame.psn, self._newest)
        new = self._seen.add(psn)
        if new:
            self.reordered += psn < self._newest
            self._newest = max(self._newest, psn)
            if read:
                self.reads[psn] = frame.length
        request = Request(
            psn, order, frame.opcode, frame.address, frame.rkey, frame.length, frame.immediate, frame.payload
        )
        if not new:
            self._again(psn, request)
        elif keep:
            self._kept[psn] = request

    def _again(self, psn: int, request: Request) -> None:
        first = self._kept.get(psn, request)
        if first is not None and first[2:] == request[2:]:
            self.duplicates += 1
        else:
            self.conflicting += 1
            self._kept[psn] = None

    def requests(self) -> list[Request]:
        """Return the packets that were kept, in PSN order, each once."""
        kept = ((psn, self._kept[psn]) for psn in sorted(self._kept))
        return [request for _, request in kept if request is not None]

    def lost(self, mtu: int | None, exact: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
        """Return the first lost ranges (first, last), inclusive, of PSNs that requests must have had.

        A READ request takes as many PSNs as its response has packets.

        Args:
            mtu: path MTU, None where not known: then what a response may have taken is not called lost.
            exact: path MTU by PSN of a READ request whose response was seen.
        """
        lost = []
        reads = sorted(self.reads)
        conflicts = sorted(psn for psn, request in self._kept.items() if request is None)
        for low, high in sorted([*self._seen.gaps(), *((psn, psn) for psn in conflicts)]):
            place = bisect_right(reads, low)
            if place and reads[place - 1] < low:
                psn = reads[place - 1]
                size = exact.get(wrap(psn)) or mtu or _LEAST_MTU
                low = max(low, psn + max(1, -(-self.reads[psn] // size)))
            if low <= high:
                lost.append((wrap(low), wrap(high)))
        return tuple(lost[:_MOST_RANGES])
