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
from topology.faults import Fault
from topology.mininet_net import install_mininet, is_missing, why_not
from topology.progress import RunProgress
from topology.switch_events import SwitchEvent
from topology.table import render_table

NOT_PROVEN = 1
"""Exit code when the run went through and something is not as it must be."""
FAILED = 2
"""Exit code when the run could not be made."""

app = typer.Typer(name="testbed", help="Run a job on a fabric and prove its checkpoints.", no_args_is_help=True)


class SwitchName(StrEnum):
    """Programs that can be the switch."""

    SOFTSWITCH = "softswitch"
    BMV2 = "bmv2"


class FabricName(StrEnum):
    """Fabrics."""

    AUTO = "auto"
    INPROC = "inproc"
    MININET = "mininet"


def usable_mininet(install: bool, console: Console) -> str | None:
    """Return what Mininet lacks on this machine, None when it can be used; `install` it first where asked."""
    lacking = why_not()
    if lacking is None or not is_missing(lacking):
        return lacking
    if not install:
        return f"{lacking}; apt-get install mininet, or --install, gets it"
    console.print(f"fabric: {lacking}; installing Debian's mininet package (apt-get) ...", highlight=False)
    failed = install_mininet()
    return why_not() if failed is None else f"{lacking}, and it cannot be installed: {failed}"


def choose_fabric(wanted: FabricName, console: Console, *, install: bool = False) -> str:
    """Return the fabric to use, and say which and why where it was left to us.

    Args:
        wanted: what the user asks for.
        console: takes what is said.
        install: install Mininet where it is missing; nothing is changed on the machine without it.

    Raises:
        TestbedError: Mininet is asked for and cannot be had.
    """
    if wanted is FabricName.INPROC:
        return "inproc"
    lacking = usable_mininet(install, console)
    if lacking is None:
        if wanted is FabricName.AUTO:
            there = "root, mnexec and network namespaces are there; the switches' interfaces last as long as the run"
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
        FabricName, typer.Option(help="auto: Mininet where it can be used, else in-process. See --install.")
    ] = FabricName.AUTO,
    iterations: Annotated[int, typer.Option(min=2, help="Training steps.")] = 20,
    ranks: Annotated[
        int | None, typer.Option(min=2, help="Ranks: the job's first hosts; by default the job's ring.")
    ] = None,
    mtu: Annotated[int | None, typer.Option(min=576, max=9216, help="MTU; by default the job's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, data order, dropout, ports and faults.")] = 0,
    restart_at: Annotated[
        int | None,
        typer.Option(min=1, help="Step whose checkpoint the new trainer is built from; by default half way."),
    ] = None,
    fault: Annotated[
        list[Fault] | None,
        typer.Option(
            parser=Fault.parse,
            metavar="KIND:STEP",
            help="Damage one replica of a step on its way to the shadow (in-process fabric): drop-replica:3, "
            "flip-replica-bit:3, forge-replica-bit:3 (with a TCP checksum that fits), drop-both:3 (the redundant copy "
            "too). May be repeated.",
        ),
    ] = None,
    event: Annotated[
        list[SwitchEvent] | None,
        typer.Option(
            parser=SwitchEvent.parse,
            metavar="KIND:STEP",
            help="Kill the switch when rank 0 has finished STEP, and start it again (restart-switch:3) or go on "
            "through a standby (failover-switch:3); or kill the first shadow node and start it again with its storage "
            "(restart-shadow:3). May be repeated.",
        ),
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Install Debian's mininet package (apt-get) where it is missing.")
    ] = False,
    resync: Annotated[
        bool, typer.Option("--resync/--no-resync", help="Rank 0 uploads its state when a shadow node has lost a step.")
    ] = True,
    tls: Annotated[
        bool, typer.Option("--tls", help="Side channel and P4Runtime under mutual TLS, certificates made for the run.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for summary.json, report.html, captures and checkpoints.")] = Path(
        "out/testbed"
    ),
    timeout: Annotated[float, typer.Option(min=1, help="Seconds without any progress after which to give up.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
) -> None:
    """Train JOB, compare the shadow's checkpoint of every iteration with the trainer, restart from one, report.

    Exit code: 0 everything is proven; 1 something is not; 2 the run could not be made.

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
        bool, typer.Option("--install", help="Install Debian's mininet package (apt-get) where it is missing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Tell which fabrics can be used on this machine, and what the others lack.

    Example: checkmate testbed fabrics
    """
    lacking = usable_mininet(install, Console(stderr=True))
    if as_json:
        print(json.dumps({"inproc": None, "mininet": lacking}))
    else:
        print(f"inproc   usable\nmininet  {'usable' if lacking is None else f'not usable: {lacking}'}")
