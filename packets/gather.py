"""Copies the payloads of packets, which lie apart, into one piece: plain Python, and compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packets.batch import Bytes
from packets.compiled import Kernel


def _gather(data: Bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64], out: Bytes) -> int:
    """Copy ``data[starts[i] : starts[i] + lengths[i]]``, one behind the other, to `out`; return the bytes copied."""
    at = 0
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        out[at : at + length] = data[start : start + length]
        at += length
    return at


gather = Kernel(_gather, "packets.kernels:gather")
"""See `_gather`."""
