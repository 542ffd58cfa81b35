"""The one exception type of fabrics and testbed runs."""

from __future__ import annotations


class TestbedError(RuntimeError):
    """Something that the testbed needs does not work; says what, and what to do about it."""

    __test__ = False  # not a test class, whatever its name suggests to pytest

    def __init__(self, what: str, message: str, hint: str | None = None) -> None:
        """Keep the part that failed, what happened, and the way out."""
        self.what = what
        self.hint = hint
        super().__init__(f"{what}: {message}" + (f" ({hint})" if hint else ""))
