"""Reading small files that others may have made: of a bounded size, and nothing that waits for somebody."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_bounded(path: Path, most: int) -> bytes:
    """Return what a regular file holds; `most` is the largest number of bytes that it may have.

    A pipe or a device is refused: it could keep us waiting for ever, or never end.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger; `strerror` says which.
    """
    # Without O_NONBLOCK, opening a named pipe waits until somebody writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file (a pipe, a socket or a device)", str(path))
        data = file.read(most + 1)
        if len(data) > most:
            size = max(status.st_size, len(data))
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {most:,}", str(path))
        return data
