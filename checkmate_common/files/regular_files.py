"""Safe reading of untrusted paths: only regular files are opened, and only up to a size limit.

A FIFO would make the reader wait forever, a device or a sparse file would fill its memory, and a link leads anywhere.
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
    """A path is not a regular file, or is too large; the message says which."""


def read_regular(path: Path, limit: int) -> bytes:
    """Return the contents of a regular file of at most `limit` bytes; links are not followed.

    Raises:
        FileNotFoundError: it does not exist.
        UnreadableFile: it is not a regular file or too large; it was not opened.
        OSError: it cannot be read.
    """
    _check(os.lstat(path), limit)
    # The path may be another file by now, so open without waiting and check again.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _check(status, limit)
        try:
            return file.read(status.st_size)
        except MemoryError:
            raise UnreadableFile(f"has {status.st_size} bytes, for which there is not enough memory") from None


def _check(status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise UnreadableFile(f"is {kind}, expected a regular file")
    if status.st_size > _MEMORY:
        raise UnreadableFile(f"has {status.st_size} bytes, more than this machine's memory of {_MEMORY}")
    if status.st_size > limit:
        raise UnreadableFile(f"has {status.st_size} bytes, expected at most {limit}")


def regular(path: str, flags: int) -> int:
    """Open a regular file: an opener for `open`, as in ``open(path, "rb", opener=regular)``.

    Raises:
        OSError: it cannot be opened, or is not a regular file; `strerror` says which.
    """
    # Without O_NONBLOCK, opening a named pipe waits for a writer.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):  # `open` itself refuses directories
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, expected a regular file", path)
    return descriptor


def read_bounded(path: Path, most: int) -> bytes:
    """Return the contents of a regular file of at most `most` bytes; links are followed.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger; `strerror` says which.
    """
    with open(path, "rb", opener=regular) as file:
        data = file.read(most + 1)
        if len(data) > most:
            size = max(os.fstat(file.fileno()).st_size, len(data))
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {most:,}", str(path))
        return data
