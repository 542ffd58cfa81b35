"""The result of the acceptance test as a table, with failures and commands to reproduce them, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from topology.acceptance.record import Row, RunRecord
from topology.acceptance.scenarios import Outcome

MOST_FAILURES = 20
"""Most failed runs listed below the table; the file of runs has all."""


def render(rows: Sequence[Row], console: Console, out: str) -> None:
    """Print a line for each row, the failures, and the verdict as the last line."""
    for fabric in dict.fromkeys(row.fabric for row in rows):
        console.print(_table(fabric, [row for row in rows if row.fabric == fabric]))
    for line in _notes(rows):
        console.print(Text(line), highlight=False, soft_wrap=True)
    for line in _failures(rows):
        console.print(Text(line, "bold red"), highlight=False, soft_wrap=True)
    console.print(Text(verdict(rows, out), "green" if passed(rows) else "bold red"), highlight=False, soft_wrap=True)


def _table(fabric: str, rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    table.add_column(f"fault\n({fabric})", no_wrap=True)
    for name in ("runs", "trained", "replica", "durable", "repaired\nresynced\nreported"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("training\nun-\nchanged", "wrong\ncheck-\npoints", "restart\nidenti-\ncal"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def passed(rows: Sequence[Row]) -> bool:
    """Return whether there are rows and the contract holds in every run."""
    return bool(rows) and all(row.passed for row in rows)


def verdict(rows: Sequence[Row], out: str) -> str:
    """Return the closing line."""
    runs = [run for row in rows for run in row.runs if run.skipped is None]
    points = sum(run.verified for run in runs)
    bad = sum(not row.passed for row in rows)
    if bad:
        return f"acceptance: FAILED in {bad} of {len(rows)} rows ({len(runs)} runs); records are in {out}"
    return f"acceptance: the contract holds in {len(rows)} rows, {len(runs)} runs; {points:,} recovery points compared"


def to_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Return everything as one JSON object."""
    return {
        "passed": passed(rows),
        "rows": [
            {
                "fault": row.scenario.name,
                "fabric": row.fabric,
                "injections": [injection.value for injection in row.scenario.injections],
                "passed": row.passed,
                "skipped": row.skipped,
                "left_out": row.left_out,
                "injected": dict(row.injected),
                "outcomes": {outcome.value: row.total(outcome) for outcome in Outcome},
                "wrong_checkpoints": sum(len(run.wrong) for run in row.runs),
                "training_unchanged": all(run.training is None for run in row.runs),
                "restart_identical": all(run.restart is None for run in row.runs),
                "shortcomings": row.shortcomings(),
                "failures": [{"seed": run.seed, "found": found} for run, found in row.failed_runs()],
                "runs": [_named(run) for run in row.runs],
            }
            for row in rows
        ],
    }


def reproduce(run: RunRecord) -> str:
    """Return the command that repeats a run."""
    return f"checkmate acceptance --fabric {run.fabric} --only {run.scenario} --first-seed {run.seed} --seeds 1"


def _named(run: RunRecord) -> dict[str, Any]:
    fields = run.to_json()
    fields["numbers"] = [numbers._asdict() for numbers in run.numbers]
    fields["at_end"] = run.at_end._asdict() if run.at_end is not None else None
    fields["excuses"] = [entry._asdict() for entry in run.excuses]
    fields["reported"] = [entry._asdict() for entry in run.reported]
    return fields


def _cells(row: Row) -> Iterator[Text]:
    yield Text(row.scenario.name)
    if row.skipped is not None:
        yield from (Text("-"), *[Text("")] * 3, Text("not here"), *[Text("")] * 3)
        return
    runs = row.runs
    yield Text(str(len(runs)))
    yield Text(_range(runs, lambda run: run.at_end and run.at_end.trained))
    yield Text(_range(runs, lambda run: run.at_end and run.at_end.replica))
    yield Text(_range(runs, lambda run: run.at_end and run.at_end.durable))
    yield Text("/".join(str(row.total(outcome)) for outcome in Outcome))
    yield _answer(all(run.training is None and run.error is None for run in runs))
    wrong = sum(len(run.wrong) for run in runs)
    yield Text(str(wrong), "bold red" if wrong else "green")
    yield _answer(all(run.restart is None and run.error is None for run in runs))


def _range(runs: Sequence[RunRecord], number: Callable[[RunRecord], int | None]) -> str:
    found = [value for run in runs if (value := number(run)) is not None]
    if not found:
        return "-"
    return str(found[0]) if min(found) == max(found) else f"{min(found)}..{max(found)}"


def _answer(holds: bool) -> Text:
    return Text("yes", "green") if holds else Text("NO", "bold red")


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.skipped is not None:
            yield f"{row.scenario.name} is not injected in {row.fabric}: {row.skipped}"
        for name, why in row.left_out.items() if row.skipped is None else ():
            yield f"{row.scenario.name} in {row.fabric} is without {name}: {why}"


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    listed = 0
    for row in rows:
        for shortcoming in row.shortcomings():
            yield f"{row.scenario.name}, {row.fabric}: {shortcoming}"
        for run, found in row.failed_runs():
            listed += 1
            if listed <= MOST_FAILURES:
                yield f"{run.scenario}, {run.fabric}, seed {run.seed}: {'; '.join(found)}"
                yield f"  again: {reproduce(run)}"
    if listed > MOST_FAILURES:
        yield f"and {listed - MOST_FAILURES} more failed runs"
