"""The one exception type of fabrics and testbed runs."""

from __future__ import annotations


class TestbedError(RuntimeError):
    """The testbed cannot run or a part of it failed; the message names the part and how to fix it."""

    __test__ = False  # the name makes pytest take it for a test class

    def __init__(self, what: str, message: str, hint: str | None = None) -> None:
        """Build the message.

        Args:
            what: part that failed.
            message: what happened.
            hint: how to fix it.
        """
        self.what = what
        self.hint = hint
        super().__init__(f"{what}: {message}" + (f" ({hint})" if hint else ""))
