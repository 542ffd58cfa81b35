"""`checkmate job`: look at a job file without touching anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from jobspec.errors import JobError
from jobspec.loader import load_jobs

FAILED = 2
"""Exit code when a job file is wrong."""

app = typer.Typer(name="job", help="Check job files and show what follows from them.", no_args_is_help=True)


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Job files that share a switch.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Validate job files, and show their flows.

    Exit code: 0 all sound; 2 something is wrong, each problem with file, line and field.

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
    if as_json:
        print(json.dumps({"problems": [], "flows": flows}, indent=2))
        return
    table = Table(title="Flows", title_justify="left")
    for name in flows[0]:
        table.add_column(name.replace("_", " "))
    for flow in flows:
        table.add_row(*(", ".join(v) if isinstance(v, list) else str(v) for v in flow.values()))
    Console().print(table)
