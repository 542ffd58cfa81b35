"""Damage the inputs of all surfaces for some minutes: ``make fuzz-inputs MINUTES=10``.

    python -m tests.fuzz_inputs --minutes 10 --seed 1
    python -m tests.fuzz_inputs --surface job_file --count 20000

Exit status: 0 nothing was found; 1 something was, with the command that shows it again; 2 there is no such surface;
130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.fuzz_inputs.runner import Plan, Runner, Tally
from tests.fuzz_inputs.surfaces import load_surface, module_names

_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TextColumn("{task.fields[inputs]:,} inputs"),
    TimeElapsedColumn(),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz_inputs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="for all surfaces together (1, if there is no --count)")
    parser.add_argument("--count", type=int, help="inputs of each surface")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds, equal inputs")
    parser.add_argument("--first", type=int, default=0, help="number of the first call, as a failure names it")
    parser.add_argument("--surface", action="append", help="only this one; may be repeated")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="surfaces at a time")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    options = parser.parse_args(arguments)
    surfaces = [load_surface(module) for module in module_names()]
    unknown = set(options.surface or ()) - {surface.name for surface in surfaces}
    if unknown:
        known = ", ".join(surface.name for surface in surfaces)
        print(f"no surface {', '.join(sorted(unknown))}; there are {known}", file=sys.stderr)
        return 2
    surfaces = [surface for surface in surfaces if not options.surface or surface.name in options.surface]
    processes = max(1, min(options.processes, len(surfaces)))
    minutes = options.minutes or (None if options.count else 1.0)
    seconds = minutes * 60 * processes / len(surfaces) if minutes else float("inf")
    plan = Plan(options.seed, options.first, options.count, seconds)
    try:
        with Progress(*_COLUMNS, console=Console(stderr=True)) as progress:
            total = options.count or seconds
            tasks = {surface.name: progress.add_task(surface.name, total=total, inputs=0) for surface in surfaces}

            def show(tally: Tally, inputs: int, passed: float) -> None:
                done = inputs if options.count else passed
                progress.update(tasks[tally.surface.name], completed=min(done, total), inputs=inputs)

            tallies = Runner(plan, show).run(surfaces, processes)
            for tally in tallies:
                progress.update(tasks[tally.surface.name], completed=total, inputs=tally.inputs)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps([_plain(tally) for tally in tallies], indent=2))
    else:
        Console().print(_table(tallies))
    failed = [tally for tally in tallies if tally.failure is not None]
    for tally in failed:
        print(f"\n{tally.surface.name}: {tally.failure}\nagain: {tally.again}", file=sys.stderr)
    return 1 if failed else 0


def _plain(tally: Tally) -> dict[str, object]:
    return {
        "surface": tally.surface.name, "inputs": tally.inputs, "seconds": round(tally.seconds, 3),
        "growth_bytes": tally.growth_bytes, "failure": tally.failure, "again": tally.again,
    }  # fmt: skip


def _table(tallies: Sequence[Tally]) -> Table:
    table = Table("surface")
    for heading in ("inputs", "seconds", "peak growth MiB"):
        table.add_column(heading, justify="right")
    table.add_column("found")
    for tally in tallies:
        table.add_row(
            tally.surface.name, f"{tally.inputs:,}", f"{tally.seconds:.0f}", f"{tally.growth_bytes / (1 << 20):.0f}",
            "nothing" if tally.failure is None else "FAILED",
        )  # fmt: skip
    table.add_section()
    total = f"{sum(tally.inputs for tally in tallies):,}"
    peak = max(tally.growth_bytes for tally in tallies) / (1 << 20)
    table.add_row("all", total, f"{sum(tally.seconds for tally in tallies):.0f}", f"{peak:.0f}", "")
    return table


if __name__ == "__main__":
    sys.exit(main())
