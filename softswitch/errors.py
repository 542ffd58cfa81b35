"""Errors of the embedded switch: one exception type that says what is wrong, where, and of which kind."""

from __future__ import annotations

from enum import Enum

_LONGEST_TEXT = 600
"""Characters of a text in a message: a status travels in metadata, of which clients take 8 kB."""


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
        """Make the error; its text is `place`, then `what`. Both may quote a program: they become printable."""
        what, place = printable(what), printable(place)
        super().__init__(f"{place}: {what}")
        self.kind = kind
        self.what = what
        self.place = place


def printable(text: str) -> str:
    """Return text for a message on one line: no control characters or lone surrogates, and not endless."""
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}…"
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


class UnsupportedProgram(SwitchError):
    """A compiled program that cannot be loaded.

    `kind` is UNIMPLEMENTED for a construct that exists in BMv2 but not here, INVALID_ARGUMENT for input that
    is not a well-formed BMv2 JSON. `place` names the object inside the JSON and, where p4c recorded it, the
    P4 source line.
    """

    def __init__(self, what: str, place: str, kind: ErrorKind = ErrorKind.UNIMPLEMENTED) -> None:
        """Make the error; its text is `place`, then `what`."""
        super().__init__(kind, what, place)
