"""One direction of a connection: its requests in PSN order, each once, with gaps where packets are missing.

PSNs are the sender's order. The order of packets in the capture does not matter: they are sorted at the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from packets.batch import Bytes
from packets.gather import gather
from rocev2.headers import FRAME, Frames
from rocev2.opcodes import READ_REQUEST
from rocev2.psn import HALF, MODULUS, unwrap, wrap

_MOST_RANGES = 1000
_LEAST_MTU = 256
_COPIED = ["opcode", "address", "rkey", "length", "immediate", "size"]
"""Fields that two copies of a packet must have in common, besides the payload."""


class PsnRanges:
    """A set of unwrapped PSNs, kept as ranges."""

    def __init__(self) -> None:
        """Start empty."""
        self._starts: list[int] = []
        self._stops: list[int] = []

    def append(self, psns: NDArray[np.int64]) -> None:
        """Add ascending numbers that are greater than all that are there."""
        breaks = np.flatnonzero(np.diff(psns) > 1)
        starts, stops = psns[np.append(0, breaks + 1)].tolist(), (psns[np.append(breaks, -1)] + 1).tolist()
        if self._stops and self._stops[-1] == starts[0]:
            self._stops[-1] = stops[0]
            del starts[0], stops[0]
        self._starts += starts
        self._stops += stops

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
        """Return the missing ranges (first, last) between the lowest and the highest number."""
        return [(stop, start - 1) for stop, start in zip(self._stops, self._starts[1:], strict=False)]


class QueuePair:
    """Collects the requests sent to one destination queue pair.

    If two copies of a packet differ, it is unknown which one the receiver accepted, so the PSN counts as lost.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._kept: list[Frames] = []  # each in PSN order; `payload` is a position in `_payloads`
        self._payloads: Bytes = np.empty(0, np.uint8)  # with room behind the `_end` bytes that are there
        self._end = 0
        self._conflicts: set[int] = set()
        self._seen = PsnRanges()
        self._newest: int | None = None
        self.reads: dict[int, int] = {}
        """Unwrapped PSN of each READ request -> bytes requested."""
        self.duplicates = self.conflicting = self.reordered = 0

    def add(self, frames: Frames, keep: NDArray[np.bool_], data: Bytes) -> None:
        """Add packets.

        Args:
            frames: requests in the order of the capture, at least one; their PSNs are unwrapped in place.
            keep: which of them to keep; of the others only the PSN is recorded.
            data: bytes that `frames["payload"]` indexes.
        """
        if self._newest is None:
            self._newest = int(frames["psn"][0]) + MODULUS - 1
        psns = frames["psn"]
        ahead = (np.diff(psns, prepend=self._newest) + HALF - 1) % MODULUS - (HALF - 1)
        if (ahead > 0).all():  # in order, as nearly always
            psns[:] = self._newest + np.cumsum(ahead)
            self._newest = int(psns[-1])
            self._seen.append(psns)
        else:
            new = self._out_of_order(frames, keep, data)
            frames, keep = frames[new], keep[new]
        reads = frames[frames["opcode"] == READ_REQUEST]
        self.reads.update(zip(reads["psn"].tolist(), reads["length"].tolist(), strict=True))
        kept = frames[keep]
        if len(kept):
            starts, sizes = np.ascontiguousarray(kept["payload"]), np.ascontiguousarray(kept["size"])
            stops = self._end + np.cumsum(sizes)
            end = int(stops[-1])
            if end > len(self._payloads):
                room = np.empty(2 * end, np.uint8)  # memory that is not written to yet costs nothing
                room[: self._end] = self._payloads[: self._end]
                self._payloads = room
            gather(data, starts, sizes, self._payloads[self._end : end])
            self._end = end
            kept["payload"] = stops - sizes
            self._kept.append(kept)

    def _out_of_order(self, frames: Frames, keep: NDArray[np.bool_], data: Bytes) -> NDArray[np.int64]:
        """Unwrap PSNs one by one and compare copies; return the rows of first copies in PSN order."""
        assert self._newest is not None
        new: dict[int, int] = {}
        for row, number in enumerate(frames["psn"].tolist()):
            psn = unwrap(number, self._newest)
            frames["psn"][row] = psn
            if self._seen.add(psn):
                self.reordered += psn < self._newest
                self._newest = max(self._newest, psn)
                new[psn] = row
                continue
            place = new.get(psn)
            first = None if place is None else frames[place : place + 1][keep[place : place + 1]]
            if psn in self._conflicts or not self._like_first(frames[row : row + 1], first, data):
                self.conflicting += 1
                self._conflicts.add(psn)
            else:
                self.duplicates += 1
        return np.array([new[psn] for psn in sorted(new)], np.int64)

    def _like_first(self, copy: Frames, first: Frames | None, data: Bytes) -> bool:
        """Return whether a packet equals the first copy: one of its batch, or else one that was kept; True if none was.

        Args:
            copy: one row.
            first: one row of the same batch, no row if that is not kept, None if the first copy is in none.
            data: where the payloads of the batch are.
        """
        payloads = data if first is not None else self._payloads
        first = self._find(int(copy["psn"][0])) if first is None else first
        if not len(first):
            return True
        size, place, other = (int(column[0]) for column in (copy["size"], copy["payload"], first["payload"]))
        return all(copy[name][0] == first[name][0] for name in _COPIED) and np.array_equal(
            payloads[other : other + size], data[place : place + size]
        )

    def _find(self, psn: int) -> Frames:
        """Return the kept packet of an earlier batch with an unwrapped PSN, no row without one."""
        for kept in reversed(self._kept):
            psns = kept["psn"]
            if psns[0] <= psn <= psns[-1]:
                row = int(np.searchsorted(psns, psn))
                if psns[row] == psn:
                    return kept[row : row + 1]
        return np.zeros(0, FRAME)

    def requests(self) -> tuple[Frames, Bytes]:
        """Return the kept packets in PSN order, each once, and the bytes that their `payload` indexes."""
        frames = np.concatenate(self._kept) if self._kept else np.zeros(0, FRAME)
        psns = frames["psn"]
        if (psns[1:] <= psns[:-1]).any():
            frames = frames[np.argsort(psns, kind="stable")]
        if self._conflicts:
            frames = frames[~np.isin(frames["psn"], list(self._conflicts))]
        return frames, self._payloads[: self._end]

    def lost(self, mtu: int | None, exact: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
        """Return the first lost PSN ranges (first, last), inclusive.

        A READ request uses as many PSNs as its response has packets.

        Args:
            mtu: path MTU; None if unknown: PSNs that a response may have used are then not reported as lost.
            exact: path MTU by PSN of READ requests whose response was captured.
        """
        lost = []
        reads = sorted(self.reads)
        for low, high in sorted([*self._seen.gaps(), *((psn, psn) for psn in self._conflicts)]):
            place = bisect_right(reads, low)
            if place and reads[place - 1] < low:
                psn = reads[place - 1]
                size = exact.get(wrap(psn)) or mtu or _LEAST_MTU
                low = max(low, psn + max(1, -(-self.reads[psn] // size)))
            if low <= high:
                lost.append((wrap(low), wrap(high)))
        return tuple(lost[:_MOST_RANGES])
