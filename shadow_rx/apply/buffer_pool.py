"""Memory that is used again: page faults of fresh memory cost several times as much as copying a state into it."""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt


class BufferPool:
    """Equally long buffers. One comes back by itself when nothing refers to its memory any more.

    Memory: as many buffers as were in use at a time.
    """

    def __init__(self, nbytes: int) -> None:
        """Lend buffers of `nbytes` bytes."""
        self.nbytes = nbytes
        """Bytes of each buffer."""
        self._free: list[npt.NDArray[np.uint8]] = []

    def take(self) -> npt.NDArray[np.uint8]:
        """Return a buffer with any contents.

        Arrays, memoryviews and tensors over it (`torch.from_numpy`) keep it in use.

        Raises:
            MemoryError: the memory is not there.
        """
        memory = self._free.pop() if self._free else np.empty(max(1, self.nbytes), np.uint8)
        # An array of its own for each use; its base is no array, so that NumPy lets views of it refer to it itself.
        lent = np.frombuffer(memory.data, np.uint8)
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return lent
