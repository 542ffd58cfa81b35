"""The measure that data paths are compared with: a copy from memory to memory by one thread."""

from __future__ import annotations

import time

import numpy as np

_BYTES = 64 << 20


class Memcpy:
    """Copies 64 MiB, larger than the processor's caches, between two arrays."""

    def __init__(self) -> None:
        """Allocate both and touch their pages."""
        self._source = np.ones(_BYTES, np.uint8)
        self._target = np.zeros(_BYTES, np.uint8)

    def __call__(self) -> float:
        """Return the bytes that were copied per second, in GB/s (10**9)."""
        began = time.perf_counter()
        for _ in range(4):
            np.copyto(self._target, self._source)
        return 4 * _BYTES / (time.perf_counter() - began) / 1e9
