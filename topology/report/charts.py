"""Charts as SVG: curves, areas, axes with ticks, hatched gaps, values on hover. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Literal
from xml.etree.ElementTree import Element

from topology.report.svg import Point, drawing, lines, path, svg, thin_out, tick_text, ticks

WIDTH, HEIGHT = 560.0, 276.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 22.0, 30.0, 46.0
MAX_POINTS = 720
"""Most points of a curve, more than pixels can show; longer ones are thinned out."""
MAX_DOTS = 60
"""Curves of up to this many points have a dot at each."""
MAX_HOVERS = 240
"""Most columns with hover text; in longer runs a column covers several steps."""


@dataclass(frozen=True)
class Series:
    """A curve."""

    label: str
    """Name in legend and hover text."""
    colour: str
    """CSS class that sets its colour."""
    kind: Literal["line", "band", "area", "outline"]
    """A line with dots; a wide pale line drawn under another; a filled stepped area; the dashed outline of one."""
    points: tuple[Point, ...]
    """(step, value) in rising order of steps, which may have gaps."""


@dataclass(frozen=True)
class Chart:
    """A chart to draw."""

    name: str
    """Id, unique within the page."""
    title: str
    """What the chart shows."""
    description: str
    """Text alternative with the main numbers."""
    y_label: str
    """Quantity and unit of the vertical axis."""
    steps: tuple[int, int]
    """First and last step of the horizontal axis."""
    series: tuple[Series, ...]
    """The curves, lowest first; areas are always drawn below lines."""
    format_value: Callable[[float], str]
    """Value -> hover text."""
    y_unit: float = 1.0
    """Value of one unit of the vertical axis: 1000 if values are bytes and the axis is in kB."""
    gaps: Sequence[tuple[int, int]] = ()
    """(first, last) ranges of steps without a recovery point."""
    notes: Mapping[int, str] = field(default_factory=dict)
    """Step -> text added to its hover text."""
    reference: float | None = None
    """Value of a dotted line to compare with, None for no line."""
    y_reach: float = 0.0
    """Value that the vertical axis reaches at least, so that small values do not fill the frame."""
    whole: bool = False
    """Whether values are whole numbers."""
    x_label: str = "training step"
    """Quantity of the horizontal axis."""
    x_unit: str = "step"
    """Unit of the horizontal axis in hover texts; put before notes only if it is ``step``."""
    x_scale: float = 1.0
    """Value on the horizontal axis of one step of `steps`."""


class _Frame:
    """Maps steps and values to pixels."""

    def __init__(self, chart: Chart) -> None:
        values = [value / chart.y_unit for series in chart.series for _, value in series.points]
        if chart.reference is not None:
            values.append(chart.reference / chart.y_unit)
        # Zero is always there: areas begin at it, and a small change must not look like a large one.
        self.y_ticks = ticks(min([0.0, *values]), max([chart.y_reach / chart.y_unit, *values]), whole=chart.whole)
        self.first, self.last = chart.steps
        self.low, self.high = self.y_ticks[0], self.y_ticks[-1]
        self.unit = chart.y_unit
        self.step_width = (WIDTH - LEFT - RIGHT) / (self.last - self.first + 1)

    def x(self, step: float) -> float:
        return LEFT + (step - self.first + 0.5) * self.step_width

    def y(self, value: float) -> float:
        return self.y_of_tick(value / self.unit)

    def y_of_tick(self, tick: float) -> float:
        return HEIGHT - BOTTOM - (tick - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def render_chart(chart: Chart) -> Element:
    """Return the chart as an SVG element; one without points says so instead of showing an empty frame."""
    frame = _Frame(chart)
    parts = [_hatch(chart.name), *_axes(chart, frame)]
    # Gaps lie over the areas, which would hide them, and under the lines.
    parts += [part for series in chart.series if series.kind == "area" for part in _curve(series, frame)]
    parts += _gaps(chart, frame)
    parts += [part for series in chart.series if series.kind != "area" for part in _curve(series, frame)]
    if chart.reference is not None:
        y = frame.y(chart.reference)
        parts.append(svg("path", d=path("M", LEFT, y, "H", WIDTH - RIGHT), class_="reference"))
    if not any(series.points for series in chart.series):
        parts.append(svg("text", "no values", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT / 2, class_="empty"))
    parts.append(svg("g", *_hovers(chart, frame), class_="hovers"))
    return drawing(chart.name, chart.title, chart.description, WIDTH, HEIGHT, *parts)


def _hatch(name: str) -> Element:
    # Hatching, not colour alone, marks a gap: it survives greyscale printing and colour blindness.
    stroke = svg("path", d="M0 6 L6 0 M-1 1 L1 -1 M5 7 L7 5", class_="hatch")
    pattern = svg("pattern", stroke, id=f"{name}-hatch", width=6, height=6, patternUnits="userSpaceOnUse")
    return svg("defs", pattern)


def _axes(chart: Chart, frame: _Frame) -> list[Element]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    spacing = frame.y_ticks[1] - frame.y_ticks[0]
    for tick in frame.y_ticks:
        y = frame.y_of_tick(tick)
        parts.append(svg("line", x1=LEFT, x2=right, y1=y, y2=y, class_="axis" if tick == 0 else "grid"))
        parts.append(svg("text", tick_text(tick, spacing), x=LEFT - 8, y=y + 4, text_anchor="end"))
    low, high = frame.first * chart.x_scale, frame.last * chart.x_scale
    x_ticks = ticks(low, high, 8, whole=chart.x_scale == 1) if high > low else [low]
    spacing = x_ticks[1] - x_ticks[0] if len(x_ticks) > 1 else 1
    for tick in x_ticks:
        if low <= tick <= high:
            x = frame.x(tick / chart.x_scale)
            parts.append(svg("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
            parts.append(svg("text", tick_text(tick, spacing), x=x, y=bottom + 17, text_anchor="middle"))
    parts.append(svg("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(svg("text", chart.y_label, x=8, y=16, class_="label"))
    parts.append(svg("text", chart.x_label, x=(LEFT + right) / 2, y=HEIGHT - 8, text_anchor="middle", class_="label"))
    return parts


def _gaps(chart: Chart, frame: _Frame) -> list[Element]:
    boxes = []
    for first, last in chart.gaps:
        # At least a pixel and a half, so that one lost step in a thousand is visible.
        width = max(1.5, (last - first + 1) * frame.step_width)
        left = frame.x(first) - frame.step_width / 2
        boxes.append(path("M", left, TOP, "h", width, "V", HEIGHT - BOTTOM, "h", -width, "Z"))
    if not boxes:
        return []
    # Two paths for all gaps keep a run with thousands of them small.
    shape = " ".join(boxes)
    return [svg("path", d=shape, class_="gap"), svg("path", d=shape, fill=f"url(#{chart.name}-hatch)")]


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """Split points where steps are missing, so that no line crosses a gap."""
    runs: list[list[Point]] = []
    for point in points:
        if runs and runs[-1][-1][0] + 1 == point[0]:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _curve(series: Series, frame: _Frame) -> list[Element]:
    parts: list[Element] = []
    stepped = series.kind in ("area", "outline")
    paths = []
    for run in _runs(series.points):
        share = max(8, MAX_POINTS * len(run) // len(series.points))
        points = thin_out(run, share)
        corners = _stairs(points, frame) if stepped else [(frame.x(step), frame.y(value)) for step, value in points]
        if series.kind == "area":
            corners = [(corners[0][0], frame.y(0)), *corners, (corners[-1][0], frame.y(0))]
        # A point without neighbours becomes a line without length, which its round ends make a dot.
        paths.append(path("M", *corners[0], "L", *chain.from_iterable(corners[1:] or corners)))
    if paths:
        dense = " dense" if len(series.points) > MAX_HOVERS else ""
        parts.append(svg("path", d=" ".join(paths), class_=f"{series.kind} {series.colour}{dense}"))
    if series.kind == "line" and len(series.points) <= MAX_DOTS:
        parts += [
            svg("circle", cx=frame.x(step), cy=frame.y(value), r=2.6, class_=f"dot {series.colour}")
            for step, value in series.points
        ]
    return parts


def _stairs(points: Sequence[Point], frame: _Frame) -> list[tuple[float, float]]:
    """Return the corners of steps: a value holds from halfway to the previous step until halfway to the next."""
    edges = [points[0][0] - 0.5, *((a[0] + b[0]) / 2 for a, b in pairwise(points)), points[-1][0] + 0.5]
    return [
        (frame.x(edge), frame.y(value))
        for (_, value), (left, right) in zip(points, pairwise(edges), strict=True)
        for edge in (left, right)
    ]


def _hovers(chart: Chart, frame: _Frame) -> list[Element]:
    size = math.ceil((frame.last - frame.first + 1) / MAX_HOVERS)
    columns: dict[int, list[str]] = {}
    for series in chart.series:
        values: dict[int, list[float]] = {}
        for step, value in series.points:
            values.setdefault((step - frame.first) // size, []).append(value)
        for column, found in values.items():
            low, high = chart.format_value(min(found)), chart.format_value(max(found))
            columns.setdefault(column, []).append(f"{series.label}: {low if low == high else f'{low} to {high}'}")
    for step in sorted(chart.notes):
        note = f"step {step}: {chart.notes[step]}" if chart.x_unit == "step" else chart.notes[step]
        columns.setdefault((step - frame.first) // size, []).append(note)
    parts = []
    for column, texts in sorted(columns.items()):
        first = frame.first + column * size
        last = min(first + size - 1, frame.last)
        head = _head(chart, first, last)
        left = frame.x(first) - frame.step_width / 2
        width = (last - first + 1) * frame.step_width
        # Too many notes for a tooltip: the table has them all.
        shown = texts if len(texts) <= 8 else [*texts[:8], f"and {len(texts) - 8} more"]
        box = svg("rect", lines([head, *shown]), x=left, y=TOP, width=width, height=HEIGHT - TOP - BOTTOM)
        parts.append(box)
    return parts


def _head(chart: Chart, first: int, last: int) -> str:
    if chart.x_unit != "step":
        return f"{first * chart.x_scale:g} {chart.x_unit}"
    return f"step {first}" if first == last else f"steps {first} to {last}"
