"""One direction of a reliable connection: requests in PSN order, each once, holes left open."""

from __future__ import annotations

from typing import NamedTuple

from rocev2.headers import RoceFrame
from rocev2.psn import MODULUS, unwrap, wrap

WINDOW = 2048
"""Packets held back for reordering and retransmission: NCCL has at most 8 messages of 64 KiB in flight."""
_MOST_RANGES = 1000


class Request(NamedTuple):
    """A request packet at its place."""

    psn: int
    """Unwrapped PSN."""
    order: int
    """Position in the capture of its first copy."""
    frame: RoceFrame


class QueuePair:
    """Orders the requests to one destination queue pair.

    At most 2 * `WINDOW` packets are held. A second copy that differs from the first makes both worthless: nobody can
    tell which one the receiver took, so the PSN counts as lost.
    """

    def __init__(self) -> None:
        """Start before the first packet."""
        self._held: dict[int, Request | None] = {}
        self._newest: int | None = None
        self._released: int | None = None
        self.lost: list[tuple[int, int]] = []
        self.duplicates = self.conflicting = self.stale = self.reordered = 0

    def add(self, frame: RoceFrame, order: int) -> list[Request]:
        """Take one packet; return the packets that are now in final order (mostly none, at times many)."""
        if self._newest is None:
            psn = self._newest = frame.psn + MODULUS
        else:
            psn = unwrap(frame.psn, self._newest)
        if self._released is not None and psn <= self._released:
            self.stale += 1
            return []
        if psn in self._held:
            self._again(psn, frame)
            return []
        self._held[psn] = Request(psn, order, frame)
        if psn < self._newest:
            self.reordered += 1
            return []
        self._newest = psn
        if len(self._held) < 2 * WINDOW:
            return []
        return self._release(self._newest - WINDOW)

    def age(self, before: int) -> list[Request]:
        """Return the packets that need not be held any longer: those up to the newest one from before `before`."""
        old = [psn for psn, item in self._held.items() if item is None or item.order < before]
        return self._release(max(old)) if old else []

    def flush(self) -> list[Request]:
        """Return the packets that are still held, in order."""
        return [] if self._newest is None else self._release(self._newest)

    def _again(self, psn: int, frame: RoceFrame) -> None:
        first = self._held[psn]
        if first is not None and _same(first.frame, frame):
            self.duplicates += 1
        else:
            self.conflicting += 1
            self._held[psn] = None

    def _release(self, upto: int) -> list[Request]:
        out = []
        for psn in sorted(psn for psn in self._held if psn <= upto):
            request = self._held.pop(psn)
            if request is None:
                continue
            if self._released is not None and psn > self._released + 1 and len(self.lost) < _MOST_RANGES:
                self.lost.append((wrap(self._released + 1), wrap(psn - 1)))
            self._released = psn
            out.append(request)
        return out


def _same(first: RoceFrame, again: RoceFrame) -> bool:
    return (
        first.opcode == again.opcode
        and first.payload == again.payload
        and first.address == again.address
        and first.length == again.length
        and first.immediate == again.immediate
    )
