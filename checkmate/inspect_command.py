"""`checkmate inspect`: summarize a capture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from capture.errors import CaptureError
from checkmate.inspect_tables import tables
from jobspec.errors import JobError
from jobspec.loader import load_job
from replay.inspect import inspect_capture

DAMAGED = 1
"""Exit code when the file is not a capture or is damaged; everything before the damage is shown."""
FAILED = 2
"""Exit code when the file or the job cannot be read."""


def inspect(
    capture: Annotated[Path, typer.Argument(metavar="CAPTURE", help="pcap or pcapng, plain or gzip; - for stdin.")],
    job_file: Annotated[
        Path | None, typer.Option("--job", metavar="JOB", help="Job that names the flows and queue pairs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Summarize a capture: connections, queue pairs, messages, losses, collectives, other traffic.

    Exit code: 0 read to the end; 1 damaged or not a capture (everything before the damage is shown); 2 cannot be read.

    Example: checkmate inspect ring.pcap --job examples/digits.yaml
    """
    errors = Console(stderr=True)
    try:
        job = load_job(job_file) if job_file is not None else None
        with _bar(errors) as bar:
            task = bar.add_task(f"reading {capture.name}", total=None)
            found = inspect_capture(capture, job, lambda done, size: bar.update(task, completed=done, total=size))
    except OSError as error:
        errors.print(
            f"error: {capture}: cannot be read: {error.strerror}", highlight=False, markup=False, soft_wrap=True
        )
        raise typer.Exit(FAILED) from None
    except (JobError, CaptureError) as error:
        errors.print(f"error: {error}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(DAMAGED if isinstance(error, CaptureError) else FAILED) from None
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        console = Console()
        for part in tables(found):
            console.print(part, highlight=False, markup=False)
    if found.damage is not None:
        errors.print(f"error: {found.damage}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(DAMAGED)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
