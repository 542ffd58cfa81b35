"""Tables of `checkmate status`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from checkmate_common.sidechannel import side_channel_pb2 as pb
from topology.report.findings import bytes_text

SHOWN_GAPS = 8
"""Most gaps that are shown; ``--json`` has all that the shadow node reports."""
SHOWN_FLOWS = 16
"""Most flows that are shown: those that lack the most bytes."""


def status_view(node: pb.NodeStatus, address: str | None) -> RenderableType:
    """Return tables of a node's groups."""
    where = f" at {address}" if address is not None else ""
    head = f"shadow node [bold]{escape(node.shadow)}[/]{escape(where)}, job {escape(node.job)}"
    parts: list[RenderableType] = [f"{head}, version {escape(node.version)}"]
    for part in node.parts:
        if part.trouble or part.lost:
            lost = f"{part.lost} lost" if part.lost else ""
            parts.append(f"[red]{escape(part.name)}[/]: {escape('; '.join(filter(None, (part.trouble, lost))))}")
    for status in node.groups:
        parts += ["", *_group(status)]
    return Group(*parts)


def _group(status: pb.Status) -> Iterable[RenderableType]:
    yield _steps(status)
    if status.coverage:
        yield _coverage(status)
    yield _use(status)
    if status.gaps:
        yield _gaps(status)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in columns:
        justify: Literal["left", "right"] = "right" if name.startswith(">") else "left"
        table.add_column(name.lstrip(">"), justify=justify, overflow="fold", no_wrap=name.startswith(">"))
    return table


def _steps(status: pb.Status) -> Table:
    epoch = f"epoch {status.epoch}" if status.epoch else "not attached yet"
    table = _table(
        f"Group {escape(status.group)}, {epoch}", "step", ">number", ">steps behind", ">seconds", ">bytes", "why"
    )
    table.add_row("trained", str(status.trained_step), "", "", "", "")
    for name, step, lag in (
        ("replica", status.replica_step, status.replica_lag),
        ("durable", status.durable_step, status.durable_lag),
    ):
        if not lag.steps:
            confirmed = name == "replica" and ", ".join(status.confirmed)
            table.add_row(name, str(step), "[green]0[/]", "", "", f"digests agree: {confirmed}" if confirmed else "")
            continue
        why = f"[yellow]{escape(lag.reason)}[/]: {escape(lag.detail)}" if lag.reason else ""
        table.add_row(name, str(step), f"[yellow]{lag.steps}[/]", f"{lag.seconds:.2f}", bytes_text(lag.bytes), why)
    return table


def _coverage(status: pb.Status) -> Table:
    flows = sorted(status.coverage, key=lambda flow: flow.primary_bytes - flow.primary_expected_bytes)
    left = f", {SHOWN_FLOWS} of {len(flows)} flows (--json has all)" if len(flows) > SHOWN_FLOWS else ""
    title = f"Received of step {status.collecting_step}{left}"
    again = any(flow.redundant_expected_bytes for flow in flows)
    table = _table(title, ">flow", ">primary", *([">redundant"] if again else []))
    for flow in flows[:SHOWN_FLOWS]:
        cells = [str(flow.flow_id), _share(flow.primary_bytes, flow.primary_expected_bytes)]
        if again:
            cells.append(_share(flow.redundant_bytes, flow.redundant_expected_bytes))
        table.add_row(*cells)
    return table


def _share(count: int, expected: int) -> str:
    if not expected:
        return "-"
    return f"{bytes_text(count)} of {bytes_text(expected)} ({100 * count // expected} %)"


def _use(status: pb.Status) -> Table:
    buffers, load, totals = status.buffers, status.load, status.totals
    used = buffers.collecting_bytes + buffers.state_bytes + buffers.queued_bytes + buffers.log_bytes
    stride = (
        f"; storage is slow: one in {buffers.store_stride} is certain to be stored" if buffers.store_stride > 1 else ""
    )
    table = Table(show_header=False)
    table.add_row("memory", f"{bytes_text(used)} of {bytes_text(buffers.memory_limit_bytes)}")
    table.add_row(
        "buffers",
        f"{buffers.slots_used} of {buffers.slots} steps being collected, {buffers.held} of {buffers.hold} recovery "
        f"points held, {buffers.queued} of {buffers.queue_limit} waiting for storage{stride}",
    )
    table.add_row("load", _load(load))
    table.add_row(
        "counts",
        f"{totals.replicated_steps} steps replicated, {totals.stored_steps} stored, {totals.resyncs} resyncs; "
        f"{bytes_text(totals.repaired_bytes)} repaired by redundant hops, {bytes_text(totals.peer_bytes)} by peers",
    )
    for name, counts in (
        ("lost steps", totals.lost_steps),
        ("not stored", totals.unstored_steps),
        ("not placed", status.discarded),
    ):
        if counts:
            table.add_row(name, _counts(counts))
    if status.state_wanted:
        table.add_row("requests", f"the trainer's state after step {status.state_from} or a later one")
    return table


def _load(load: pb.Load) -> str:
    if not load.step_seconds:
        return "unknown yet"
    text = (
        f"a step every {load.step_seconds:.3g} s takes {load.apply_seconds:.3g} s to apply, "
        f"{load.store_seconds:.3g} s to store"
    )
    return f"{text}; [red]overloaded, {load.nodes_needed} nodes would be enough[/]" if load.overloaded else text


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {escape(name)}" for name, count in sorted(counts.items()))


def _gaps(status: pb.Status) -> Table:
    more = f", newest {SHOWN_GAPS} of {len(status.gaps)}" if len(status.gaps) > SHOWN_GAPS else ""
    table = _table(f"Gaps{more}", ">step", "reason", "detail")
    for gap in list(status.gaps)[:SHOWN_GAPS]:
        table.add_row(str(gap.step), escape(gap.reason), escape(gap.detail))
    return table
