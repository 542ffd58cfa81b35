"""Files and folders that only their owner can access: gradients, states and keys are as secret as the model.

The only place that sets modes. They are set when the file or folder is created, whatever the umask; a later chmod would
leave a moment in which others can open it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

FOLDER_MODE = 0o700
"""Mode of new folders."""
FILE_MODE = 0o600
"""Mode of written files."""


def private(path: str, flags: int) -> int:
    """Open a private file: an opener for `open`, as in ``open(path, "wb", opener=private)``.

    The mode of an existing regular file that others may open is restricted before anything is written.

    Raises:
        OSError: it cannot be opened, or others may open it and its mode cannot be changed.
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
    """Write a whole private file, replacing earlier contents.

    Args:
        path: the file.
        data: bytes, text (written as UTF-8), or consecutive parts.

    Raises:
        OSError: it cannot be written.
    """
    parts = [data.encode() if isinstance(data, str) else data] if isinstance(data, bytes | str) else data
    with open(path, "wb", opener=private) as file:
        for part in parts:
            file.write(part)


def replace_private(path: Path, data: bytes | memoryview) -> None:
    """Write and flush a whole private file; a crash leaves the old or the new one.

    Raises:
        OSError: it cannot be written; the old one is unchanged.
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
    """Create a private folder and its missing parents; existing folders are not changed.

    Raises:
        OSError: it cannot be created, or its name is taken by something else.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
