"""The one exception type of job specifications."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override


@dataclass(frozen=True)
class Problem:
    """One problem in a job file."""

    field: str
    """Dotted path of the field, e.g. ``groups[0].ring[2]``."""
    message: str
    """What is wrong, what was expected, and how to fix it."""
    file: str | None = None
    """File that contains the field, None for jobs built in memory."""
    line: int | None = None
    """1-based line of the field in `file`, None if unknown."""

    @override
    def __str__(self) -> str:
        where = self.file or "job"
        if self.line is not None:
            where += f":{self.line}"
        return f"{where}: {self.field}: {self.message}"


class JobError(ValueError):
    """A job, or a set of jobs, is invalid; carries every problem found, not only the first."""

    def __init__(self, problems: list[Problem]) -> None:
        """Keep `problems` (at least one); the message lists them, one per line."""
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))
