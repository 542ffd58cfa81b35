"""Errors of the embedded switch: one exception type that says what is wrong, where, and of which kind."""

from __future__ import annotations

from enum import Enum


class ErrorKind(Enum):
    """Kinds of refusal; the names are those of the gRPC status codes that P4Runtime answers with."""

    ALREADY_EXISTS = "ALREADY_EXISTS"
    NOT_FOUND = "NOT_FOUND"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNIMPLEMENTED = "UNIMPLEMENTED"


class SwitchError(Exception):
    """A refused operation on the switch.

    Attributes:
        kind: what sort of refusal.
        what: the complaint in words, with the offending value.
        place: the object concerned (a table's or register's name, or a place in the compiled program).
    """

    def __init__(self, kind: ErrorKind, what: str, place: str) -> None:
        """Make the error; its text is `place`, then `what`."""
        super().__init__(f"{place}: {what}")
        self.kind = kind
        self.what = what
        self.place = place


class UnsupportedProgram(SwitchError):
    """A compiled program that cannot be loaded.

    `kind` is UNIMPLEMENTED for a construct that exists in BMv2 but not here, INVALID_ARGUMENT for input that
    is not a well-formed BMv2 JSON. `place` names the object inside the JSON and, where p4c recorded it, the
    P4 source line.
    """

    def __init__(self, what: str, place: str, kind: ErrorKind = ErrorKind.UNIMPLEMENTED) -> None:
        """Make the error; its text is `place`, then `what`."""
        super().__init__(kind, what, place)
