"""The one exception type of capture files."""

from __future__ import annotations


class CaptureError(Exception):
    """A capture file is damaged at `offset`; all complete packets before it were returned first.

    Attributes:
        path: the file, ``standard input`` or ``stream``.
        offset: byte offset of the damaged header, record or block; in the decompressed data if `path` is compressed, as
            `problem` then says.
        problem: what is wrong there.
        fix: how to fix it.
    """

    def __init__(self, path: str, offset: int, problem: str, fix: str) -> None:
        """Keep the fields."""
        super().__init__(path, offset, problem, fix)
        self.path = path
        self.offset = offset
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        """Return all fields in one line."""
        return f"{self.path}: at byte {self.offset}: {self.problem}; {self.fix}"
