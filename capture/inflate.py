"""gzip input as a stream (RFC 1952): bounded pieces, several members, and all data before damage."""

from __future__ import annotations

import zlib
from collections.abc import Callable

GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's number for: gzip header and trailer, largest window
_INPUT_BYTES = 1 << 16


class Inflater:
    """Decompresses the bytes that `read` returns.

    However much the input expands, a call holds one piece of input and one of output.
    """

    def __init__(self, read: Callable[[int], bytes], first: bytes) -> None:
        """Decompress `first` and then what `read(most bytes)` returns, until it returns nothing."""
        self._source = read
        self._zlib = zlib.decompressobj(_GZIP_WINDOW)
        self._pending = first
        self._started = False
        self.failure: str | None = None
        """What is wrong with the compressed data, after `read` has returned nothing because of it."""

    def read(self, size: int) -> bytes:
        """Return 1 to `size` decompressed bytes, nothing at the end or at damage (see `failure`)."""
        while self.failure is None:
            data = self._pending or self._source(_INPUT_BYTES)
            if not data:
                if self._started:
                    # Without a trailer, zlib may hold output that did not fit into the last piece.
                    if output := self._zlib.decompress(b"", size):
                        return output
                    self.failure = "the gzip data ends early"
                return b""
            if not self._started:
                # Zero padding after a member is common (tapes, block devices); RFC 1952 allows no other gap.
                data = data.lstrip(b"\0")
                if not data:
                    self._pending = b""
                    continue
                self._started = True
            before = self._zlib.copy()
            try:
                output = self._zlib.decompress(data, size)
            except zlib.error as error:
                self.failure = f"the gzip data is damaged ({error})"
                return _salvage(before, data)
            if self._zlib.eof:
                self._pending = self._zlib.unused_data
                self._zlib = zlib.decompressobj(_GZIP_WINDOW)
                self._started = False
            else:
                self._pending = self._zlib.unconsumed_tail
            if output:
                return output
        return b""


def _salvage(inflater: zlib._Decompress, data: bytes) -> bytes:
    """Return the output of `data` up to the damage in it, which zlib does not return with its error."""
    found = []
    for index in range(len(data)):
        try:
            found.append(inflater.decompress(data[index : index + 1]))
        except zlib.error:
            break
    return b"".join(found)
