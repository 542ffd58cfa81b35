"""What a run is asked for as ``KIND:STEP``: something that happens at a training step."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

Kind = TypeVar("Kind", bound=StrEnum)


def parse_timed(text: str, kinds: type[Kind], what: str) -> tuple[Kind, int]:
    """Read ``KIND:STEP``, a kind of `kinds` and a step from 1 on.

    Raises:
        ValueError: another form; says what was expected of a `what`.
    """
    kind, _, step = text.partition(":")
    if kind not in set(kinds) or not step.isdecimal() or int(step) < 1:
        raise ValueError(f"{text!r} is no {what}; expected one of {', '.join(f'{k}:STEP' for k in kinds)}")
    return kinds(kind), int(step)
