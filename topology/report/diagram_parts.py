"""Shared parts of the topology drawings: boxes of switches and shadow nodes, port badges, group colours. Pure."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from jobspec.model import Job, ShadowNode, SwitchSpec
from topology.report.svg import lines, svg

CARD_WIDTH, CARD_HEIGHT = 112.0, 48.0
SHADOW_WIDTH, SHADOW_HEIGHT, SHADOW_PITCH = 168.0, 78.0, 96.0
GROUP_COLOURS = 6
"""Number of colours; further groups reuse them."""


def group_class(job: Job, group: str) -> str:
    """Return the CSS class that gives a group's ring its colour, with a blank before it; none for the first group."""
    return colour_class([other.name for other in job.groups].index(group))


def colour_class(index: int) -> str:
    """Return the CSS class of the group at `index`, with a blank before it; none for the first group."""
    return f" g{index % GROUP_COLOURS}" if index % GROUP_COLOURS else ""


def arrow_heads() -> Element:
    """Return the definition of the replicas' arrow head."""
    head = svg("path", d="M0 0 L9 4.5 L0 9 z", class_="replica-head")
    marker = svg(
        "marker", head, id="topology-head", markerWidth=9, markerHeight=9, refX=7.5, refY=4.5, orient="auto",
        markerUnits="userSpaceOnUse",
    )  # fmt: skip
    return svg("defs", marker)


def port_badge(port: int, x: float, y: float, style: str = "port") -> Element:
    """Return a badge with a port's number, centred at (x, y)."""
    text = f"port {port}"
    width = 14 + 6.2 * len(text)
    return svg(
        "g",
        svg("rect", x=x - width / 2, y=y - 9, width=width, height=18, rx=9),
        svg("text", text, x=x, y=y + 4, text_anchor="middle"),
        class_=style,
    )


def switch_box(job: Job, spec: SwitchSpec, program: str, x: float, y: float) -> Element:
    """Return the box of a switch that `program` runs, centred at (x, y)."""
    return svg(
        "g",
        lines([f"switch {spec.name} ({program}), P4Runtime device {spec.device_id}"]),
        svg("rect", x=x - 62, y=y - 34, width=124, height=68, rx=10),
        svg("text", clip(spec.name, 14), x=x, y=y - 10, class_="name"),
        svg("text", clip(program, 18), x=x, y=y + 7),
        svg("text", f"P4, MTU {job.network.mtu}", x=x, y=y + 23),
        class_="switch",
    )


def shadow_card(job: Job, shadow: ShadowNode, x: float, y: float) -> Element:
    """Return the card of a shadow node with its left edge at `x` and its middle at `y`."""
    ports = [shadow.base_port + flow.id for flow in job.flows if shadow in flow.shadows]
    span = str(ports[0]) if len(ports) == 1 else f"{min(ports)}\N{EN DASH}{max(ports)}"
    middle = x + SHADOW_WIDTH / 2
    return svg(
        "g",
        lines(
            [
                f"shadow node {shadow.name}, switch port {shadow.port}",
                f"{shadow.ip}, {shadow.mac}, replica id {shadow.rid}",
            ]
        ),
        svg("rect", x=x, y=y - SHADOW_HEIGHT / 2, width=SHADOW_WIDTH, height=SHADOW_HEIGHT, rx=10),
        svg("text", f"shadow · {clip(shadow.name, 9)}", x=middle, y=y - 14, class_="name"),
        svg("text", str(shadow.ip), x=middle, y=y + 5),
        svg("text", f"TCP ports {span}", x=middle, y=y + 23),
        class_="shadow",
    )


def clip(text: str, most: int) -> str:
    """Return `text`, cut to `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"
