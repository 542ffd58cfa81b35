"""A shadow node killed in the middle of a write: ``python -m topology.acceptance.torn_write_shadow N SHARE ...``.

Runs `shadow_rx` with the remaining arguments. After N whole writes to its store it writes SHARE (0..1) of the next one
and sends itself SIGKILL: nothing is flushed, closed or cleaned up.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from shadow_rx.__main__ import main
from shadow_rx.store.storage.files import FileOperations, Parts


def tear_write(whole_writes: int, share: float) -> None:
    """Kill this process in the middle of the write that follows `whole_writes` more."""
    write, left = FileOperations.write, whole_writes

    def torn_write(self: FileOperations, path: Path, data: Parts) -> None:
        nonlocal left
        if left:
            left -= 1
            write(self, path, data)
            return
        whole = b"".join(data)
        write(self, path, [whole[: int(len(whole) * share)]])
        os.kill(os.getpid(), signal.SIGKILL)

    FileOperations.write = torn_write  # type: ignore[method-assign]


if __name__ == "__main__":
    tear_write(int(sys.argv[1]), float(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
