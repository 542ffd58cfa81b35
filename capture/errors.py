"""The one exception type of capture files."""

from __future__ import annotations


class CaptureError(Exception):
    """A capture file that cannot be read (on); all whole packets before `offset` were handed out first.

    Attributes:
        path: the file, ``standard input`` or ``stream``.
        offset: byte offset of the header, record or block that is wrong; in the decompressed data where `path` is
            compressed, which `problem` then says.
        problem: what was found there.
        fix: what to do about it.
    """

    def __init__(self, path: str, offset: int, problem: str, fix: str) -> None:
        """Keep all four."""
        super().__init__(path, offset, problem, fix)
        self.path = path
        self.offset = offset
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        """Return one line that names everything."""
        return f"{self.path}: at byte {self.offset}: {self.problem}; {self.fix}"
