"""`checkmate acceptance`: the acceptance test of the recovery contract."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from topology.acceptance.record import RunRecord, failures, rows_of
from topology.acceptance.scenarios import MIXED_ANY, SCENARIOS, Scenario
from topology.acceptance.table import passed, render, reproduce, to_json
from topology.errors import TestbedError

if TYPE_CHECKING:
    from topology.acceptance.campaign import RunLog

NOT_PROVEN = 1
"""Exit code when the contract does not hold in some run, or a row does not inject its fault or compares nothing."""
FAILED = 2
"""Exit code when the runs could not be carried out."""
RESULT_FILE = "acceptance.json"
"""The table as JSON, in the campaign's folder."""
_SEEDS, _QUICK_SEEDS = 3, 1


class AcceptanceFabric(StrEnum):
    """Where the faults are injected."""

    SIMULATION = "simulation"
    MININET = "mininet"
    ALL = "all"


def acceptance(
    quick: Annotated[
        bool, typer.Option("--quick", help="The short form: one seed of each row, in the simulation only.")
    ] = False,
    fabric: Annotated[
        AcceptanceFabric | None,
        typer.Option(help="all, the default: each row in the simulation, then once in Mininet if it can be used."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help=f"Seeds of each row in the simulation; by default {_SEEDS}.")
    ] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Only this row; may be repeated. See --list.")
    ] = None,
    soak: Annotated[
        bool,
        typer.Option("--soak", help="Only the row mixed-anything, whose seeds draw from all faults: for many seeds."),
    ] = False,
    mixed: Annotated[bool, typer.Option("--mixed", hidden=True, help="Former name of --soak.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Simulated runs at a time; by default one per processor.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the runs of an earlier, interrupted command in --out.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for runs.jsonl and acceptance.json.")] = Path("out/acceptance"),
    as_json: Annotated[bool, typer.Option("--json", help="Print acceptance.json instead of the table.")] = False,
    list_rows: Annotated[bool, typer.Option("--list", help="List the rows and exit.")] = False,
) -> None:
    """Inject every fault of the recovery contract, alone and mixed, and judge the outcome of each run.

    Whatever happens: training equals that of a run without faults, bit for bit; every published recovery point, in
    memory and as read from the store, equals the trainers' state bit for bit; every step is on storage or explained; a
    job restarted from the newest durable step continues exactly as the uninterrupted one. A failing seed is printed
    with the command that reproduces it.

    Exit code: 0 the contract holds; 1 it does not; 2 the runs could not be carried out.

    Examples:

        checkmate acceptance --quick

        checkmate acceptance --fabric simulation --soak --seeds 2000 --jobs 2 --out out/soak

        checkmate acceptance --only torn-write --only full-disk
    """
    # Switches are killed while clients are connected; gRPC would log a line for each.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    console, notes = Console(), Console(stderr=True)
    if list_rows:
        for scenario in SCENARIOS:
            drawn = f"{scenario.pick} of: " if scenario.pick else ""
            print(f"{scenario.name:20} {drawn}{', '.join(scenario.injections)}")
        return
    from topology.acceptance.campaign import RunLog, Task, default_jobs, run_tasks
    from topology.acceptance.mininet import MininetTask, run_mininet
    from topology.acceptance.plan import RunLength
    from topology.acceptance.simulated_run.run import FABRIC as SIMULATION
    from topology.acceptance.soak import SOAK_FILE, soak_of
    from topology.fabric.mininet_net import unavailable_reason

    soak = soak or mixed
    wanted = fabric or (AcceptanceFabric.SIMULATION if quick or soak else AcceptanceFabric.ALL)
    try:
        rows = [MIXED_ANY] if soak else _scenarios(only or [])
        log = RunLog(out, resume=resume)
        workers = jobs or default_jobs()
        many = range(first_seed, first_seed + (seeds or (_QUICK_SEEDS if quick else _SEEDS)))
        if wanted is not AcceptanceFabric.MININET:
            tasks = log.missing((Task(row, seed, RunLength()) for seed in many for row in rows), SIMULATION)
            _follow("simulation", run_tasks(tasks, workers), len(tasks), log, notes)
        if wanted is not AcceptanceFabric.SIMULATION:
            lacking = unavailable_reason()
            if lacking is not None and wanted is AcceptanceFabric.MININET:
                raise TestbedError("mininet", lacking, "run as root on Linux, or use --fabric simulation")
            if lacking is not None:
                notes.print(f"nothing is injected in Mininet: {lacking}", highlight=False, markup=False)
            else:
                todo = [MininetTask(row, first_seed, out / "mininet" / row.name) for row in rows]
                _follow("mininet", map(run_mininet, todo), len(todo), log, notes)
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    result = rows_of(rows, log.known)
    document = json.dumps(to_json(result), indent=2)
    (out / RESULT_FILE).write_text(document + "\n", encoding="utf-8")
    if soak:
        soak_of(log.known, workers).write(out / SOAK_FILE)
    if as_json:
        print(document)
    else:
        render(result, console, str(out))
    raise typer.Exit(0 if passed(result) else NOT_PROVEN)


def _scenarios(names: Sequence[str]) -> list[Scenario]:
    known = {scenario.name: scenario for scenario in SCENARIOS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise TestbedError("only", f"unknown row {unknown[0]!r}", f"one of {', '.join(known)}")
    return [known[name] for name in names] if names else list(SCENARIOS)


def _follow(what: str, records: Iterator[RunRecord], total: int, log: RunLog, console: Console) -> None:
    """Write records as they arrive, and show progress; a failed run is printed at once."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[failed]}"),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    failed = 0
    with bar:
        task = bar.add_task(what, total=total, failed="")
        for record in records:
            log.add(record)
            if found := failures(record):
                failed += 1
                text = f"seed {record.seed} of {record.scenario} failed: {found[0]}; to reproduce: {reproduce(record)}"
                bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
            bar.update(task, advance=1, failed=f"{failed} failed" if failed else "")
