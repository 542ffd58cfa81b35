"""Packets as arrays, without an object for each packet: the output of capture sources."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
"""A block of memory: one dimension, contiguous."""


@dataclass(frozen=True, slots=True)
class PacketBatch:
    """Consecutive packets of one source; n is their number, and may be 0."""

    data: Bytes
    """The memory block with the packets: a piece of a file, or a block of a ring. Read-only."""
    starts: NDArray[np.int64]
    """[n] Index in `data` of each packet's first byte."""
    lengths: NDArray[np.int32]
    """[n] Captured bytes of each packet."""
    wire_lengths: NDArray[np.int64]
    """[n] Bytes of each packet on the wire; more than captured if the snapshot length cut it."""
    times_ns: NDArray[np.int64]
    """[n] Nanoseconds since the epoch; 0 if the source has no time."""
    link_types: NDArray[np.uint16]
    """[n] LINKTYPE_* of each, since one file may hold several interfaces."""

    @classmethod
    def of(cls, frames: list[bytes], link_type: int = 1, wire_lengths: list[int] | None = None) -> PacketBatch:
        """Return a batch of separate frames, for sources without a block; times are 0."""
        lengths = np.array([len(frame) for frame in frames], np.int32)
        starts = np.zeros(len(frames), np.int64)
        np.cumsum(lengths[:-1], out=starts[1:])
        count = len(frames)
        return cls(
            np.frombuffer(b"".join(frames), np.uint8),
            starts,
            lengths,
            np.array(lengths if wire_lengths is None else wire_lengths, np.int64),
            np.zeros(count, np.int64),
            np.full(count, link_type, np.uint16),
        )

    def __post_init__(self) -> None:
        """Make the block read-only; kernels are compiled only for read-only arrays."""
        if self.data.flags.writeable:
            data = self.data.view()
            data.flags.writeable = False
            object.__setattr__(self, "data", data)

    def __len__(self) -> int:
        """Return the number of packets."""
        return len(self.starts)
