"""`checkmate job`: check a job file without changing anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from jobspec.errors import JobError
from jobspec.loader import load_jobs

FAILED = 2
"""Exit code when a job file is invalid."""

app = typer.Typer(
    name="job", help="Check job files and show the flows and queue pairs that they define.", no_args_is_help=True
)


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Job files that share a switch.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Validate job files, and show their flows and queue pairs.

    Exit code: 0 all valid; 2 a file is invalid, with file, line and field of each problem.

    Example: checkmate job check examples/digits.yaml
    """
    try:
        jobs = [loaded.job for loaded in load_jobs(files)]
    except JobError as error:
        if as_json:
            print(json.dumps({"problems": [vars(problem) for problem in error.problems]}, indent=2))
        else:
            print(error, file=typer.get_text_stream("stderr"))
        raise typer.Exit(FAILED) from None
    flows = [
        {
            "job": job.name,
            "flow": flow.id,
            "group": flow.group.name,
            "channel": flow.channel,
            "from": flow.source.name,
            "to": flow.target.name,
            "tcp_port": flow.tcp_port,
            "dscp": job.dscp.primary,
            "multicast_group": flow.multicast_group,
            "shadows": [shadow.name for shadow in flow.shadows],
            "replicated_by": job.switch_of(flow.source).name,
        }
        for job in jobs
        for flow in job.flows
    ]
    queue_pairs = [
        {
            "job": job.name,
            "from": pair.source.name,
            "to": pair.target.name,
            "source": str(pair.source_address),
            "target": str(pair.target_address),
            "queue_pair": pair.number,
            "multicast_group": pair.multicast_group,
            "shadows": [shadow.name for shadow in pair.shadows],
            "replicated_by": job.switch_of(pair.source).name,
        }
        for job in jobs
        for pair in job.queue_pairs
    ]
    if as_json:
        print(json.dumps({"problems": [], "flows": flows, "queue_pairs": queue_pairs}, indent=2))
        return
    for title, rows in (("Flows", flows), ("RoCEv2 queue pairs", queue_pairs)):
        if rows:
            Console().print(_table(title, rows))


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(", ".join(v) if isinstance(v, list) else str(v) for v in row.values()))
    return table
