"""The report's plots: the three steps over time; loss, bytes, lag in time and in steps over training steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from xml.etree.ElementTree import Element

from topology.report.charts import Chart, Series, render_chart
from topology.report.diagram_parts import colour_class
from topology.report.findings import (
    VIRTUAL_TIME_FABRIC,
    by_track,
    byte_unit,
    bytes_text,
    combined,
    is_gap,
    lag_seconds,
    lag_steps,
    loss_text,
    merged_ranges,
    milliseconds_text,
    step_ranges,
)
from topology.report.svg import Point
from topology.report.timeline import timeline
from topology.results import Iteration, RunResult

LARGEST_DRAWN = 1e300
"""Larger values and NaN are not drawn but named below the plot."""


@dataclass(frozen=True)
class Plot:
    """A plot with the texts around it."""

    title: str
    """Heading."""
    text: str
    """What it shows and how to read it."""
    image: Element
    """The SVG."""
    legend: tuple[tuple[str, str, str], ...]
    """(kind of line, colour class, name) of each curve."""


def plots(result: RunResult) -> tuple[Plot, ...]:
    """Return the plots of a run; none for one without iterations."""
    if not result.iterations:
        return ()
    wanted = sum(result.single_copy_bytes(group) for group, _ in by_track(result.iterations))
    together = replace(result, iterations=tuple(combined(result.iterations)))
    return (_progress(together), _loss(result), _bytes(together, wanted), _lag_time(together), _lag_steps(together))


def _drawable(points: Iterable[Point]) -> tuple[Point, ...]:
    return tuple((step, value) for step, value in points if math.isfinite(value) and abs(value) < LARGEST_DRAWN)


def _plot(title: str, text: str, chart: Chart) -> Plot:
    return Plot(title, text, render_chart(chart), tuple((s.kind, s.colour, s.label) for s in chart.series if s.points))


def _span(result: RunResult) -> tuple[int, int]:
    return result.iterations[0].step, result.iterations[-1].step


def _missing(iterations: Iterable[Iteration]) -> tuple[tuple[tuple[int, int], ...], dict[int, str]]:
    """Return the ranges of steps without a recovery point, and a note for each step."""
    missing = [i for i in iterations if is_gap(i)]
    return merged_ranges((i.step, i.step) for i in missing), {
        i.step: f"no recovery point ({i.reason or 'no reason given'})" for i in missing
    }


def _progress(result: RunResult) -> Plot:
    """Plot trained, replica and durable step over time, and the times at which a step was missing."""
    shown = timeline(result.iterations)
    last = shown.slots - 1
    ends = [f"{name} {int(points[-1][1])}" for name, points in shown.curves.items()]
    chart = Chart(
        name="plot-progress",
        title="Trained, replica and durable step over time",
        description=f"Area chart. At the end: {', '.join(ends)}. {len(shown.lost)} steps have no recovery point.",
        y_label="newest step",
        steps=(0, last),
        series=(
            Series("trained", "c-wire", "area", shown.curves["trained"]),
            Series("replica", "c-replica", "area", shown.curves["replica"]),
            Series("durable", "c-tagged", "outline", shown.curves["durable"]),
        ),
        format_value=lambda value: f"{value:,.0f}",
        gaps=shown.missing,
        notes=shown.notes,
        whole=True,
        x_label=f"{shown.unit} since training began",
        x_unit=shown.unit,
        x_scale=shown.width,
    )
    text = (
        "Newest step that was trained, that is a recovery point, and that is on storage, at every moment; the later "
        "ones are never above the earlier. What the area of the first shows beside the second is the lag. "
    )
    text += (
        "Hatched where a step had been lost and no newer one was a recovery point yet; the reason is in the hover text."
        if shown.lost
        else "No step was lost."
    )
    plot = _plot("Steps over time", text, chart)
    reasons = {reason: [step for step, why in shown.lost.items() if why == reason] for reason in shown.lost.values()}
    for reason, steps in reasons.items():
        plot = replace(plot, legend=(*plot.legend, ("hatched", "", f"{reason}: step {step_ranges(steps)}")))
    return plot


def _losses(iterations: Iterable[Iteration], group: str) -> tuple[Point, ...]:
    """Return the loss of each step of `group`, once however many shadow nodes follow it."""
    return _drawable({i.step: i.loss for i in iterations if i.group == group}.items())


def _loss(result: RunResult) -> Plot:
    groups = list(dict.fromkeys(i.group for i in result.iterations))
    series, ends, odd = [], [], []
    text = "Mean loss over the ranks' shares of the batch."
    if result.restart.iterations:
        text += " Where the restarted run's band lies under the line, both runs saw the same loss."
    for index, group in enumerate(groups):
        again, run = (_losses(rows, group) for rows in (result.restart.iterations, result.iterations))
        of = f" of {group}" if len(groups) > 1 else ""
        series.append(Series(f"restarted run{of}", "c-restart", "band", again))
        series.append(Series(f"uninterrupted run{of}", f"c-loss{colour_class(index)}", "line", run))
        drawn = {step for step, _ in run}
        odd += [i.step for i in result.iterations if i.group == group and i.step not in drawn]
        if run:
            of = f"{group}: from" if of else "From"
            ends.append(
                f"{of} {loss_text(run[0][1])} at step {run[0][0]} to {loss_text(run[-1][1])} at step {run[-1][0]}."
            )
    if odd:
        text += f" Not a finite number at step {step_ranges(sorted(set(odd)))}."
    chart = Chart(
        name="plot-loss",
        title="Loss per training step",
        description=f"Line chart. {' '.join(ends)}",
        y_label="loss",
        steps=_span(result),
        series=tuple(series),
        format_value=loss_text,
    )
    return _plot("Loss", text, chart)


def _bytes(result: RunResult, wanted: int) -> Plot:
    """Plot the bytes of each step; `wanted` is what all shadow nodes together should get."""
    wire, tagged, replica = (
        tuple((i.step, float(getattr(i, name))) for i in result.iterations)
        for name in ("wire_bytes", "tagged_payload_bytes", "replica_payload_bytes")
    )
    once = result.gradient_bytes + result.header_bytes
    unit, name = byte_unit(max(wanted, *(value for _, value in (*wire, *tagged, *replica))))
    ranges, notes = _missing(result.iterations)
    chart = Chart(
        name="plot-bytes",
        title="Bytes per training step",
        description="Area chart of the bytes that the ranks sent, of the tagged and of the replica payload. "
        f"One gradient with its frame headers is {once:,} bytes.",
        y_label=f"{name} per step",
        steps=_span(result),
        series=(
            Series("on the wire, all ranks", "c-wire", "area", wire),
            Series("replica payload", "c-replica", "area", replica),
            Series("tagged payload", "c-tagged", "outline", tagged),
        ),
        format_value=lambda value: f"{value:,.0f} bytes",
        y_unit=unit,
        gaps=ranges,
        notes=notes,
        reference=wanted,
    )
    text = (
        "Everything that the ranks sent (headers, acknowledgements and retransmissions included), the "
        "payload that they tagged for replication, and what reached the shadow. "
        + ("The last two should coincide." if wanted == once else
           f"As several shadow nodes get the same bytes, that is {wanted / once:.2g} times the tagged payload.")
    )  # fmt: skip
    plot = _plot("Bytes", text, chart)
    what = "one gradient + headers" if wanted == once else "one gradient + headers for each shadow node"
    return replace(plot, legend=(*plot.legend, ("reference", "", f"{what} ({bytes_text(wanted)})")))


def _lag_time(result: RunResult) -> Plot:
    lags = [(i.step, lag) for i in result.iterations if (lag := lag_seconds(i)) is not None]
    points = _drawable((step, lag * 1e3) for step, lag in lags)
    ranges, notes = _missing(result.iterations)
    most = f"At most {milliseconds_text(max(lag for _, lag in lags))}." if points else "No step was published."
    chart = Chart(
        name="plot-lag",
        title="Lag of the recovery point in milliseconds",
        description=f"Line chart. {most} {len(notes)} steps have no recovery point.",
        y_label="ms behind the slowest rank",
        steps=_span(result),
        series=(Series("published after trained", "c-lag", "line", points),),
        format_value=lambda value: f"{value:,.3f} ms",
        gaps=ranges,
        notes=notes,
    )
    text = "Time from the moment the slowest rank finished a step until its recovery point was published."
    if any(value < 0 for _, value in points):
        text += " Below zero the shadow was first: it needs hop 0 only, the ranks also the later hops."
    if result.fabric == VIRTUAL_TIME_FABRIC:
        text += " In this fabric time is virtual: frames on links take some, computing takes none."
    return _plot("Lag in time", text, chart)


def _lag_steps(result: RunResult) -> Plot:
    behind = lag_steps(result.iterations)
    ranges, notes = _missing(result.iterations)
    chart = Chart(
        name="plot-steps",
        title="Lag of the recovery point in steps",
        description=f"Area chart. At most {max(steps for _, steps in behind)} steps to train again.",
        y_label="steps to train again",
        steps=_span(result),
        series=(Series("steps lost by a failure now", "c-steps", "area", tuple((s, float(v)) for s, v in behind)),),
        format_value=lambda value: f"{value:,.0f}",
        gaps=ranges,
        notes=notes,
        y_reach=4,
        whole=True,
    )
    text = (
        "Work at risk: how many steps would have to be trained again if all ranks failed the moment a step "
        "is finished. At most one is normal, as the step's own recovery point is just being made."
    )
    return _plot("Lag in steps", text, chart)
