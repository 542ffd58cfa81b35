"""The topology of a job with several switches as SVG: a column for each, trunks between them, rings above. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from jobspec.model import Host, Job, ShadowNode
from topology.fabric.participants import Participants
from topology.report.diagram_parts import (
    CARD_HEIGHT,
    CARD_WIDTH,
    SHADOW_HEIGHT,
    SHADOW_WIDTH,
    arrow_heads,
    clip,
    group_class,
    port_badge,
    shadow_card,
    switch_box,
)
from topology.report.svg import drawing, lines, number, path, svg

SPACE = 26.0
"""Pixels between cards, and to the edge of the drawing."""
TRUNK_ROOM = 190.0
"""Smallest distance between the centres of two switches, in pixels: room for two port badges on the trunk."""
ARC = 130.0
"""Pixels above the cards for ring edges."""
HOST_Y = ARC + CARD_HEIGHT / 2 + 6
SWITCH_Y = HOST_Y + 150
SHADOW_Y = SWITCH_Y + 150


@dataclass(frozen=True)
class _Columns:
    """Horizontal positions, in pixels."""

    switch: dict[str, float]
    """Centre of each switch."""
    host: dict[str, float]
    """Centre of each host's card."""
    shadow: dict[str, float]
    """Centre of each shadow node's card."""
    width: float
    """Width of the drawing."""


def render_switches(job: Job, program: str) -> Element:
    """Return the drawing of `job`'s switches and rings; `program` names what runs the switches."""
    participants = Participants(job)
    at = _columns(job, participants)
    parts: list[Element] = [arrow_heads()]
    for host in participants.hosts:
        parts += _link(job, host, at)
    for trunk in job.trunks:
        hover = lines(
            [f"trunk: port {trunk.ports[0]} of {trunk.between[0]}, port {trunk.ports[1]} of {trunk.between[1]}"]
        )
        parts.append(
            svg(
                "path",
                hover,
                d=_trunk(at.switch[trunk.between[0]], at.switch[trunk.between[1]], at.switch.values()),
                class_="trunk",
            )
        )
    for index, shadow in enumerate(participants.shadows):
        parts += _replicas(job, shadow, at, 9.0 + 7 * index)
    for trunk in job.trunks:
        for (name, port), (other, _) in (trunk.ends, trunk.ends[::-1]):
            side = math.copysign(92, at.switch[other] - at.switch[name])
            bow = _is_bow(at.switch[name], at.switch[other], at.switch.values())
            parts.append(port_badge(port, at.switch[name] + side, SWITCH_Y + (44 if bow else -16)))
    parts += _rings(job, at)
    parts += [switch_box(job, switch, program, at.switch[switch.name], SWITCH_Y) for switch in job.switches]
    parts += [_rank(job, host, at.host[host.name]) for host in participants.hosts]
    parts += [shadow_card(job, s, at.shadow[s.name] - SHADOW_WIDTH / 2, SHADOW_Y) for s in participants.shadows]
    height = SHADOW_Y + SHADOW_HEIGHT / 2 + SPACE
    title = f"Topology of job {job.name}: {len(participants.hosts)} ranks on {len(job.switches)} switches"
    return drawing("topology", title, _describe(job, participants), at.width, height, *parts)


def _describe(job: Job, participants: Participants) -> str:
    trunks = "; ".join(f"a trunk joins {' and '.join(trunk.between)}" for trunk in job.trunks)
    hosts = ", ".join(f"{host.name} on port {host.port} of {job.switch_of(host).name}" for host in participants.hosts)
    rings = "; ".join(f"{group.name}: {', '.join(group.ring)}, back to {group.ring[0]}" for group in job.groups)
    shadows = ", ".join(f"{s.name} ({s.ip}) on port {s.port} of {job.switch_of(s).name}" for s in participants.shadows)
    return (
        f"Switches {', '.join(switch.name for switch in job.switches)}; {trunks}. They connect {hosts}. "
        f"Ring order of group {rings}. Packets with DSCP {job.replicated_dscps} are replicated by their sender's "
        f"switch to shadow node {shadows}. All links have MTU {job.network.mtu}."
    )


def _columns(job: Job, participants: Participants) -> _Columns:
    switches: dict[str, float] = {}
    hosts: dict[str, float] = {}
    shadows: dict[str, float] = {}
    left = SPACE
    for switch in job.switches:
        here = [host.name for host in participants.hosts if job.switch_of(host) == switch]
        below = [shadow.name for shadow in participants.shadows if job.switch_of(shadow) == switch]
        card, wide = CARD_WIDTH + SPACE, SHADOW_WIDTH + SPACE
        width = max(len(here) * card, len(below) * wide, TRUNK_ROOM + SPACE)
        middle = left + width / 2
        switches[switch.name] = middle
        hosts |= {name: middle + (i - (len(here) - 1) / 2) * card for i, name in enumerate(here)}
        shadows |= {name: middle + (i - (len(below) - 1) / 2) * wide for i, name in enumerate(below)}
        left += width + SPACE
    return _Columns(switches, hosts, shadows, left)


def _link(job: Job, host: Host, at: _Columns) -> list[Element]:
    switch = job.switch_of(host).name
    x1, x2 = at.host[host.name], at.switch[switch]
    y1, y2 = HOST_Y + CARD_HEIGHT / 2, SWITCH_Y - 34
    hover = lines([f"link of {host.name}, port {host.port} of switch {switch}"])
    line = svg("line", hover, x1=x1, y1=y1, x2=x2 + (x1 - x2) * 0.2, y2=y2, class_="link")
    return [line, port_badge(host.port, x1 + (x2 - x1) * 0.36, y1 + (y2 - y1) * 0.46)]


def _is_bow(one: float, other: float, switches: Iterable[float]) -> bool:
    """Return whether another switch is between two."""
    low, high = min(one, other), max(one, other)
    return any(low + 10 < x < high - 10 for x in switches)


def _trunk(one: float, other: float, between: Iterable[float], below: float = 0.0) -> str:
    """Return a line between two switches, as a bow below those that stand between them."""
    y, middle = SWITCH_Y + below, (one + other) / 2
    bow = 110.0 if _is_bow(one, other, between) else 0.0
    edge = math.copysign(62, other - one)
    return path("M", one + edge, y, "Q", middle, y + bow, other - edge, y)


def _replicas(job: Job, shadow: ShadowNode, at: _Columns, below: float) -> list[Element]:
    """Return the paths from the switches that replicate to `shadow`, each part once."""
    home = job.switch_of(shadow).name
    hops: set[tuple[str, str]] = set()
    for flow in job.flows:
        switch = job.switch_of(flow.source).name
        while shadow in flow.shadows and switch != home:
            following = job.trunk_graph.ports(switch)[job.trunk_graph.port_towards(switch, home)]
            hops.add((switch, following))
            switch = following
    what = f"replicas of packets with DSCP {job.replicated_dscps}"
    parts = []
    for one, other in sorted(hops):
        hover = lines([f"{what}: over the trunk from {one} to {other}, on the way to {shadow.name}"])
        d = _trunk(
            at.switch[one],
            at.switch[other] - math.copysign(5, at.switch[other] - at.switch[one]),
            at.switch.values(),
            below,
        )
        parts.append(svg("path", hover, d=d, class_="replica thin", marker_end="url(#topology-head)"))
    x1, x2, y1, y2 = at.switch[home], at.shadow[shadow.name], SWITCH_Y + 34, SHADOW_Y - SHADOW_HEIGHT / 2
    hover = lines([f"{what}: port {shadow.port} of switch {home} to {shadow.name}"])
    d = path("M", x1, y1, "C", x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2 - 5)
    parts.append(svg("path", hover, d=d, class_="replica", marker_end="url(#topology-head)"))
    middle = (x1 + 2 * x2) / 3
    parts.append(
        svg("text", f"DSCP {job.replicated_dscps}", x=middle + 34, y=(y1 + y2) / 2 + 4, class_="replica-text halo")
    )
    parts.append(port_badge(shadow.port, middle, (y1 + y2) / 2, "port replica-port"))
    return parts


def _rings(job: Job, at: _Columns) -> list[Element]:
    parts: list[Element] = []
    for group in job.groups:
        colour = group_class(job, group.name)
        for rank, name in enumerate(group.ring):
            successor = group.ring[(rank + 1) % len(group.ring)]
            flows = [f.id for f in job.flows if f.group.name == group.name and f.rank == rank]
            hover = lines(
                [
                    f"{group.name}: rank {rank} ({name}) to its successor {successor}",
                    f"flow {', '.join(map(str, flows))}: a TCP connection on each channel",
                ]
            )
            parts += _edge(at.host[name], at.host[successor], at.width, hover, colour)
    return parts


def _edge(one: float, other: float, width: float, hover: Element, colour: str) -> list[Element]:
    """Draw an arc above the cards, higher if longer, from the right of one card to the left of another."""
    x1, x2, top = one + 16, other - 16, HOST_Y - CARD_HEIGHT / 2
    height = min(ARC, 34 + (ARC - 34) * abs(x2 - x1) / width + (14 if other < one else 0))
    # A cubic curve reaches three quarters of its control points' height.
    middle, peak = (x1 + x2) / 2, top - 0.75 * height
    line = path("M", x1, top, "C", x1, top - height, x2, top - height, x2, top)
    direction = 0 if other > one else 180
    arrow = f"translate({number(middle)} {number(peak)}) rotate({direction})"
    return [
        svg("path", hover, d=line, class_=f"ring{colour}"),
        svg("path", d="M-6 -5.5 L7 0 L-6 5.5 z", transform=arrow, class_=f"ring-head{colour}"),
    ]


def _rank(job: Job, host: Host, x: float) -> Element:
    group = next(group for group in job.groups if host.name in group.ring)
    rank = group.ring.index(host.name)
    address = f"{clip(group.name, 6)} · {host.ip}" if len(job.groups) > 1 else str(host.ip)
    hover = lines([f"{host.name}: rank {rank} of {group.name}",
                   f"port {host.port} of switch {job.switch_of(host).name}, {host.ip}, {host.mac}"])  # fmt: skip
    return svg(
        "g",
        hover,
        svg("rect", x=x - CARD_WIDTH / 2, y=HOST_Y - CARD_HEIGHT / 2, width=CARD_WIDTH, height=CARD_HEIGHT, rx=8),
        svg("text", f"rank {rank} · {clip(host.name, 7)}", x=x, y=HOST_Y - 4, class_="name"),
        svg("text", address, x=x, y=HOST_Y + 14),
        class_=f"rank{group_class(job, group.name)}",
    )
