"""What a kernel and its caller tell each other."""

from __future__ import annotations

from enum import IntEnum


class Stop(IntEnum):
    """Why a kernel returns."""

    END = 0
    """All segments are done."""
    VERIFY = 1
    """Covered frames must be verified before it can go on."""
    OTHER = 2
    """The next segment is not simple."""


class Count(IntEnum):
    """Segments that a kernel counts: index of each count."""

    UNKNOWN_CONNECTION = 0
    BAD_POSITION = 1
    DUPLICATE = 2
    REDUNDANT = 3
