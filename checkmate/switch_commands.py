"""`checkmate switch`: install jobs on a switch, show what it holds, and compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from checkmate.controller_command import controller
from checkmate.tls_options import with_tls
from checkmate_common.tls import TlsError
from checkmate_common.tls.options import TlsOptions
from controlplane.describe import (
    Names,
    action_text,
    describe,
    describe_update,
    group_text,
    match_text,
    match_values,
    param_values,
    replicas_text,
)
from controlplane.desired import desired_state, device_id_of
from controlplane.entities import Entity, MulticastGroup, SwitchState, TableEntry
from controlplane.errors import ControlPlaneError
from controlplane.pipeline import PipelineStatus
from controlplane.plan import Change, Update
from controlplane.snapshot import Count, Counters
from controlplane.target import DEFAULT_ELECTION_ID, Installation, Target
from jobspec.errors import JobError, Problem
from jobspec.loader import load_jobs
from jobspec.model import Job
from p4src.names import Table

DIFFERENT = 1
"""Exit code of `diff` when the switch differs."""
FAILED = 2
"""Exit code when a job file is invalid, the switch cannot be reached, or it refuses."""

app = typer.Typer(
    name="switch",
    help="Install jobs on a P4Runtime switch, show what it holds, and compare.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Job files; give several for several jobs on one switch.")
]
Address = Annotated[
    str, typer.Option("--target", "-t", metavar="HOST:PORT", help="P4Runtime (gRPC) address of the switch.")
]
DeviceId = Annotated[
    int | None,
    typer.Option("--device-id", min=1, help="P4Runtime device id; by default the job's switch.device_id."),
]
SwitchName = Annotated[
    str | None,
    typer.Option("--switch", metavar="NAME", help="Which of the jobs' switches to use; required if there are several."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


@app.command()
@with_tls
def install(
    files: Files,
    target: Address,
    switch: SwitchName = None,
    device_id: DeviceId = None,
    election_id: Annotated[
        int, typer.Option(min=1, help="Election id; the controller with the highest id is the primary.")
    ] = DEFAULT_ELECTION_ID,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would change.")] = False,
    as_json: Json = False,
    tls: TlsOptions = TlsOptions(),  # noqa: B008
) -> None:
    """Install exactly the jobs in FILE... on a switch.

    Reads the switch, pushes the program if it is missing or different, then changes only what differs. Entries that the
    files no longer contain are removed. If the switch refuses an update, the previous state is restored.

    Exit code: 0 done or nothing to change; 2 invalid file, no such switch, or refused.

    Examples:

        checkmate switch install examples/digits.yaml --target 127.0.0.1:9559

        checkmate switch install a.yaml b.yaml --target 127.0.0.1:9559 --dry-run

        checkmate switch install examples/two-switches.yaml --switch s2 --target 127.0.0.1:9560
    """

    def work() -> None:
        jobs = _load(files)
        desired, names = desired_state(jobs, switch), Names.of(jobs, switch)
        bid = None if dry_run else election_id
        number = device_id or device_id_of(jobs, switch)
        with Target.connect(target, number, election_id=bid, tls=tls.client()) as connection:
            done = connection.plan(desired) if dry_run else connection.install(desired, names)
        if as_json:
            _print_json({"dry_run": dry_run, **_installation_json(done, target, names)})
        else:
            _print_installation(done, target, names, dry_run=dry_run)

    _reporting_errors(work, as_json=as_json)


@app.command()
@with_tls
def diff(
    files: Files,
    target: Address,
    switch: SwitchName = None,
    device_id: DeviceId = None,
    as_json: Json = False,
    tls: TlsOptions = TlsOptions(),  # noqa: B008
) -> None:
    """Show what `install` would change on a switch; read-only.

    Exit code: 0 the switch is up to date; 1 it differs; 2 invalid file or no such switch.

    Examples:

        checkmate switch diff examples/digits.yaml --target 127.0.0.1:9559
    """

    def work() -> None:
        jobs = _load(files)
        desired, names = desired_state(jobs, switch), Names.of(jobs, switch)
        with Target.connect(target, device_id or device_id_of(jobs, switch), tls=tls.client()) as connection:
            found = connection.plan(desired)
        if as_json:
            _print_json({"equal": found.changes_nothing, **_installation_json(found, target, names)})
        else:
            _print_installation(found, target, names, dry_run=True)
        if not found.changes_nothing:
            raise typer.Exit(DIFFERENT)

    _reporting_errors(work, as_json=as_json)


@app.command()
@with_tls
def show(
    target: Address,
    job: Annotated[
        list[Path] | None,
        typer.Option("--job", metavar="FILE", help="Name hosts, shadows and flows as this job does (repeatable)."),
    ] = None,
    switch: SwitchName = None,
    device_id: DeviceId = None,
    as_json: Json = False,
    tls: TlsOptions = TlsOptions(),  # noqa: B008
) -> None:
    """Show tables, groups, digest settings and counters of a switch; read-only.

    Exit code: 0 shown; 2 no such switch, or it runs another program.

    Examples:

        checkmate switch show --target 127.0.0.1:9559 --job examples/digits.yaml
    """

    def work() -> None:
        jobs = _load(job) if job else []
        if switch is not None and not jobs:
            raise JobError([Problem("--switch", f"{switch!r} is a switch of a job; give the job file with --job")])
        names = Names.of(jobs, switch)
        number = device_id or (device_id_of(jobs, switch) if jobs else 1)
        with Target.connect(target, number, tls=tls.client()) as connection:
            state, counters = connection.read_counters()
        if as_json:
            _print_json({"target": target, "device_id": number, **_state_json(state, counters, names)})
        else:
            _print_state(state, counters, names)

    _reporting_errors(work, as_json=as_json)


app.command()(controller)
app.command("control", hidden=True)(controller)  # its former name


def _load(files: Sequence[Path]) -> list[Job]:
    return [loaded.job for loaded in load_jobs(files)]


_T = TypeVar("_T")


def _reporting_errors(work: Callable[[], _T], *, as_json: bool) -> _T:
    """Run `work`; if it fails, print the error and exit with `FAILED`."""
    try:
        return work()
    except JobError as error:
        problems = [
            {"file": problem.file, "line": problem.line, "field": problem.field, "message": problem.message}
            for problem in error.problems
        ]
        failure: dict[str, object] = {
            "kind": "job",
            "message": "the job cannot be used",
            "problems": problems,
        }
        text = str(error)
    except TlsError as error:
        failure, text = {"kind": "tls", "message": error.problem, "file": error.file}, str(error)
    except ControlPlaneError as error:
        failure, text = error.to_json(), str(error)
    if as_json:
        _print_json({"error": failure})
    else:
        typer.echo(text, err=True)
    raise typer.Exit(FAILED)


def _print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2))


def _console() -> Console:
    console = Console()
    # When writing to a file or a pipe, rich would wrap at 80 columns.
    return console if console.is_terminal else Console(width=max(console.width, 200))


def _counts(done: Installation) -> dict[str, int]:
    plan = done.plan
    return {
        "inserted": plan.count(Change.INSERT),
        "modified": plan.count(Change.MODIFY),
        "deleted": plan.count(Change.DELETE),
        "unchanged": plan.unchanged,
    }


def _installation_json(done: Installation, target: str, names: Names) -> dict[str, Any]:
    return {
        "target": target,
        "pipeline": str(done.pipeline),
        **_counts(done),
        "rebound_flows": list(done.plan.rebound_flows),
        "changes": [_update_json(update, names) for update in done.plan.updates],
    }


def _update_json(update: Update, names: Names) -> dict[str, Any]:
    before = _entity_json(update.before, names) if update.change is Change.MODIFY and update.before else None
    text = describe_update(update, names)
    return {
        "change": str(update.change),
        **_entity_json(update.entity, names),
        "before": before,
        "text": text,
    }


def _entity_json(entity: Entity, names: Names) -> dict[str, Any]:
    if isinstance(entity, TableEntry):
        match, params = match_values(entity, names), param_values(entity, names)
        return {
            "table": entity.table,
            "match": dict(entity.match),
            "action": entity.action,
            "params": dict(entity.params),
            "shown": {**match, **params},
        }
    if isinstance(entity, MulticastGroup):
        replicas = [{"port": copy.port, "rid": copy.rid} for copy in sorted(entity.replicas)]
        return {"group": entity.id, "replicas": replicas, "shown": replicas_text(entity, names)}
    return {
        "digest": entity.digest,
        "max_list_size": entity.max_list_size,
        "max_timeout_ns": entity.max_timeout_ns,
        "ack_timeout_ns": entity.ack_timeout_ns,
    }


def _count_json(count: Count) -> dict[str, int]:
    return {"packets": count.packets, "bytes": count.bytes}


def _state_json(state: SwitchState, counters: Counters, names: Names) -> dict[str, Any]:
    def counted(entry: TableEntry) -> dict[str, Any]:
        count = counters.entries.get(entry.key)
        return _entity_json(entry, names) | (_count_json(count) if count else {})

    return {
        "tables": {str(table): [counted(entry) for entry in state.table(table)] for table in Table},
        "groups": [_entity_json(group, names) for group in state.groups()],
        "digests": [_entity_json(config, names) for config in state.digests()],
        "not_replicated": {
            reason.name.lower(): _count_json(count) for reason, count in counters.not_replicated.items()
        },
    }


def _print_installation(done: Installation, target: str, names: Names, *, dry_run: bool) -> None:
    console = _console()
    if done.pipeline is not PipelineStatus.CURRENT:
        what = "runs no program yet" if done.pipeline is PipelineStatus.MISSING else "runs another program"
        verb = "will be pushed" if dry_run else "was pushed"
        console.print(f"{target} {what}: this version's {verb}", markup=False, highlight=False)
    for update in done.plan.updates:
        sign, style = _SIGNS[update.change]
        text = describe_update(update, names).removeprefix(f"{update.change} ")
        console.print(f"[{style}]{sign}[/] {escape(text)}", highlight=False, soft_wrap=True)
    for flow in done.plan.rebound_flows:
        console.print(
            f"flow {flow} now belongs to another pair of hosts: its open connections must be re-established",
            style="yellow",
        )
    if done.changes_nothing:
        summary = f"nothing to change: {target} is up to date ({done.plan.unchanged} entities)"
    else:
        numbers = ", ".join(f"{number} {what}" for what, number in _counts(done).items())
        summary = f"{target}: {'to do: ' if dry_run else ''}{numbers}"
    console.print(summary, markup=False, highlight=False, soft_wrap=True)


_SIGNS = {Change.INSERT: ("+", "green"), Change.MODIFY: ("~", "yellow"), Change.DELETE: ("-", "red")}


def _print_state(state: SwitchState, counters: Counters, names: Names) -> None:
    console = _console()
    for table in Table:
        entries = state.table(table)
        if not entries:
            continue
        counts = [counters.entries.get(entry.key) for entry in entries]
        counted = any(count is not None for count in counts)
        grid = Grid("match", "action", title=f"{table} ({len(entries)})", title_justify="left")
        if counted:
            grid.add_column("packets", justify="right")
            grid.add_column("bytes", justify="right")
        for entry, count in zip(entries, counts, strict=True):
            numbers = (str(count.packets), str(count.bytes)) if count else ()
            grid.add_row(escape(match_text(entry, names)), escape(action_text(entry, names)), *numbers)
        console.print(grid)
    groups = Grid("group", "copies", title=f"multicast groups ({len(state.groups())})", title_justify="left")
    for group in state.groups():
        groups.add_row(escape(group_text(group, names)), escape(replicas_text(group, names)))
    console.print(groups)
    for config in state.digests():
        console.print(escape(describe(config, names)), highlight=False)
    reasons = Grid("not replicated because", title="counters", title_justify="left")
    reasons.add_column("packets", justify="right")
    reasons.add_column("bytes", justify="right")
    for reason, count in counters.not_replicated.items():
        reasons.add_row(reason.name.lower(), str(count.packets), str(count.bytes))
    console.print(reasons)
