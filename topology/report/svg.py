"""Helpers to build SVG: escaped elements, round axis ticks, thinned curves. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element, tostring

SVG_NAMESPACE = "http://www.w3.org/2000/svg"

NEAR_ZERO = 1e-200
"""Values below it count as zero on an axis."""

Point = tuple[int, float]
"""(training step, value)."""


def printable(text: str) -> str:
    """Return `text` with all white space made spaces and control, bidi and surrogate characters made U+FFFD.

    Texts from packets and exceptions reach terminals and files; no escape sequence or lone surrogate may.
    """
    return "".join(ch if ch.isprintable() else " " if ch.isspace() else "\N{REPLACEMENT CHARACTER}" for ch in text)


def number(value: float) -> str:
    """Return a coordinate with at most two decimals and no trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def path(*parts: str | float) -> str:
    """Return path data: ``path("M", 1, 2.5, "H", 9)`` is ``M 1 2.5 H 9``."""
    return " ".join(part if isinstance(part, str) else number(part) for part in parts)


def svg(tag: str, *children: Element | str, **attributes: str | float) -> Element:
    """Return an SVG element; strings become text nodes.

    In attribute names ``_`` stands for ``-`` (a trailing one is dropped, as in ``class_``); numbers are
    rounded by `number`. Everything is escaped when the tree is written.
    """
    node = Element(tag)
    for name, value in attributes.items():
        text = printable(value) if isinstance(value, str) else number(value)
        node.set(name.rstrip("_").replace("_", "-"), text)
    for child in children:
        if isinstance(child, Element):
            node.append(child)
        elif len(node):
            node[-1].tail = (node[-1].tail or "") + printable(child)
        else:
            node.text = (node.text or "") + printable(child)
    return node


def lines(text: Sequence[str]) -> Element:
    """Return a ``<title>``, which browsers show on hover, of several lines."""
    node = Element("title")
    node.text = "\n".join(printable(line) for line in text)
    return node


def drawing(name: str, title: str, description: str, width: float, height: float, *children: Element) -> Element:
    """Return a scalable, described image; `name` must be unique within the page."""
    return svg(
        "svg",
        svg("title", title, id=f"{name}-title"),
        svg("desc", description, id=f"{name}-desc"),
        *children,
        xmlns=SVG_NAMESPACE,
        id=name,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def to_text(node: Element) -> str:
    """Return the element as text that is valid XML and valid within HTML."""
    return tostring(node, encoding="unicode")


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Return about `count` round numbers (1, 2 or 5 times a power of ten apart) that enclose [low, high].

    With `whole` they are integers. Where low and high are (nearly) equal, the range reaches to zero, or from
    zero to one.
    """
    largest = max(abs(low), abs(high))
    if largest < NEAR_ZERO:
        low, high = 0.0, 1.0
    elif high - low <= 1e-9 * largest:
        low, high = min(low, 0.0), max(high, 0.0)
    rough = (high - low) / count
    power = math.floor(math.log10(rough))
    factor = next(f for f in (1, 2, 5, 10) if f * 10.0**power >= rough * 0.999)
    step = factor * 10.0**power
    if whole:
        step = max(1.0, float(round(step)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    # Rounding to the step's own decimals keeps 3 * 0.1 from becoming 0.30000000000000004.
    decimals = max(0, -power + 1)
    return [round(i * step, decimals) for i in range(first, last + 1)]


def tick_text(value: float, spacing: float) -> str:
    """Return a tick's label with as many decimals as ticks that are `spacing` apart need."""
    if abs(value) >= 1e7 or 0 < spacing < 1e-6:
        return f"{value:g}"
    decimals = max(0, -math.floor(math.log10(spacing) + 1e-9)) if spacing > 0 else 0
    return f"{value:,.{decimals}f}"


def thin_out(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most about `most` of the points, which must be in order of step, keeping the shape.

    Of each bin the first, lowest, highest and last point stay (the M4 aggregation of Jugel et al., VLDB
    2014), so that no peak or dip of a long run disappears.
    """
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / max(1, most // 4))
    kept: list[Point] = []
    for start in range(0, len(points), size):
        window = range(start, min(start + size, len(points)))
        extremes = {min(window, key=lambda i: points[i][1]), max(window, key=lambda i: points[i][1])}
        kept += [points[i] for i in sorted({window[0], window[-1], *extremes})]
    return kept
