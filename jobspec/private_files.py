"""Files and folders for their owner alone: gradients, states, keys are as secret as the model.

The one place that says so. The modes are given when the file or folder is made, whatever the umask; a later chmod
would leave a moment in which others can open it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

FOLDER_MODE = 0o700
"""Of every folder that is made."""
FILE_MODE = 0o600
"""Of every file that is written."""


def private(path: str, flags: int) -> int:
    """Open a file for its owner alone: an opener for `open`, as in ``open(path, "wb", opener=private)``.

    A regular file that is there already and that others may open is closed to them before anything is written.

    Raises:
        OSError: it cannot be opened, or is open to others and not ours to change.
    """
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        if flags & (os.O_WRONLY | os.O_RDWR):
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISREG(mode) and stat.S_IMODE(mode) & 0o077:
                os.fchmod(descriptor, FILE_MODE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_private(path: Path, data: bytes | str | Iterable[bytes | memoryview]) -> None:
    """Write a whole file for its owner alone; what it held before is replaced.

    Args:
        path: the file.
        data: bytes, text (written as UTF-8), or parts that follow each other.

    Raises:
        OSError: it cannot be written.
    """
    parts = [data.encode() if isinstance(data, str) else data] if isinstance(data, bytes | str) else data
    with open(path, "wb", opener=private) as file:
        for part in parts:
            file.write(part)


def replace_private(path: Path, data: bytes | memoryview) -> None:
    """Write a whole file, for its owner alone, and flush it; a crash leaves the old one or the new one.

    Raises:
        OSError: it cannot be written; the old one is as it was.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".new-{path.name}-", dir=path.parent)  # with FILE_MODE
    written = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        written.rename(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def make_private_folder(path: Path) -> None:
    """Make a folder and the missing ones above it, all for their owner alone; one that is there stays as it is.

    Raises:
        OSError: it cannot be made, or something else has its name.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
