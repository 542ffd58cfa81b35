"""Output of `checkmate replay` for captures of gloo."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from rich.console import Console

from checkmate.replay_tables import DIGITS, SHOWN_HOLES, SHOWN_LINES, grid, print_line

if TYPE_CHECKING:
    from replay.gloo import GlooReport, StepReport


def show_gloo(report: GlooReport, console: Console) -> None:
    """Print the steps of each DDP job, and the missing bytes."""
    trouble: list[str] = []
    for group in report.groups:
        start = (group.initial_parameters_sha256 or "unknown")[:DIGITS]
        title = f"Group {group.group}: {group.ranks} ranks, {len(group.names)} parameters, initial values {start}"
        steps = grid(title, "#step", "complete", "gradients", "unused", "parameters", "optimizer", "status")
        for step in group.steps:
            steps.add_row(
                str(step.step),
                "[green]yes[/]" if step.complete else "[red]no[/]",
                _joined(step.gradients) if step.complete else _share(step),
                ", ".join(group.names[index] for index in step.unused[:SHOWN_HOLES]) or "-",
                _joined(step.parameters),
                _joined([None if s is None else "".join(s.values()) for s in step.optimizer]),
                step.status,
            )
            holes = [hole for hole in step.missing if hole["parameter"] is not None]
            for hole in holes[:SHOWN_HOLES]:
                ranges = ", ".join(f"[{a}, {b})" for a, b in hole["bytes"][:SHOWN_HOLES]) or "all"
                trouble.append(f"step {step.step}: {hole['parameter']}: bytes {ranges} missing: {hole['reason']}")
            if len(holes) > SHOWN_HOLES:
                trouble.append(f"step {step.step}: ... {len(holes)} gradients in all")
        console.print(steps)
        if group.initial_problem is not None:
            trouble.append(f"initial parameters: {group.initial_problem}")
        if group.replay_problem is not None:
            trouble.append(f"parameters: {group.replay_problem}")
        if group.problem is not None:
            trouble.append(f"group {group.group}: {group.problem}")
    for line in trouble[:SHOWN_LINES]:
        print_line(console, line)
    if len(trouble) > SHOWN_LINES:
        print_line(console, f"... and {len(trouble) - SHOWN_LINES} lines like these (--json has all)")
    if report.discarded:
        others = ", ".join(f"{count} {cause}" for cause, count in sorted(report.discarded.items()))
        print_line(console, f"segments not used: {others}")
    for problem in report.problems[:SHOWN_LINES]:
        print_line(console, f"problem: {problem}")
    steps_ = [step for group in report.groups for step in group.steps]
    done = sum(step.complete for step in steps_)
    declared = sum(step.status == "declared" for step in steps_)
    print_line(console, f"{done} of {len(steps_)} steps complete, {declared} with parameters as declared")


def _joined(digests: tuple[str | None, ...] | list[str | None]) -> str:
    """Return one digest for all existing ones, ``-`` if there are none."""
    known = [digest for digest in digests if digest is not None]
    return hashlib.sha256("".join(known).encode()).hexdigest()[:DIGITS] if known else "-"


def _share(step: StepReport) -> str:
    known = sum(digest is not None for digest in step.gradients) + len(step.unused)
    return f"{known} of {len(step.gradients)}"
