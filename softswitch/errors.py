"""Errors of the embedded switch: one exception type with kind, message and place."""

from __future__ import annotations

from enum import Enum

_LONGEST_TEXT = 600
"""Maximum characters of a text in a message: a status is sent as metadata, and clients accept 8 kB of it."""


class ErrorKind(Enum):
    """Kinds of refusal, named like the gRPC status codes of P4Runtime."""

    ALREADY_EXISTS = "ALREADY_EXISTS"
    NOT_FOUND = "NOT_FOUND"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNIMPLEMENTED = "UNIMPLEMENTED"


class SwitchError(Exception):
    """A refused operation on the switch.

    Attributes:
        kind: kind of refusal.
        what: the problem, with the invalid value.
        place: the object (name of a table or register, or a place in the compiled program).
    """

    def __init__(self, kind: ErrorKind, what: str, place: str) -> None:
        """Create the error; its text is `place`, then `what`. Both may quote a program, so they are made printable."""
        what, place = printable(what), printable(place)
        super().__init__(f"{place}: {what}")
        self.kind = kind
        self.what = what
        self.place = place


def printable(text: str) -> str:
    """Return text for a one-line message: without control characters or lone surrogates, and limited in length."""
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}…"
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


class UnsupportedProgram(SwitchError):
    """A compiled program cannot be loaded.

    `kind` is UNIMPLEMENTED for a construct that BMv2 supports but this switch does not, INVALID_ARGUMENT for input that
    is not a well-formed BMv2 JSON. `place` names the object inside the JSON and, if p4c recorded it, the P4 source
    line.
    """

    def __init__(self, what: str, place: str, kind: ErrorKind = ErrorKind.UNIMPLEMENTED) -> None:
        """Make the error; its text is `place`, then `what`."""
        super().__init__(kind, what, place)
