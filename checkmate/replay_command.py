"""`checkmate replay`: captured packets to gradients, offline; or back onto the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from checkmate.gloo_tables import show_gloo
from checkmate.replay_tables import show_rdma, show_replay
from checkmate.send_command import (
    LoopOption,
    MbpsOption,
    RateOption,
    RewriteIpOption,
    RewriteMacOption,
    SendOption,
    SpeedOption,
    run_send,
    send_options_without_send,
)
from jobspec.errors import JobError
from jobspec.loader import load_job
from replay.errors import ReplayError
from replay.find import Kind, job_beside, kind_of, records_beside

if TYPE_CHECKING:
    from replay.run import Progress as ProgressCallback
    from replay.run import ReplayOptions

INCOMPLETE = 1
"""Exit code when something is incomplete, damaged, or differs from the run's."""
FAILED = 2
"""Exit code when a file or an option cannot be used at all."""

_OWN = "Our own traffic"
_ROCEV2 = "RoCEv2"
_GLOO = "PyTorch over gloo"


class KindName(StrEnum):
    """Traffic to decode."""

    AUTO = "auto"
    TCP = "tcp"
    ROCEV2 = "rocev2"
    GLOO = "gloo"


def replay_command(
    captures: Annotated[
        list[Path], typer.Argument(metavar="CAPTURE...", help="pcap or pcapng files; several ports of one run merge.")
    ],
    job_file: Annotated[
        Path | None, typer.Option("--job", metavar="JOB", help="Job file; by default job.yaml beside the capture.")
    ] = None,
    kind: Annotated[KindName, typer.Option(help="Traffic to decode; auto takes the first kind found.")] = KindName.AUTO,
    out: Annotated[
        Path | None, typer.Option(help="New folder for gradients (npy) and recovery points.", metavar="DIR")
    ] = None,
    through_switch: Annotated[
        bool, typer.Option("--through-switch", help="Send each frame through the job's compiled P4 program first.")
    ] = False,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_OWN,
            help="Side-channel log of the run (repeatable); by default side-channel*.bin beside the capture.",
        ),
    ] = None,
    no_records: Annotated[
        bool, typer.Option("--no-records", rich_help_panel=_OWN, help="Use frame headers only.")
    ] = False,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Recovery point to start from, one per group; by default the state in the log. For a PyTorch job the "
            "checkpoint (.pt) that it started from.",
        ),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="DIR", rich_help_panel=_OWN, help="The run's checkpoints, for comparison."),
    ] = None,
    use_p2p: Annotated[
        bool,
        typer.Option("--use-p2p", rich_help_panel=_ROCEV2, help="Use p2p messages for data that appears nowhere else."),
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE", rich_help_panel=_ROCEV2, help="Element type, e.g. float32; it is not on the wire."
        ),
    ] = None,
    trainer: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=_GLOO, help="What the script does with gradients: trainer.yaml."),
    ] = None,
    unfinished_checksums: Annotated[
        bool,
        typer.Option(
            "--unfinished-checksums",
            rich_help_panel=_GLOO,
            help="Accept segments whose TCP checksum the network card fills in (captures on a host with offloads).",
        ),
    ] = False,
    send: SendOption = None,
    rate: RateOption = None,
    speed: SpeedOption = None,
    mbps: MbpsOption = None,
    loop: LoopOption = None,
    rewrite_mac: RewriteMacOption = None,
    rewrite_ip: RewriteIpOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Turn captured packets into reduced gradients and recovery points, offline and without root.

    Three kinds of traffic: our own, captured at a shadow node's port or at ranks' ports; real NCCL all-reduces over
    RoCEv2; and PyTorch DistributedDataParallel jobs over gloo, captured at one or more ranks. Losses and damage are
    reported with their exact position; nothing is ever guessed.

    Exit code: 0 everything is complete; 1 something is not; 2 a file or an option cannot be used.

    Examples:

      checkmate replay out/testbed/s1-eth9_out.pcap

      checkmate replay out/testbed/s1-eth1_in.pcap out/testbed/s1-eth1_out.pcap --json

      checkmate replay out/testbed/s1-eth[1-4]_in.pcap --through-switch --compare out/testbed/checkpoints

      checkmate replay nccl.pcapng --use-p2p --dtype float32 --out tensors

      checkmate replay rank0.pcap rank1.pcap --trainer trainer.yaml --out checkpoints

      checkmate replay out/testbed/s1-eth9_out.pcap --send eth1 --rate 1000
    """
    if send is not None:
        code = run_send(
            captures, send, rate=rate, speed=speed, mbps=mbps, loop=loop, rewrite_mac=rewrite_mac,
            rewrite_ip=rewrite_ip, as_json=as_json,
        )  # fmt: skip
        raise typer.Exit(code)
    errors = Console(stderr=True)
    try:
        idle = send_options_without_send(
            rate=rate, speed=speed, mbps=mbps, loop=loop, rewrite_mac=rewrite_mac, rewrite_ip=rewrite_ip
        )
        if idle is not None:
            raise ReplayError(idle, "it only applies to sending", "give --send IFACE too, or omit it")
        found = _kind(captures, kind)
        with _bar(errors) as progress:
            if found is Kind.GLOO:
                _refuse_options(
                    {"--records": records, "--no-records": no_records, "--compare": compare, "--job": job_file,
                     "--through-switch": through_switch, "--use-p2p": use_p2p, "--dtype": dtype},
                    "PyTorch over gloo",
                )  # fmt: skip
                complete = _gloo(captures, trainer, checkpoint, out, unfinished_checksums, progress, as_json=as_json)
            elif found is Kind.ROCEV2:
                _refuse_options({"--trainer": trainer, "--unfinished-checksums": unfinished_checksums}, "RoCEv2")
                _refuse_options(
                    {"--records": records, "--no-records": no_records, "--checkpoint": checkpoint,
                     "--compare": compare},
                    "RoCEv2",
                )  # fmt: skip
                complete = _rdma(captures, job_file, out, use_p2p, dtype, through_switch, progress, as_json=as_json)
            else:
                _refuse_options({"--use-p2p": use_p2p, "--dtype": dtype, "--trainer": trainer}, "our own TCP traffic")
                options = _options(captures, job_file, out, through_switch, records, no_records, checkpoint, compare)
                complete = _tcp(captures, options, progress, as_json=as_json)
    except (JobError, ReplayError) as error:
        errors.print(f"error: {error}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(FAILED) from None
    raise typer.Exit(0 if complete else INCOMPLETE)


def _kind(captures: list[Path], wanted: KindName) -> Kind:
    if any(str(path) == "-" for path in captures):
        raise ReplayError("CAPTURE", "captures are read twice, which standard input does not allow", "give a file")
    if wanted is not KindName.AUTO:
        return Kind(wanted.value)
    for path in captures:
        found = kind_of(path)
        if found is not None:
            return found
    return Kind.TCP  # whose decoder then reports what the capture holds instead


def _refuse_options(given: dict[str, Any], what: str) -> None:
    for name, value in given.items():
        if value:
            raise ReplayError(name, f"it does not apply to {what}", "omit it, or give --kind")


def _options(
    captures: list[Path],
    job_file: Path | None,
    out: Path | None,
    through_switch: bool,
    records: list[Path] | None,
    no_records: bool,
    checkpoint: list[Path] | None,
    compare: Path | None,
) -> ReplayOptions:
    from replay.run import ReplayOptions

    job_file = job_file or job_beside(captures)
    job = load_job(job_file) if job_file is not None else None
    logs: tuple[Path, ...] = ()
    if records and no_records:
        raise ReplayError("--records and --no-records", "they exclude each other", "give one of them")
    if not no_records:
        logs = tuple(records) if records else records_beside(captures) if job is not None else ()
    if through_switch and job is None:
        raise ReplayError("--through-switch", "the switch's tables follow from the job", "give the job file (--job)")
    return ReplayOptions(job, logs, tuple(checkpoint or ()), out, compare, through_switch=through_switch)


def _tcp(captures: list[Path], options: ReplayOptions, progress: ProgressCallback, *, as_json: bool) -> bool:
    import torch

    from replay.run import replay

    torch.set_num_threads(1)  # like ranks and shadow nodes
    report = replay(captures, options, progress)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        show_replay(report, Console())
    return report.complete


def _gloo(
    captures: list[Path],
    trainer: Path | None,
    checkpoints: list[Path] | None,
    out: Path | None,
    unfinished_checksums: bool,
    progress: ProgressCallback,
    *,
    as_json: bool,
) -> bool:
    import torch

    from jobspec.trainer import load_trainer
    from replay.gloo import GlooOptions, replay_gloo

    torch.set_num_threads(1)  # like the ranks, for bit-identical kernels
    if checkpoints and len(checkpoints) > 1:
        raise ReplayError("--checkpoint", "a job starts from one checkpoint", "give one")
    declared = load_trainer(trainer) if trainer is not None else None
    start = checkpoints[0] if checkpoints else None
    report = replay_gloo(captures, GlooOptions(declared, start, out, unfinished_checksums), progress)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        show_gloo(report, Console())
    return report.complete


def _rdma(
    captures: list[Path],
    job_file: Path | None,
    out: Path | None,
    use_p2p: bool,
    dtype: str | None,
    through_switch: bool,
    progress: ProgressCallback,
    *,
    as_json: bool,
) -> bool:
    from replay.rdma import replay_rdma, write_tensors

    if len(captures) != 1:
        raise ReplayError("CAPTURE", "RoCEv2 captures are decoded one at a time", "merge them: mergecap -w NEW FILE...")
    job = None
    if through_switch:
        if job_file is None:
            problem = "the switch's tables follow from the job"
            raise ReplayError("--through-switch", problem, "give the job file (--job)")
        job = load_job(job_file)
    report = replay_rdma(captures[0], use_p2p=use_p2p, dtype=dtype, job=job, progress=progress)
    if out is not None:
        write_tensors(out, report)
    if as_json:
        print(json.dumps(report.decoded.to_json(), indent=2))
        if report.problem is not None:
            Console(stderr=True).print(f"error: {report.problem}", highlight=False, markup=False, soft_wrap=True)
    else:
        show_rdma(report, Console())
    return report.complete


@contextmanager
def _bar(console: Console) -> Iterator[ProgressCallback]:
    """Show how many bytes were read, if there is a terminal."""
    text = TextColumn("{task.description:<16}")
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show
