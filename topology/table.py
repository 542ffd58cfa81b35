"""A run's result on the terminal: the table, the gaps, the restart and the verdict. Readable without colour."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from topology.findings import bytes_text, checks, gaps, is_gap, loss_text, rows_to_show
from topology.results import Iteration, RestartResult, RunResult
from topology.svg import printable

MOST_ROWS = 40
"""Longer runs show their first and last steps and every step that is not verified."""
EDGE = 10
"""Number of first and of last steps that are always shown."""
MOST_GAPS = 20
"""Gaps whose details are listed below the table."""

_GOOD = Style(color="green")
_BAD = Style(color="red", bold=True)


def render_table(result: RunResult, console: Console) -> None:
    """Print one row per iteration, the gaps' details, the restart, what failed if anything did, and the verdict.

    The verdict is the last line and never wrapped, so that it can be searched for.
    """
    console.print(_table(result.iterations))
    _print_gaps(console, result.iterations)
    console.print(_restart_line(result), highlight=False)
    if result.restart.iterations:
        _print_gaps(console, result.restart.iterations, "restarted run, ")
    for check in checks(result):
        if not check.holds:
            console.print(Text(f"NOT so: {check.claim}: {printable(check.detail)}", _BAD), highlight=False)
    console.print(Text(result.verdict, _GOOD if result.passed else _BAD), highlight=False, soft_wrap=True)


def _table(iterations: Sequence[Iteration]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("bytes on\nthe wire", justify="right", no_wrap=True)
    table.add_column("replica\nbytes", justify="right", no_wrap=True)
    table.add_column("complete?", no_wrap=True)
    table.add_column("applied?", no_wrap=True)
    table.add_column("shadow ==\ntrainer?", no_wrap=True)
    table.add_column("reason", overflow="fold")
    # Exact numbers where they fit an 80-column terminal; the choice is the same for all rows, so that they compare.
    exact = max((i.wire_bytes for i in iterations), default=0) < 10_000_000
    for row in rows_to_show(iterations, MOST_ROWS, EDGE):
        if isinstance(row, int):
            table.add_row("...", *[""] * 6, f"({row} verified)", style="dim")
        else:
            table.add_row(*_cells(row, exact))
    return table


def _cells(iteration: Iteration, exact: bool) -> list[Text]:
    size = (lambda count: f"{count:,}") if exact else bytes_text
    equal = {True: Text("yes", _GOOD), False: Text("NO", _BAD), None: Text("-")}[iteration.matches]
    reason = iteration.reason or ("unreported" if is_gap(iteration) else iteration.mismatch or "")
    return [
        Text(str(iteration.step)),
        Text(loss_text(iteration.loss)),
        Text(size(iteration.wire_bytes)),
        Text(size(iteration.replica_payload_bytes)),
        _answer(iteration.complete),
        _answer(iteration.applied),
        equal,
        Text(printable(reason), _BAD),
    ]


def _answer(holds: bool) -> Text:
    return Text("yes", _GOOD) if holds else Text("no", _BAD)


def _print_gaps(console: Console, iterations: Sequence[Iteration], where: str = "") -> None:
    found = gaps(iterations)
    for gap in found[:MOST_GAPS]:
        detail = f": {gap.detail}" if gap.detail else ""
        console.print(Text(printable(f"{where}{gap.steps}: {gap.reason}{detail}")), highlight=False)
    if len(found) > MOST_GAPS:
        console.print(Text(f"{where}and {len(found) - MOST_GAPS} more gaps; the report lists them all"), highlight=False)


def _restart_line(result: RunResult) -> Text:
    restart: RestartResult = result.restart
    if not restart.from_step:
        return Text(f"restart: none was possible: {printable(restart.difference or 'there was no recovery point')}", _BAD)
    steps = [i.step for i in restart.iterations]
    ran = f"steps {steps[0]}-{steps[-1]}" if steps else "no step left to run"
    followed = f"shadow == trainer in {sum(i.verified for i in restart.iterations)}/{len(steps)} of them"
    if restart.identical:
        return Text(f"restart from step {restart.from_step} ({ran}): final state identical; {followed}", _GOOD)
    why = printable(restart.difference or "the final states differ")
    return Text(f"restart from step {restart.from_step} ({ran}): NOT identical: {why}; {followed}", _BAD)
