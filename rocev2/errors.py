"""The exception of this package."""

from __future__ import annotations


class RoceError(Exception):
    """A wrong argument of the decoder or the encoder. What a capture holds never raises: it is reported.

    Attributes:
        argument: name of the argument.
        value: what was given.
        problem: what is wrong with it.
        fix: what to give instead.
    """

    def __init__(self, argument: str, value: object, problem: str, fix: str) -> None:
        """Say what is wrong with an argument."""
        super().__init__(f"{argument} {value!r} {problem}; {fix}")
        self.argument = argument
        self.value = value
        self.problem = problem
        self.fix = fix
