"""Output of `checkmate replay`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from packets.compiled import notice
from replay.results import ReplayReport, StepResult

if TYPE_CHECKING:
    from replay.rdma import RdmaReport

SHOWN_HOLES = 3
"""Most holes of a step that are printed; ``--json`` has more."""
SHOWN_LINES = 15
"""Most lines of one kind that are printed."""
DIGITS = 8
"""Hexadecimal digits shown of a digest."""


def show_replay(report: ReplayReport, console: Console) -> None:
    """Print the result for our own traffic."""
    streams = grid("Streams", "group", "#epoch", "#rank", "#channel", "from", "to", "kind", "start")
    for stream in report.streams:
        known = (stream.epoch, stream.rank, stream.channel)
        numbers = ("-" if number is None else str(number) for number in known)
        sync = "nothing" if stream.problem is not None else "SYN" if stream.sync == "syn" else "headers"
        streams.add_row(stream.group or "-", *numbers, stream.source, stream.destination, stream.kind, sync)
    console.print(streams)
    steps = grid("Steps", "group", "#epoch", "#step", "complete", "#bytes", "crc", "gradient", "recovery point")
    for step in report.steps:
        complete = "[green]yes[/]" if step.complete else "[red]no[/]"
        count = str(step.bytes) if step.complete else f"{step.bytes} of {step.gradient_bytes}"
        crc = step.crc if step.crc == "ok" else f"{step.crc} {step.frames - step.frames_proven} of {step.frames}"
        names = (step.group, str(step.epoch), str(step.step))
        steps.add_row(*names, complete, count, crc, (step.sha256 or "-")[:DIGITS], escape(_recovery_point_text(step)))
    console.print(steps)
    trouble = [line for step in report.steps for line in _problems(step)]
    for line in trouble[:SHOWN_LINES]:
        print_line(console, line)
    if len(trouble) > SHOWN_LINES:
        print_line(console, f"... and {len(trouble) - SHOWN_LINES} lines like these (--json has all)")
    for absent in report.absent:
        where = f"{absent.group} epoch {absent.epoch}"
        print_line(console, f"{where}: steps {absent.first} to {absent.last} are not in the captures")
    others = {**report.other, **{f"not used: {cause}": count for cause, count in report.discarded.items()}}
    if others:
        print_line(console, "other packets: " + ", ".join(f"{count} {name}" for name, count in others.items()))
    for name, number in report.oddities.items():
        print_line(console, f"note: {number} {name}")
    if (slow := notice()) is not None:
        print_line(console, f"note: {slow}")
    for problem in report.problems[:SHOWN_LINES]:
        print_line(console, f"problem: {problem}")
    if len(report.problems) > SHOWN_LINES:
        print_line(console, f"... and {len(report.problems) - SHOWN_LINES} more problems (--json has all)")
    done = sum(step.complete for step in report.steps)
    applied = sum(step.applied for step in report.steps)
    text = f"{done} of {len(report.steps)} steps complete, {applied} recovery points"
    compared = [step.compared for step in report.steps if step.compared is not None]
    if compared:
        text += f", {sum(compared)} of {len(compared)} equal to the run's"
    print_line(console, text)


def _recovery_point_text(step: StepResult) -> str:
    if not step.applied:
        return str(step.reason) if step.reason is not None else "-"
    text = (step.state_sha256 or "")[:DIGITS]
    if step.parameter_digest is not None:
        text += " = ranks'"
    if step.compared is not None:
        text += " = run's" if step.compared else " NOT the run's"
    return text


def _problems(step: StepResult) -> Iterator[str]:
    where = f"{step.group} epoch {step.epoch} step {step.step}"
    for hole in step.holes[:SHOWN_HOLES]:
        yield f"{where}: {hole.cause}: {hole}" + ("" if hole.captured else " (flow not captured)")
    if len(step.holes) > SHOWN_HOLES:
        yield f"{where}: ... {step.missing_bytes} bytes in all"
    for conflict in step.conflict_details[:SHOWN_HOLES]:
        yield f"{where}: copies differ: {conflict}"
    if step.complete and step.reason is not None:
        yield f"{where}: {step.reason}: {step.detail}"
    if step.compare_problem is not None:
        yield f"{where}: nothing to compare with: {step.compare_problem}"


def show_rdma(report: RdmaReport, console: Console) -> None:
    """Print the result for a RoCEv2 capture."""
    decoded = report.decoded
    title = f"All-reduces in {escape(decoded.file)}"
    table = grid(
        title, "#index", "#ranks", "#channels", "protocol", "dtype", "#elements", "#covered", "complete", "sha256"
    )
    for item in decoded.to_json()["all_reduces"]:
        complete = "[green]yes[/]" if item["complete"] else "[red]no[/]"
        table.add_row(
            str(item["index"]), str(item["ranks"]), str(item["channels"]), item["protocol"], item["dtype"] or "-",
            str(item["elements"]), str(item["covered"]), complete, (item["sha256"] or "-")[:DIGITS],
        )  # fmt: skip
    console.print(table)
    for item in decoded.to_json()["all_reduces"]:
        ranges = item["missing_elements"]
        if ranges:
            some = ", ".join(f"[{start}, {stop})" for start, stop in ranges[:SHOWN_HOLES])
            print_line(console, f"all-reduce {item['index']}: {len(ranges)} ranges missing: {some}")
        for lost in item["missing_psn"][:SHOWN_HOLES]:
            text = (
                f"all-reduce {item['index']}: queue pair {lost['dest_qp']} lost PSN {lost['first']} to {lost['last']}"
            )
            print_line(console, text)
    for message in decoded.p2p:
        where = f"all-reduce {message.all_reduce}" if message.all_reduce is not None else "no all-reduce"
        print_line(
            console, f"p2p message of {message.bytes} bytes to queue pair {message.dest_qp}: {message.outcome}, {where}"
        )
    for note in decoded.notes:
        print_line(console, note)
    others = ", ".join(f"{count} {name}" for name, count in decoded.other.items()) or "none"
    print_line(console, f"{decoded.packets} packets, {decoded.rocev2_packets} of RoCEv2; others: {others}")
    if report.problem is not None:
        print_line(console, f"problem: {report.problem}")


def grid(title: str, *columns: str) -> Table:
    """Return a table with these columns; the prefix ``#`` marks columns of numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name.removeprefix("#"), justify="right" if name.startswith("#") else "left", no_wrap=True)
    return table


def print_line(console: Console, text: str) -> None:
    """Print a line without markup or wrapping."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
