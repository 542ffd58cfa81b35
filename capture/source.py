"""Bytes of a capture, plain or gzip, as one moving buffer that both readers parse in place."""

from __future__ import annotations

import io
import os
import stat
from typing import BinaryIO

import numpy as np

from capture.errors import CaptureError
from capture.inflate import GZIP_MAGIC, Inflater
from packets.batch import Bytes

_CHUNK_BYTES = 1 << 22
"""Bytes read at a time: a batch of packets that fits into a processor's cache."""
_PIECE_BYTES = 1 << 16
CUT_FIX = "the packets before it are intact: capture again, or continue with those"


class ByteSource:
    """A window on the input.

    The window is `buffer`, whose first byte has offset `start`; positions are indices into `buffer`. Each new window is
    new memory, so that packets in the previous one do not change.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        """Read from `stream`, from its current position (which becomes offset 0); `name` is for errors."""
        self.name = name
        self.buffer = np.zeros(0, np.uint8)
        self.start = 0
        self.bytes_read = 0
        """Bytes read from `stream` (before decompression)."""
        self._stream = stream
        # From a pipe, data is returned as it arrives; from a file, in full windows.
        self._patient = is_file(stream)
        self._inflater: Inflater | None = None
        if self.refill(0, len(GZIP_MAGIC)) and self.buffer[:2].tobytes() == GZIP_MAGIC:
            self._inflater = Inflater(self._read, self.buffer.tobytes())
            self.buffer = np.zeros(0, np.uint8)

    @property
    def view(self) -> memoryview:
        """`buffer` as a memoryview."""
        return memoryview(self.buffer)  # type: ignore[arg-type]

    def refill(self, position: int, need: int) -> int:
        """Drop everything before `position`, and read until at least `need` bytes are present or the input ends.

        Returns:
            Length of the new `buffer`; less than `need` only at the end.

        Raises:
            OSError: the input cannot be read.
        """
        self.start += position
        have = len(self.buffer) - position
        if have >= need:
            self.buffer = self.buffer[position:]
            return have
        window = np.empty(have + (_CHUNK_BYTES if self._patient else _PIECE_BYTES), np.uint8)
        window[:have] = self.buffer[position:]
        while have < (max(need, len(window)) if self._patient else need):
            if have == len(window):  # memory follows the actual data, not a claimed length
                window = np.concatenate((window, np.empty(min(need, 2 * have) - have, np.uint8)))
            size = self._read_into(window[have:])
            if not size:
                break
            have += size
        self.buffer = window[:have]
        return have

    def skip(self, position: int, count: int) -> None:
        """Drop everything before `position` and `count` bytes from there on, without keeping them."""
        left = count - (len(self.buffer) - position)
        self.start += position + count
        self.buffer = self.buffer[len(self.buffer) if left > 0 else position + count :]
        while left > 0:
            window = np.empty(_PIECE_BYTES, np.uint8)
            size = self._read_into(window)
            if not size:
                self.start -= left
                return
            self.buffer = window[min(left, size) : size]
            left -= size

    def check_end(self) -> None:
        """Check that the input is complete.

        Raises:
            CaptureError: compressed data ended early.
        """
        if self._failure:
            raise self.error(self.start + len(self.buffer), f"nothing more can be read{self._failure}", CUT_FIX)

    def truncated(self, offset: int, what: str, have: int, need: int) -> CaptureError:
        """Return the error for `what` at `offset`, which has only `have` of its `need` bytes."""
        problem = f"the file ends inside {what}: only {have} of {need} bytes{self._failure}"
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

    def _read_into(self, window: Bytes) -> int:
        """Read some bytes into `window`; return how many, 0 at the end."""
        if self._inflater is None and isinstance(self._stream, io.FileIO):
            size = self._stream.readinto(window) or 0  # type: ignore[arg-type]
            self.bytes_read += size
            return size
        piece = self._read(len(window)) if self._inflater is None else self._inflater.read(len(window))
        window[: len(piece)] = np.frombuffer(piece, np.uint8)
        return len(piece)

    def _read(self, size: int) -> bytes:
        # `read1` returns what has arrived, so that packets of a live pipe are not delayed.
        data: bytes = getattr(self._stream, "read1", self._stream.read)(size)
        self.bytes_read += len(data)
        return data


def is_file(stream: BinaryIO) -> bool:
    """Return whether the stream is a regular file."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, AttributeError):  # in memory
        return False
