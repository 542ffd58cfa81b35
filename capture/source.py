"""Bytes of a capture, plain or gzip, as one moving buffer that the readers of both formats parse in place."""

from __future__ import annotations

from typing import BinaryIO

from capture.errors import CaptureError
from capture.inflate import GZIP_MAGIC, Inflater

MAX_BLOCK_BYTES = 1 << 24
"""Largest record or block, 16 MiB: what libpcap, too, accepts of a pcapng block. The longest packet that it captures
has 256 KiB, so a larger length is damage; and memory is bounded by this (a few times over), whatever a file claims."""

_CHUNK_BYTES = 1 << 16
CUT_FIX = "the packets before it are whole: capture again, or go on with those"


class ByteSource:
    """A window on the input.

    The window is `buffer`, whose first byte has offset `start`; positions are indices into `buffer`. Readers keep
    `buffer` in a local variable and fetch it again after each `refill`, the only call that changes it.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        """Read from `stream`, from its present position (which becomes offset 0); `name` is for errors."""
        self.name = name
        self.buffer = b""
        self.start = 0
        self.bytes_read = 0
        """Bytes taken from `stream`, compressed ones where it is compressed."""
        # `read1` hands out what has arrived, so that packets of a live pipe are not held back.
        self._stream_read = getattr(stream, "read1", stream.read)
        self._inflater: Inflater | None = None
        self._read = self._counted_read
        if self.refill(0, len(GZIP_MAGIC)) and self.buffer.startswith(GZIP_MAGIC):
            self._inflater = Inflater(self._counted_read, self.buffer)
            self._read = self._inflater.read
            self.buffer = b""

    def refill(self, position: int, need: int) -> int:
        """Drop what lies before `position`, and read until at least `need` bytes are there or the input ends.

        Returns:
            Length of the new `buffer`; less than `need` only at the end.

        Raises:
            OSError: the input cannot be read.
        """
        self.start += position
        buffer = self.buffer[position:]
        if len(buffer) < need:
            buffer += self._read(max(_CHUNK_BYTES, need - len(buffer)))
        if len(buffer) < need:
            # A large block or a slow pipe: pieces may be tiny, so they are not kept as objects.
            grown = bytearray(buffer)
            while len(grown) < need and (piece := self._read(max(_CHUNK_BYTES, need - len(grown)))):
                grown += piece
            buffer = bytes(grown)
        self.buffer = buffer
        return len(buffer)

    def skip(self, position: int, count: int) -> None:
        """Drop everything before `position` and `count` bytes from there on, without keeping them."""
        left = count - (len(self.buffer) - position)
        self.start += position + count
        self.buffer = b"" if left > 0 else self.buffer[position + count :]
        while left > 0:
            piece = self._read(_CHUNK_BYTES)
            if not piece:
                self.start -= left
                return
            self.buffer = piece[left:]
            left -= len(piece)

    def check_end(self) -> None:
        """Do nothing where the input ended as it should.

        Raises:
            CaptureError: compressed data broke off.
        """
        if self._failure:
            raise self.error(self.start + len(self.buffer), f"nothing more can be read{self._failure}", CUT_FIX)

    def truncated(self, offset: int, what: str, have: int, need: int) -> CaptureError:
        """Return the error for `what` at `offset`, of whose `need` bytes only `have` are there."""
        problem = f"the file ends inside {what}: {have} of {need} bytes are there{self._failure}"
        return self.error(offset, problem, CUT_FIX)

    def error(self, offset: int, problem: str, fix: str) -> CaptureError:
        """Return an error about the byte at `offset`."""
        if self._inflater is not None:
            problem += " (offset in the decompressed data)"
        return CaptureError(self.name, offset, problem, fix)

    @property
    def _failure(self) -> str:
        if self._inflater is None or self._inflater.failure is None:
            return ""
        return f", because {self._inflater.failure}"

    def _counted_read(self, size: int) -> bytes:
        data: bytes = self._stream_read(size)
        self.bytes_read += len(data)
        return data
