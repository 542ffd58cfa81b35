"""Reading a file that somebody else may have put there: nothing but a regular file is opened, and no more is read
than it can hold.

A FIFO would make the reader wait for ever, a device or a sparse file would fill its memory, and a link leads anywhere.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
}


class UnreadableFile(OSError):
    """What has the name is not a regular file, or is larger than it can be; the message says which."""


def read_regular(path: Path, limit: int) -> bytes:
    """Return the contents of a regular file of at most `limit` bytes; links are not followed.

    Raises:
        FileNotFoundError: nothing has this name.
        UnreadableFile: see there; it was not opened.
        OSError: it cannot be read.
    """
    _check(os.lstat(path), limit)
    # What has the name may be another file by now: not waited for, and looked at again.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _check(status, limit)
        try:
            return file.read(status.st_size)
        except MemoryError:
            raise UnreadableFile(f"has {status.st_size} bytes, for which there is no memory") from None


def _check(status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise UnreadableFile(f"is {kind}, expected a regular file")
    if status.st_size > _MEMORY:
        raise UnreadableFile(f"has {status.st_size} bytes, this machine's memory {_MEMORY}")
    if status.st_size > limit:
        raise UnreadableFile(f"has {status.st_size} bytes, it can have at most {limit}")
