"""A run's result as a self-contained HTML page: no scripts, no network access, light and dark, printable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree.ElementTree import Element

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from checkmate_common.files.private_files import write_private
from topology.report.diagram import render_topology
from topology.report.diagram_parts import group_class
from topology.report.diagram_switches import render_switches
from topology.report.findings import (
    VIRTUAL_TIME_FABRIC,
    Gap,
    by_track,
    bytes_text,
    checks,
    duration_text,
    gaps,
    is_gap,
    is_wrong,
    lag_seconds,
    loss_text,
    milliseconds_text,
    replication_factor,
    rows_to_show,
    track_columns,
)
from topology.report.meanings import counter_meaning
from topology.report.plots import plots
from topology.report.svg import printable, to_text
from topology.results import Iteration, RunResult

TEMPLATES = Path(__file__).resolve().parent / "templates"
MAX_ROWS = 2000
"""Longer runs list their first and last `EDGE_ROWS` steps and every step that is not verified."""
EDGE_ROWS = 500
SCROLL_ROWS = 60
"""Tables with more rows scroll within the page, and are printed without verified rows in the middle."""
PRINTED_EDGE_ROWS = 10
TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Figure:
    """A key figure."""

    label: str
    """Name of the figure."""
    value: str
    """The value with its unit."""
    text: str
    """Explanation."""
    state: str = ""
    """``good``, ``bad`` or empty."""


def render_report(result: RunResult) -> str:
    """Return the page; equal results give equal pages."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_clean,
    )
    environment.filters |= {"loss": loss_text, "svg": _markup}
    return environment.get_template("report.html.j2").render(_context(result))


def write_report(result: RunResult, path: Path | str) -> None:
    """Write the page to `path` in UTF-8.

    Raises:
        OSError: `path` cannot be written.
    """
    write_private(Path(path), render_report(result))


def _markup(image: Element) -> Markup:
    return Markup(to_text(image))


def _clean(value: Any) -> Any:
    # Applied to every value that a template prints; markup comes only from the templates and SVG.
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _context(result: RunResult) -> dict[str, Any]:
    found = gaps(result.iterations)
    return {
        "result": result,
        "job": result.job,
        "ranks": result.ranks,
        "columns": track_columns(result.iterations),
        "group_class": group_class,
        "checks": checks(result),
        "figures": _figures(result),
        "topology": (render_topology if len(result.job.switches) == 1 else render_switches)(result.job, result.switch),
        "plots": plots(result),
        "rows": _rows(result.iterations),
        "restart_rows": _rows(result.restart.iterations),
        "losses": {(i.group, i.step): loss_text(i.loss) for i in result.iterations},
        "long": len(result.iterations) > SCROLL_ROWS,
        "restart_long": len(result.restart.iterations) > SCROLL_ROWS,
        "gaps": _by_reason(found),
        "gap_steps": sum(gap.last - gap.first + 1 for gap in found),
        "restart_gaps": gaps(result.restart.iterations),
        "wrong": [i for i in (*result.iterations, *result.restart.iterations) if is_wrong(i)],
        "counters": [(name, count, counter_meaning(name)) for name, count in result.switch_counters.items()],
        # Line by line, because `_clean` replaces line breaks.
        "config": yaml.safe_dump(
            result.job.model_dump(mode="json"), sort_keys=False, default_flow_style=None, width=110
        ).splitlines(),
    }


def _by_reason(found: Iterable[Gap]) -> list[tuple[str, str, int, list[Gap]]]:
    """Return (reason, meaning, number of steps, gaps) in order of first appearance."""
    groups: dict[str, list[Gap]] = {}
    for gap in found:
        groups.setdefault(gap.reason, []).append(gap)
    return [
        (reason, group[0].meaning, sum(gap.last - gap.first + 1 for gap in group), group)
        for reason, group in groups.items()
    ]


@dataclass(frozen=True)
class _Row:
    """A table row: an iteration, or the number of verified ones left out."""

    iteration: Iteration | None
    left_out: int = 0
    lag: str = ""
    state: str = ""
    """CSS classes: ``gap``, ``wrong``, ``middle`` (not printed in long tables)."""


def _rows(iterations: tuple[Iteration, ...]) -> list[_Row]:
    rows: list[_Row] = []
    printed = range(PRINTED_EDGE_ROWS, len(iterations) - PRINTED_EDGE_ROWS)
    middle = {id(iterations[i]) for i in printed if iterations[i].verified} if len(iterations) > SCROLL_ROWS else set()
    for row in rows_to_show(iterations, MAX_ROWS, EDGE_ROWS):
        if isinstance(row, int):
            rows.append(_Row(None, left_out=row))
            continue
        lag = lag_seconds(row)
        state = "wrong" if is_wrong(row) else "gap" if is_gap(row) else "fine"
        if id(row) in middle:
            state += " middle"
        rows.append(_Row(row, lag="" if lag is None else f"{lag * 1e3:,.2f}", state=state))
    return rows


def _figures(result: RunResult) -> list[Figure]:
    steps, restart = len(result.iterations), result.restart
    wrong = sum(is_wrong(i) for i in (*result.iterations, *restart.iterations))
    figures = [
        Figure(
            "Iterations verified", f"{result.verified} / {steps}",
            "Steps after which all parameters and optimizer tensors equal the trainer's bit for bit. "
            + (f"{wrong} published and NOT equal." if wrong else "No wrong checkpoint was published."),
            "good" if result.verified == steps and not wrong else "bad",
        ),
        Figure(
            f"Restart from step {restart.from_step}" if restart.from_step else "Restart",
            "identical" if restart.identical else "NOT identical" if restart.from_step else "not possible",
            "A new trainer, built from the shadow's checkpoint alone, ended byte for byte as the first did."
            if restart.identical else restart.difference or "The final states differ.",
            "good" if restart.identical else "bad",
        ),
        _replication(result),
        Figure(
            "Ranks", "byte-equal" if result.ranks_equal else "NOT equal",
            (f"All {result.ranks} ranks " if len(result.job.groups) == 1 else "The ranks of each group ")
            + ("held" if result.ranks_equal else "should have held")
            + " equal state after every step.",
            "good" if result.ranks_equal else "bad",
        ),
    ]  # fmt: skip
    lags = [lag for i in result.iterations if (lag := lag_seconds(i)) is not None]
    virtual = " (virtual time)" if result.fabric == VIRTUAL_TIME_FABRIC else ""
    if lags:
        figures.append(
            Figure("Lag of the recovery point", milliseconds_text(median(lags)),
                   "Median time from a step's end on the slowest rank to its recovery point; "
                   f"at most {milliseconds_text(max(lags))}{virtual}.")
        )  # fmt: skip
    newest = min(
        (max((i.step for i in rows if i.applied), default=0) for rows in by_track(result.iterations).values()),
        default=0,
    )
    trained = max((i.step for i in result.iterations), default=0)
    figures.append(
        Figure("Newest step trained / recoverable", f"{trained} / {newest}",
               "What the ranks had reached, and the newest recovery point, when the run ended.")
    )  # fmt: skip
    if result.accuracy is not None:
        figures.append(
            Figure(
                "Accuracy",
                f"{result.accuracy:.1%}",
                "Share of the data set that the final model classifies rightly.",
            )
        )
    figures.append(
        Figure("Wall time", duration_text(result.wall_seconds), "Training, restart and comparison together.")
    )
    return figures


def _replication(result: RunResult) -> Figure:
    factor, ranks = replication_factor(result), len(result.job.groups[0].ring)
    once = result.gradient_bytes + result.header_bytes
    several = len(track_columns(result.iterations)) > 0
    gradient = f"one gradient ({bytes_text(result.gradient_bytes)})"
    headers = f"its frame headers ({bytes_text(result.header_bytes)})"
    if factor is None:
        text = f"No step was complete; it would have been {gradient} and {headers}, {once:,} bytes."
    else:
        text = (
            f"of {gradient} and {headers}, {once:,} bytes. Once is the aim: hop 0 carries each reduced byte "
            f"once. A copy from every rank would be {ranks}.00{TIMES}."
        )
    if several:
        text = text[:-1] + ", counted for each group at each of its shadow nodes."
    hops = len(result.job.redundancy.hops)
    if hops > 1:
        repaired = sum(i.repaired_bytes for i in result.iterations)
        steps = len({(i.group, i.shadow, i.step) for i in result.iterations if i.repaired_bytes})
        text += (
            f" {hops} hops were replicated, for {hops} times the bytes on the wire; of what was placed, "
            f"{repaired:,} repaired bytes in {steps} steps came only from a redundant one."
        )
    odd = any(i.complete and i.replica_payload_bytes != result.single_copy_bytes(i.group) for i in result.iterations)
    return Figure(
        "Replica bytes per complete step",
        "none" if factor is None else f"{factor:.2f}{TIMES}",
        text,
        "bad" if odd or factor is None else "good",
    )
