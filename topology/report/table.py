"""A run's result on the terminal: table, gaps, restart and verdict; readable without colour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from topology.report.findings import bytes_text, checks, gaps, is_gap, loss_text, rows_to_show, track_columns
from topology.report.meanings import UNREPORTED
from topology.report.svg import printable
from topology.results import Iteration, RunResult

MAX_ROWS = 40
"""Longer runs show their first and last steps and every step that is not verified."""
EDGE_ROWS = 10
"""Number of first and of last rows that are always shown."""
MAX_GAPS = 20
"""Most gaps listed below the table."""

_GOOD = Style(color="green")
_BAD = Style(color="red", bold=True)


def render_table(result: RunResult, console: Console) -> None:
    """Print a row for each iteration, the events, the gaps, the restart, the failed checks, and the verdict.

    The verdict is the last line and never wrapped, so that scripts can find it.
    """
    ascii_only = console.options.ascii_only

    def clean(text: str) -> str:
        text = printable(text)
        return text.encode("ascii", "replace").decode() if ascii_only else text

    console.print(_table(result.iterations, clean))
    for event in result.events:
        console.print(Text(clean(f"event {event}")), highlight=False, soft_wrap=True)
    for line in (*_repair_lines(result.iterations), *_gap_lines(result.iterations)):
        console.print(Text(clean(line)), highlight=False)
    console.print(Text(clean(_restart_line(result)), _GOOD if result.restart.identical else _BAD), highlight=False)
    for line in _gap_lines(result.restart.iterations, "restarted run, "):
        console.print(Text(clean(line)), highlight=False)
    for check in checks(result):
        if not check.holds:
            console.print(Text(clean(f"NOT so: {check.claim}: {check.detail}"), _BAD), highlight=False)
    console.print(Text(result.verdict, _GOOD if result.passed else _BAD), highlight=False, soft_wrap=True)


def _table(iterations: Sequence[Iteration], clean: Callable[[str], str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    columns = track_columns(iterations)
    table.add_column("step", justify="right", no_wrap=True)
    for name in columns:
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=10)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("bytes on\nthe wire", justify="right", no_wrap=True)
    table.add_column("replica\nbytes", justify="right", no_wrap=True)
    # Shorter headings keep the reason on one line in 80 columns.
    narrow = ("com-\nplete?", "ap-\nplied?", "equal?")
    for name in narrow if columns else ("complete?", "applied?", "shadow ==\ntrainer?"):
        table.add_column(name, no_wrap=True)
    table.add_column("reason", overflow="fold")
    # Exact numbers if they fit 80 columns; the same for all rows, so that they can be compared.
    exact = max((i.wire_bytes for i in iterations), default=0) < 10_000_000
    for row in rows_to_show(iterations, MAX_ROWS, EDGE_ROWS):
        if isinstance(row, int):
            table.add_row("...", *[""] * (6 + len(columns)), f"({row} verified)", style="dim")
        else:
            step, *rest = _cells(row, exact, clean)
            table.add_row(step, *(clean(getattr(row, name)) for name in columns), *rest)
    return table


def _cells(iteration: Iteration, exact: bool, clean: Callable[[str], str]) -> list[Text]:
    wire, replica = (
        f"{count:,}" if exact else bytes_text(count)
        for count in (iteration.wire_bytes, iteration.replica_payload_bytes)
    )
    equal = {True: Text("yes", _GOOD), False: Text("NO", _BAD), None: Text("-")}[iteration.matches]
    reason = iteration.reason or (UNREPORTED if is_gap(iteration) else iteration.mismatch or "")
    return [
        Text(str(iteration.step)),
        Text(loss_text(iteration.loss)),
        Text(wire),
        Text(replica),
        _answer(iteration.complete),
        _answer(iteration.applied),
        equal,
        Text(clean(reason), _BAD),
    ]


def _answer(holds: bool) -> Text:
    return Text("yes", _GOOD) if holds else Text("no", _BAD)


def _repair_lines(iterations: Sequence[Iteration]) -> Iterator[str]:
    repaired = [i for i in iterations if i.repaired_bytes]
    for i in repaired[:MAX_GAPS]:
        where = f" ({i.group} at {i.shadow})" if track_columns(iterations) else ""
        yield f"step {i.step}{where}: {i.repaired_bytes:,} lost bytes were repaired from a redundant hop"
    if len(repaired) > MAX_GAPS:
        yield f"and {len(repaired) - MAX_GAPS} more steps were repaired"


def _gap_lines(iterations: Sequence[Iteration], where: str = "") -> Iterator[str]:
    found = gaps(iterations)
    for gap in found[:MAX_GAPS]:
        yield f"{where}{gap.steps}: {gap.reason}" + (f": {gap.detail}" if gap.detail else "")
    if len(found) > MAX_GAPS:
        yield f"{where}and {len(found) - MAX_GAPS} more gaps; the report lists them all"


def _restart_line(result: RunResult) -> str:
    restart = result.restart
    if not restart.from_step:
        return f"restart: none was possible: {restart.difference or 'there was no recovery point'}"
    rows, steps = len(restart.iterations), [i.step for i in restart.iterations]
    ran = f"steps {steps[0]}-{steps[-1]}" if steps else "no step left to run"
    outcome = (
        "final state identical" if restart.identical else f"NOT identical: {restart.difference or 'the states differ'}"
    )
    followed = f"shadow == trainer in {sum(i.verified for i in restart.iterations)}/{rows} of them"
    return f"restart from step {restart.from_step} ({ran}): {outcome}; {followed}"
