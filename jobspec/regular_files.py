"""Reading a file that somebody else may have put there: nothing but a regular file is opened, and no more is read
than it can hold.

A FIFO would make the reader wait for ever, a device or a sparse file would fill its memory, and a link leads anywhere.
"""

from __future__ import annotations

import errno
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


def regular(path: str, flags: int) -> int:
    """Open a regular file: an opener for `open`, as in ``open(path, "rb", opener=regular)``.

    Raises:
        OSError: it cannot be opened, or is no regular file; `strerror` says which.
    """
    # Without O_NONBLOCK, opening a named pipe waits until somebody writes to it.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):  # `open` itself refuses directories
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, expected a regular file", path)
    return descriptor


def read_bounded(path: Path, most: int) -> bytes:
    """Return what a regular file, which links may lead to, holds; `most` is the largest number of bytes it may have.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger; `strerror` says which.
    """
    with open(path, "rb", opener=regular) as file:
        data = file.read(most + 1)
        if len(data) > most:
            size = max(os.fstat(file.fileno()).st_size, len(data))
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {most:,}", str(path))
        return data
