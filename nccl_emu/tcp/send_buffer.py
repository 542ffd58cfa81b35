"""Bytes written and not yet acknowledged, each with the DSCP it was written with."""

from __future__ import annotations

from bisect import bisect_right

_COMPACT_AFTER = 64
"""Released chunks that are kept before the lists are cut, so that a release is cheap on average."""


class SendBuffer:
    """The stream between SND.UNA and the last byte written, as chunks that remember their DSCP.

    Positions count from 1 (0 is the SYN). `start` is the first byte kept, `end` is one after the last.
    """

    def __init__(self) -> None:
        """Begin empty at position 1."""
        self.start = 1
        self.end = 1
        self._starts: list[int] = []
        self._views: list[memoryview] = []
        self._dscps: list[int] = []
        self._head = 0

    def append(self, data: bytes | bytearray | memoryview, dscp: int) -> None:
        """Append the bytes of `data` (any buffer) with `dscp`.

        A read-only buffer is kept by reference. A writable one is copied, because a retransmission must
        repeat the bytes as they were; `memoryview.toreadonly()` is the caller's promise that they will not
        change.
        """
        view = memoryview(data)
        if view.nbytes == 0:
            return
        view = view.cast("B") if view.readonly and view.c_contiguous else memoryview(view.tobytes())
        self._starts.append(self.end)
        self._views.append(view)
        self._dscps.append(dscp)
        self.end += view.nbytes

    def release(self, position: int) -> None:
        """Forget all bytes before `position`."""
        self.start = position
        starts, views, head = self._starts, self._views, self._head
        while head < len(starts) and starts[head] + views[head].nbytes <= position:
            views[head] = _RELEASED  # lets go of the writer's buffer before the lists are cut
            head += 1
        if head >= _COMPACT_AFTER:
            del starts[:head], views[:head], self._dscps[:head]
            head = 0
        self._head = head

    def run(self, position: int, limit: int) -> int:
        """Return how many bytes from `position` on, at most `limit`, can travel in one segment (one DSCP)."""
        if position >= self.end or limit <= 0:
            return 0
        starts, dscps = self._starts, self._dscps
        index = bisect_right(starts, position, self._head) - 1
        dscp = dscps[index]
        stop = position + limit
        index += 1
        while index < len(starts) and starts[index] < stop:
            if dscps[index] != dscp:
                return starts[index] - position
            index += 1
        return min(stop, self.end) - position

    def take(self, position: int, length: int) -> tuple[bytes, int]:
        """Return `length` bytes from `position` on and their DSCP; the caller got `length` from `run`."""
        starts, views = self._starts, self._views
        index = bisect_right(starts, position, self._head) - 1
        offset = position - starts[index]
        piece = views[index][offset : offset + length]
        dscp = self._dscps[index]
        if piece.nbytes == length:
            return bytes(piece), dscp
        pieces = [piece]
        missing = length - piece.nbytes
        while missing > 0:
            index += 1
            piece = views[index][:missing]
            pieces.append(piece)
            missing -= piece.nbytes
        return b"".join(pieces), dscp


_RELEASED = memoryview(b"")
