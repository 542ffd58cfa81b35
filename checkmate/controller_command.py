"""`checkmate switch controller`: keeps the jobs installed on switches while they train."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Annotated

import typer

from checkmate.event_lines import EventLines
from checkmate.tls_options import with_tls
from checkmate_common.tls import TlsError
from checkmate_common.tls.options import TlsOptions
from controlplane.controller import ControllerCore, ControllerEvent
from controlplane.controller_driver import ControllerDriver
from controlplane.describe import Names
from controlplane.desired import desired_state, device_id_of
from controlplane.errors import ControlPlaneError
from controlplane.journal_file import JournalError, read_journal
from controlplane.target import DEFAULT_ELECTION_ID
from jobspec.errors import JobError
from jobspec.loader import load_jobs

FAILED = 2
"""Exit code when a job file, an address or the journal cannot be used, or the controller itself fails."""
_CHECK_S = 0.5
"""Seconds between two checks whether the controller still works."""
_SIGNALS = {signal.SIGINT, signal.SIGTERM}


@with_tls
def controller(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Job files; give several for several jobs on one switch.")
    ],
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="HOST:PORT", help="P4Runtime (gRPC) address of the switch.")
    ],
    switch: Annotated[
        str | None,
        typer.Option(
            "--switch", metavar="NAME", help="Which of the jobs' switches to use; required if there are several."
        ),
    ] = None,
    standby: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="A switch to keep prepared as its replacement (repeatable)."),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="Keep the open connections in this file, so that a restarted controller knows them."),
    ] = None,
    device_id: Annotated[
        int | None,
        typer.Option("--device-id", min=1, help="P4Runtime device id; by default the job's switch.device_id."),
    ] = None,
    election_id: Annotated[
        int, typer.Option(min=1, help="Election id; the controller with the highest id is the primary.")
    ] = DEFAULT_ELECTION_ID,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document per line instead of text.")] = False,
    tls: TlsOptions = TlsOptions(),  # noqa: B008
) -> None:
    """Run a controller until SIGINT or SIGTERM: install the jobs, and again whenever a switch restarts.

    Every connection that a switch reports is kept in a journal. A restarted switch gets them back in `flow_base`; a
    standby gets each new connection at once, so that training can continue through it at any time. The controller
    waits for a switch that does not answer.

    If nobody reads the events any more, the controller continues without showing them.

    Exit code: 0 after a signal; 2 an invalid file, address or journal, or an internal error of the controller.

    Examples:

        checkmate switch controller examples/digits.yaml --target 127.0.0.1:9559

        checkmate switch controller examples/digits.yaml -t 10.9.0.1:9559 --standby 10.9.0.2:9559 --journal digits.json
    """
    # Blocked before any thread starts, so that all threads inherit it and sigwait is the only receiver.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    lines = EventLines()

    def show(event: ControllerEvent) -> None:
        lines.put(json.dumps(event.to_json()) if as_json else f"{event.switch} {event.kind}: {event.message}")

    try:
        jobs = [loaded.job for loaded in load_jobs(files)]
        known = read_journal(journal) if journal is not None else ()
        core = ControllerCore([target, *(standby or [])], desired_state(jobs, switch), known)
        number = device_id or device_id_of(jobs, switch)
        with (
            lines,
            ControllerDriver(
                core,
                number,
                election_id=election_id,
                names=Names.of(jobs, switch),
                journal=journal,
                tls=tls.client(),
                on_event=show,
            ) as driver,
        ):
            while signal.sigtimedwait(_SIGNALS, _CHECK_S) is None:
                driver.check()
    except (JobError, ControlPlaneError, JournalError, TlsError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(FAILED) from None
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
