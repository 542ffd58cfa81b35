"""Progress of a run: a bar on a terminal, otherwise a line for each phase."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class RunProgress:
    """Shows phases and their steps; a context manager."""

    def __init__(self, console: Console) -> None:
        """Show on `console`."""
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description:<32}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            transient=False,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        """Start the display."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the display; leave its last state on the screen."""
        self._bar.stop()

    def message(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False)

    def begin(self, what: str, total: int) -> None:
        """Begin the phase `what` of `total` steps."""
        self._task = self._bar.add_task(what, total=total, note="")
        if not self._console.is_terminal:
            self._console.print(f"{what}: {total} steps", highlight=False)

    def step(self, done: int, note: str) -> None:
        """Report that `done` steps of the phase are finished; `note` is shown beside the bar."""
        if self._task is not None:
            self._bar.update(self._task, completed=done, note=note)
