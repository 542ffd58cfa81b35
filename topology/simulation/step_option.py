"""Parses command-line values ``KIND:STEP``: a fault or event at a training step."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

Kind = TypeVar("Kind", bound=StrEnum)


def parse_step_option(text: str, kinds: type[Kind], what: str) -> tuple[Kind, int]:
    """Parse ``KIND:STEP`` with a kind of `kinds` and a step of at least 1.

    Args:
        text: the value.
        kinds: the allowed kinds.
        what: name of the value, for the message.

    Raises:
        ValueError: `text` has another form; the message lists the allowed ones.
    """
    kind, _, step = text.partition(":")
    if kind not in set(kinds) or not step.isdecimal() or int(step) < 1:
        raise ValueError(f"{text!r} is no {what}; expected one of {', '.join(f'{k}:STEP' for k in kinds)}")
    return kinds(kind), int(step)
