"""``trainer.yaml``: what a training script does with gradients, and facts about its model that are not on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from checkmate_common.fields import Strict
from jobspec.errors import JobError, Problem
from jobspec.loader import parse_model, read_text

DTypeName = Literal["float32", "float64", "float16", "bfloat16"]
"""Element types of parameters."""


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """Return options with lists as tuples, like ``betas`` in torch.optim; ValueError for unsupported values."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        items = item if isinstance(item, list) else [item]
        if not all(isinstance(one, int | float | str | None) for one in items):
            raise ValueError(f"expected numbers, booleans, text or lists of them; {key!r} is something else")
        found[key] = tuple(item) if isinstance(item, list) else item
    return found


class Component(Strict):
    """A class of torch and the arguments of its constructor."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    """Name of the class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments by name."""

    _options = field_validator("options")(_plain)


class Trainer(Strict):
    """What a ``trainer.yaml`` declares."""

    optimizer: Component
    """Optimizer of ``torch.optim``, with one group of all parameters."""
    scheduler: Component | None = None
    """Scheduler of ``torch.optim.lr_scheduler`` that is stepped after each optimizer step."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Norm that ``clip_grad_norm_`` clips all gradients to before the optimizer step."""
    parameters: list[Annotated[str, Field(min_length=1)]] | None = None
    """Names, in ``model.parameters()`` order without frozen ones; by default ``parameter-0`` and so on."""
    dtypes: DTypeName | list[DTypeName] | None = None
    """Element type of all parameters, or a list with one per parameter."""

    @field_validator("parameters")
    @classmethod
    def _unique(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and len(set(value)) < len(value):
            duplicate = next(name for name in value if value.count(name) > 1)
            raise ValueError(f"duplicate name {duplicate!r}; expected each name once")
        return value

    def kinds(self, count: int) -> tuple[str, ...] | None:
        """Return the declared element type of each of `count` parameters, None if none are declared."""
        if isinstance(self.dtypes, str):
            return (self.dtypes,) * count
        return None if self.dtypes is None else tuple(self.dtypes)

    def names(self, count: int) -> tuple[str, ...]:
        """Return the name of each of `count` parameters."""
        return tuple(self.parameters or (f"parameter-{number}" for number in range(count)))


@dataclass(frozen=True)
class TrainerFile:
    """A `Trainer` and the lines of its fields."""

    trainer: Trainer
    """What is declared."""
    file: str
    """File that it was read from."""
    lines: dict[tuple[str | int, ...], int]
    """1-based line of each field."""

    def error(self, path: Sequence[str | int], message: str) -> JobError:
        """Return the error for a field that turned out to be invalid."""
        line = self.lines.get(tuple(path)) or self.lines.get(tuple(path[:1])) or self.lines.get(())
        return JobError([Problem(".".join(map(str, path)), message, self.file, line)])


def parse_trainer(text: str, file: str = "trainer.yaml") -> TrainerFile:
    """Validate the text of a ``trainer.yaml``; `file` is its name in errors.

    Raises:
        JobError: not YAML, or invalid; lists every problem.
    """
    trainer, lines = parse_model(text, file, Trainer, "trainer.yaml", "optimizer, scheduler, parameters, ...")
    return TrainerFile(trainer, file, lines)


def load_trainer(path: Path) -> TrainerFile:
    """Read and validate a ``trainer.yaml``.

    Raises:
        JobError: it cannot be read or is invalid; lists every problem.
    """
    return parse_trainer(read_text(path), str(path))
