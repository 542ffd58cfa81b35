"""In-order delivery of bytes that arrive in any order, any number of times."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque


class Reassembly:
    """Received bytes by position: those up to `next` wait to be read, later ones wait for their predecessors.

    The first copy of a byte wins; a later copy of the same position is dropped.
    """

    def __init__(self) -> None:
        """Expect the SYN, position 0."""
        self.next = 0
        """RCV.NXT as a position."""
        self.readable = 0
        """In-order bytes not yet read."""
        self._ready: deque[bytes] = deque()
        self._offset = 0  # bytes of the first ready piece that are read already
        self._starts: list[int] = []
        self._blocks: list[bytes] = []

    @property
    def has_gap(self) -> bool:
        """Whether bytes wait for a missing predecessor."""
        return bool(self._starts)

    def skip(self, count: int) -> None:
        """Advance `next` over `count` positions that carry no byte (SYN or FIN)."""
        self.next += count

    def add(self, position: int, payload: bytes) -> None:
        """Store `payload`, whose first byte is at `position`; parts that are already there are dropped."""
        if position < self.next:
            payload = payload[self.next - position :]
            position = self.next
        if not payload:
            return
        if position > self.next or self._starts:
            self._store(position, payload)
            self._advance()
        else:
            self._deliver(payload)

    def read(self, limit: int | None) -> bytes:
        """Remove and return up to `limit` in-order bytes (None: all of them)."""
        wanted = self.readable if limit is None else min(limit, self.readable)
        self.readable -= wanted
        ready, offset = self._ready, self._offset
        pieces = []
        while wanted:
            piece = ready[0]
            left = len(piece) - offset
            if left > wanted:
                pieces.append(piece[offset : offset + wanted])
                offset += wanted
                break
            pieces.append(piece[offset:] if offset else piece)
            ready.popleft()
            offset = 0
            wanted -= left
        self._offset = offset
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _deliver(self, payload: bytes) -> None:
        self._ready.append(payload)
        self.readable += len(payload)
        self.next += len(payload)

    def _store(self, position: int, payload: bytes) -> None:
        """Put the parts of `payload` that no stored block covers between the stored blocks."""
        end = position + len(payload)
        starts, blocks = self._starts, self._blocks
        index = bisect_left(starts, position)
        cursor = position
        if index and starts[index - 1] + len(blocks[index - 1]) > cursor:
            cursor = starts[index - 1] + len(blocks[index - 1])
        while cursor < end:
            stop = min(end, starts[index]) if index < len(starts) else end
            if stop > cursor:
                starts.insert(index, cursor)
                blocks.insert(index, payload[cursor - position : stop - position])
                index += 1
            if index == len(starts):
                break
            cursor = max(cursor, starts[index] + len(blocks[index]))
            index += 1

    def _advance(self) -> None:
        """Deliver the stored blocks that are next in order."""
        starts, blocks = self._starts, self._blocks
        count = 0
        while count < len(starts) and starts[count] == self.next:
            self._deliver(blocks[count])
            count += 1
        if count:
            del starts[:count], blocks[:count]
