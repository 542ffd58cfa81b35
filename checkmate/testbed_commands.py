"""`checkmate testbed`: run a job on a fabric and prove its checkpoints."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from controlplane.errors import ControlPlaneError
from jobspec.errors import JobError
from jobspec.loader import load_job
from topology.errors import TestbedError
from topology.fabric.mininet_net import install_mininet, is_missing, unavailable_reason
from topology.faults import Fault
from topology.processes.switch_events import SwitchEvent
from topology.progress import RunProgress
from topology.report.table import render_table

NOT_PROVEN = 1
"""Exit code when the run finished but a check failed."""
FAILED = 2
"""Exit code when the run could not be carried out."""

app = typer.Typer(name="testbed", help="Run a job on a fabric and prove its checkpoints.", no_args_is_help=True)


class SwitchName(StrEnum):
    """Switch programs."""

    SOFTSWITCH = "softswitch"
    BMV2 = "bmv2"


class FabricName(StrEnum):
    """Fabrics."""

    AUTO = "auto"
    INPROC = "inproc"
    MININET = "mininet"


def usable_mininet(install: bool, console: Console) -> str | None:
    """Return what Mininet lacks on this machine, None if it can be used; if `install`, install it first."""
    lacking = unavailable_reason()
    if lacking is None or not is_missing(lacking):
        return lacking
    if not install:
        return f"{lacking}; run apt-get install mininet, or give --install"
    console.print(f"fabric: {lacking}; installing Debian's mininet package (apt-get) ...", highlight=False)
    failed = install_mininet()
    return unavailable_reason() if failed is None else f"{lacking}, and it cannot be installed: {failed}"


def choose_fabric(wanted: FabricName, console: Console, *, install: bool = False) -> str:
    """Return the fabric to use; if it was not given, print which and why.

    Args:
        wanted: what the user asks for.
        console: where to print.
        install: install Mininet if it is missing; without it nothing is changed on the machine.

    Raises:
        TestbedError: Mininet is requested but not available.
    """
    if wanted is FabricName.INPROC:
        return "inproc"
    lacking = usable_mininet(install, console)
    if lacking is None:
        if wanted is FabricName.AUTO:
            there = "root, mnexec and network namespaces are available; the switches' interfaces exist during the run"
            console.print(f"fabric: mininet ({there})", highlight=False)
        return "mininet"
    if wanted is FabricName.MININET:
        raise TestbedError("mininet", lacking, "run as root on Linux, or use --fabric inproc")
    console.print(f"fabric: inproc, because Mininet cannot be used here: {lacking}", highlight=False)
    return "inproc"


@app.command()
def run(
    job_file: Annotated[Path, typer.Argument(metavar="JOB", help="Job file, e.g. examples/digits.yaml.")],
    switch: Annotated[SwitchName, typer.Option(help="Program that runs the data plane.")] = SwitchName.SOFTSWITCH,
    fabric: Annotated[
        FabricName, typer.Option(help="auto: Mininet if it can be used, otherwise in-process. See --install.")
    ] = FabricName.AUTO,
    iterations: Annotated[int, typer.Option(min=2, help="Training steps.")] = 20,
    ranks: Annotated[
        int | None, typer.Option(min=2, help="Ranks: the job's first hosts; by default the job's ring.")
    ] = None,
    mtu: Annotated[int | None, typer.Option(min=576, max=9216, help="MTU; by default the job's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, data order, dropout, ports and faults.")] = 0,
    restart_at: Annotated[
        int | None,
        typer.Option(min=1, help="Step whose checkpoint the new trainer is built from; by default halfway."),
    ] = None,
    fault: Annotated[
        list[Fault] | None,
        typer.Option(
            parser=Fault.parse,
            metavar="KIND:STEP",
            help="Damage one replica of a step on its way to the shadow (in-process fabric): drop-replica:3, "
            "flip-replica-bit:3, forge-replica-bit:3 (with a matching TCP checksum), drop-both:3 (the redundant copy "
            "too). May be repeated.",
        ),
    ] = None,
    event: Annotated[
        list[SwitchEvent] | None,
        typer.Option(
            parser=SwitchEvent.parse,
            metavar="KIND:STEP",
            help="Kill the switch when rank 0 has finished STEP, and restart it (restart-switch:3) or fail over to a "
            "standby (failover-switch:3); or kill the first shadow node and restart it with its storage "
            "(restart-shadow:3). May be repeated.",
        ),
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Install Debian's mininet package (apt-get) if it is missing.")
    ] = False,
    resync: Annotated[
        bool,
        typer.Option("--resync/--no-resync", help="Let rank 0 upload its state when a shadow node has lost a step."),
    ] = True,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls", help="Use mutual TLS for side channel and P4Runtime, with certificates made for the run."
        ),
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for summary.json, report.html, captures and checkpoints.")] = Path(
        "out/testbed"
    ),
    timeout: Annotated[float, typer.Option(min=1, help="Give up after this many seconds without progress.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
) -> None:
    """Train JOB, compare the shadow's checkpoint of every iteration with the trainer, restart from one, report.

    Exit code: 0 all checks passed; 1 a check failed; 2 the run could not be carried out.

    Examples:

      checkmate testbed run examples/digits.yaml

      checkmate testbed run examples/digits.yaml --fabric inproc --ranks 8 --mtu 9000 --iterations 5

      checkmate testbed run examples/digits.yaml --fabric inproc --iterations 6 --fault drop-replica:3

      checkmate testbed run examples/digits.yaml --iterations 8 --event restart-switch:5
    """
    from topology.testbed import TestbedOptions, run_testbed

    notes = Console(stderr=True)
    console = Console()
    try:
        job = load_job(job_file)
        options = TestbedOptions(
            switch=switch.value,
            fabric=choose_fabric(fabric, notes, install=install),
            iterations=iterations,
            ranks=ranks,
            mtu=mtu,
            seed=seed,
            restart_at=restart_at,
            faults=tuple(fault or ()),
            events=tuple(event or ()),
            resync=resync,
            tls=tls,
            out=out,
            timeout=timeout,
        )
        with RunProgress(notes) as progress:
            result = run_testbed(job, options, progress)
    except (JobError, TestbedError, ControlPlaneError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    if as_json:
        print(json.dumps(result.summary(), indent=2))
    else:
        notes.print(f"wrote {out}/summary.json, {out}/report.html, {out}/*.pcap", highlight=False)
        render_table(result, console)
    raise typer.Exit(0 if result.passed else NOT_PROVEN)


@app.command()
def fabrics(
    install: Annotated[
        bool, typer.Option("--install", help="Install Debian's mininet package (apt-get) if it is missing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """List the fabrics that can be used on this machine, and what the others lack.

    Example: checkmate testbed fabrics
    """
    lacking = usable_mininet(install, Console(stderr=True))
    if as_json:
        print(json.dumps({"inproc": None, "mininet": lacking}))
    else:
        print(f"inproc   usable\nmininet  {'usable' if lacking is None else f'not usable: {lacking}'}")
