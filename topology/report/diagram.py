"""The topology of a job with one switch as SVG: ranks around it, ring edges, the replicas' path. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from jobspec.model import Host, Job, ShadowNode
from topology.report.diagram_parts import (
    CARD_HEIGHT,
    CARD_WIDTH,
    SHADOW_PITCH,
    SHADOW_WIDTH,
    arrow_heads,
    clip,
    group_class,
    port_badge,
    shadow_card,
    switch_box,
)
from topology.report.svg import drawing, lines, number, path, svg

MAX_CARDS = 8
"""Up to this many ranks are drawn as cards with address and port; more are numbered circles."""
MAX_HORIZONTAL_LABELS = 20
"""Up to this many circles have horizontal labels; those of more point outwards."""
PATH_ROOM = 168.0
"""Pixels between the ring and the shadow nodes, for the label of the replicas' path."""


@dataclass(frozen=True)
class _Ring:
    """The ellipse on which the ranks are placed."""

    cx: float
    cy: float
    rx: float
    ry: float
    angles: tuple[float, ...]
    """Degrees, clockwise from the right, one for each rank."""

    def at(self, angle: float, scale: float = 1.0) -> tuple[float, float]:
        turn = math.radians(angle)
        return self.cx + scale * self.rx * math.cos(turn), self.cy + scale * self.ry * math.sin(turn)


def render_topology(job: Job, switch: str) -> Element:
    """Return the drawing of `job`'s rings; `switch` names the implementation, such as ``softswitch``."""
    hosts = [job.host(name) for name in dict.fromkeys(name for group in job.groups for name in group.ring)]
    shadows = [job.shadow(name) for name in dict.fromkeys(name for group in job.groups for name in group.shadows)]
    ring = _ring(len(hosts), len(shadows))
    shadow_x = ring.cx + ring.rx + PATH_ROOM
    width = shadow_x + SHADOW_WIDTH + 12
    height = 2 * ring.cy
    parts = [arrow_heads(), *_links(ring, hosts), *_edges(job, ring, hosts)]
    tops = [ring.cy + (i - (len(shadows) - 1) / 2) * SHADOW_PITCH for i in range(len(shadows))]
    # All halos first, so that none cuts through another path where the paths part.
    parts += [svg("path", d=_path_to_shadow(ring, shadow_x, y), class_="replica-halo") for y in tops]
    for shadow, y in zip(shadows, tops, strict=True):
        parts += _replica_path(job, shadow, ring, shadow_x, y)
    parts.append(switch_box(job, job.switch, switch, ring.cx, ring.cy))
    parts += [_rank(job, host, ring, i, len(hosts)) for i, host in enumerate(hosts)]
    parts += [shadow_card(job, shadow, shadow_x, y) for shadow, y in zip(shadows, tops, strict=True)]
    title = f"Topology of job {job.name}: {len(hosts)} ranks around switch {job.switch.name}"
    return drawing("topology", title, _describe(job, hosts, shadows), width, height, *parts)


def _describe(job: Job, hosts: list[Host], shadows: list[ShadowNode]) -> str:
    rings = "; ".join(f"{group.name}: {', '.join(group.ring)}, back to {group.ring[0]}" for group in job.groups)
    ports = ", ".join(f"{host.name} on port {host.port}" for host in hosts)
    paths = ", ".join(f"{shadow.name} ({shadow.ip}) on port {shadow.port}" for shadow in shadows)
    return (
        f"Switch {job.switch.name} connects {ports}. Ring order of group {rings}. "
        f"Packets with DSCP {job.replicated_dscps} are replicated to shadow node {paths}. "
        f"All links have MTU {job.network.mtu}."
    )


def _ring(ranks: int, shadows: int) -> _Ring:
    """Spread the ranks clockwise from rank 0 at the upper left; leave a gap on the right for the replicas' path."""
    if ranks <= MAX_CARDS:
        rx, ry, margin_x, margin_y = 238.0, 158.0 if ranks <= 4 else 186.0, 66.0, 40.0
    elif ranks <= MAX_HORIZONTAL_LABELS:
        rx, ry, margin_x, margin_y = 250.0, 226.0, 96.0, 46.0
    else:
        rx, ry, margin_x, margin_y = 286.0, 286.0, 112.0, 112.0
    free = max(180 / ranks, 17.0)
    pitch = (360 - 2 * free) / (ranks - 1)
    angles = [free + i * pitch for i in range(ranks)]
    first = min(range(ranks), key=lambda i: abs(angles[i] - 262))
    return _Ring(
        cx=margin_x + rx,
        cy=max(margin_y + ry, shadows * SHADOW_PITCH / 2 + 8),
        rx=rx,
        ry=ry,
        angles=tuple(angles[(first + i) % ranks] for i in range(ranks)),
    )


def _links(ring: _Ring, hosts: list[Host]) -> list[Element]:
    parts = []
    for angle, host in zip(ring.angles, hosts, strict=True):
        x, y = ring.at(angle)
        hover = lines([f"link of {host.name}, switch port {host.port}"])
        parts.append(svg("line", hover, x1=ring.cx, y1=ring.cy, x2=x, y2=y, class_="link"))
    if len(hosts) <= MAX_CARDS:
        for angle, host in zip(ring.angles, hosts, strict=True):
            parts.append(port_badge(host.port, *ring.at(angle, 0.5)))
    return parts


def _edges(job: Job, ring: _Ring, hosts: list[Host]) -> list[Element]:
    place = {host.name: i for i, host in enumerate(hosts)}
    parts: list[Element] = []
    for group in job.groups:
        for rank, name in enumerate(group.ring):
            successor = group.ring[(rank + 1) % len(group.ring)]
            flows = [f.id for f in job.flows if f.group.name == group.name and f.rank == rank]
            hover = lines(
                [
                    f"{group.name}: rank {rank} ({name}) to its successor {successor}",
                    f"flow {', '.join(map(str, flows))}: a TCP connection through the switch on each channel",
                ]
            )
            colour = group_class(job, group.name)
            parts += _edge(ring, place[name], place[successor], len(hosts), hover, colour)
    return parts


def _edge(ring: _Ring, start: int, end: int, ranks: int, hover: Element, colour: str) -> list[Element]:
    """Draw an edge with an arrow: an arc to the neighbour, a curve through the inside to any other rank."""
    a, b = ring.angles[start], ring.angles[end]
    (x1, y1), (x2, y2) = ring.at(a), ring.at(b)
    if end == (start + 1) % ranks:
        span = (b - a) % 360
        # The replicas' path leaves on the right (0 degrees): an arrow there would be hidden.
        arrow_at = a + span * (0.72 if abs((a + span / 2 + 180) % 360 - 180) < 8 else 0.5)
        mx, my = ring.at(arrow_at)
        ahead = ring.at(arrow_at + 1)
        line = path("M", x1, y1, "A", ring.rx, ring.ry, 0, int(span > 180), 1, x2, y2)
    else:
        # A little inside of the chord, so that it does not hide the arc that leads the other way.
        qx, qy = ((x1 + x2) * 0.35 + 0.3 * ring.cx, (y1 + y2) * 0.35 + 0.3 * ring.cy)
        mx, my = (x1 + 2 * qx + x2) / 4, (y1 + 2 * qy + y2) / 4
        ahead = (mx + x2 - x1, my + y2 - y1)
        line = path("M", x1, y1, "Q", qx, qy, x2, y2)
    turn = math.degrees(math.atan2(ahead[1] - my, ahead[0] - mx))
    size = 1.0 if ranks <= MAX_HORIZONTAL_LABELS else 0.6
    arrow = f"translate({number(mx)} {number(my)}) rotate({number(turn)}) scale({number(size)})"
    return [
        svg("path", hover, d=line, class_=f"ring{colour}"),
        svg("path", d="M-6 -5.5 L7 0 L-6 5.5 z", transform=arrow, class_=f"ring-head{colour}"),
    ]


def _path_to_shadow(ring: _Ring, shadow_x: float, y: float) -> str:
    start, level = ring.cx + 62, ring.cx + ring.rx + 54
    bend = (start + level) / 2 + 40
    return path("M", start, ring.cy, "C", bend, ring.cy, bend, y, level, y, "H", shadow_x - 5)


def _replica_path(job: Job, shadow: ShadowNode, ring: _Ring, shadow_x: float, y: float) -> list[Element]:
    # Named after the bend, where the path runs level and alone.
    middle = shadow_x - 60
    hover = lines([f"replicas of packets with DSCP {job.replicated_dscps}: switch port {shadow.port} to {shadow.name}"])
    return [
        svg(
            "path",
            hover,
            d=_path_to_shadow(ring, shadow_x, y),
            class_="replica",
            marker_end="url(#topology-head)",
        ),
        svg(
            "text",
            f"DSCP {job.replicated_dscps}",
            x=middle,
            y=y - 14,
            text_anchor="middle",
            class_="replica-text halo",
        ),
        port_badge(shadow.port, middle, y, "port replica-port"),
    ]


def _rank(job: Job, host: Host, ring: _Ring, index: int, count: int) -> Element:
    roles = [(group.name, group.ring.index(host.name)) for group in job.groups if host.name in group.ring]
    angle = ring.angles[index]
    x, y = ring.at(angle)
    group, rank = roles[0]
    style = f"rank{group_class(job, group)}"
    address = f"{clip(group, 6)} · {host.ip}" if len(job.groups) > 1 else str(host.ip)
    hover = lines([f"{host.name}: {', '.join(f'rank {r} of {g}' for g, r in roles)}",
                   f"switch port {host.port}, {host.ip}, {host.mac}"])  # fmt: skip
    if count <= MAX_CARDS:
        return svg(
            "g",
            hover,
            svg(
                "rect",
                x=x - CARD_WIDTH / 2,
                y=y - CARD_HEIGHT / 2,
                width=CARD_WIDTH,
                height=CARD_HEIGHT,
                rx=8,
            ),
            svg("text", f"rank {rank} · {clip(host.name, 7)}", x=x, y=y - 4, class_="name"),
            svg("text", address, x=x, y=y + 14),
            class_=style,
        )
    radius = 12.0 if count <= MAX_HORIZONTAL_LABELS else 9.0
    return svg(
        "g",
        hover,
        svg("circle", cx=x, cy=y, r=radius),
        svg("text", str(rank), x=x, y=y + 4, class_="name" if count <= MAX_HORIZONTAL_LABELS else "name tiny"),
        _label(f"{clip(host.name, 9)} · port {host.port}", ring, angle, radius + 7, count > MAX_HORIZONTAL_LABELS),
        class_=style,
    )


def _label(text: str, ring: _Ring, angle: float, distance: float, outwards: bool) -> Element:
    x, y = ring.at(angle)
    turn = math.atan2(y - ring.cy, x - ring.cx)
    x, y = x + distance * math.cos(turn), y + distance * math.sin(turn)
    if not outwards:
        side = math.cos(turn)
        anchor = "middle" if abs(side) < 0.3 else "start" if side > 0 else "end"
        lift = 4 + 7 * math.sin(turn)
        return svg("text", text, x=x, y=y + lift, style=f"text-anchor:{anchor}")
    flipped = math.cos(turn) < 0
    degrees = math.degrees(turn) + (180 if flipped else 0)
    place = f"translate({number(x)} {number(y)}) rotate({number(degrees)})"
    return svg(
        "text",
        text,
        y=4,
        transform=place,
        style=f"text-anchor:{'end' if flipped else 'start'}",
        class_="small",
    )
