"""Rings: which hosts send to which, with how many channels, and who is rank 0.

A rank of an LL ring sends data to its successor, and control writes and acknowledgements to its predecessor; so a
capture of one direction still shows that the other exists. The tag of a control write is the rank of the host that it
is sent to (net.cc, tpRemoteRank); ring indices count from rank 0 along the ring (init.cc, setupChannel).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address

from rocev2.flow import Flow


@dataclass(slots=True)
class Ring:
    """One communicator's ring, as far as the capture shows it."""

    hosts: tuple[bytes, ...]
    """IP addresses in ring order, each the predecessor of the next; from ring index 0 on where `indexed`."""
    indexed: bool
    """Whether the place in `hosts` is the ring index."""
    flows: dict[int, list[Flow | None]] = field(default_factory=dict)
    """Data flows by place of the sender, one per channel in channel order; a channel that was not captured is None."""
    receiving: dict[int, list[Flow]] = field(default_factory=dict)
    """Control flows by place of their sender."""
    doubtful: list[Flow] = field(default_factory=list)
    """Flows along the ring that may be of a channel, or carry something else."""
    channels: int = 0
    channels_ordered: bool = True
    """Whether the order of channels is certain."""

    @property
    def ordered(self) -> bool:
        """Whether no packet of it has yet come after a later one of its flow."""
        data = [flow for row in self.flows.values() for flow in row if flow is not None]
        control = [flow for row in self.receiving.values() for flow in row]
        return not any(flow.queue.reordered for flow in data + control)


def find_rings(flows: Iterable[Flow]) -> tuple[list[Ring], list[str]]:
    """Return the rings among flows, and what keeps others from being one."""
    everything = list(flows)
    data = [flow for flow in everything if flow.is_ll]
    control = [flow for flow in everything if flow.is_control and flow.announces_ll]
    edges = {(flow.key.source, flow.key.destination) for flow in data}
    edges |= {(flow.key.destination, flow.key.source) for flow in control}
    successors: dict[bytes, set[bytes]] = {}
    predecessors: dict[bytes, set[bytes]] = {}
    for source, destination in edges:
        successors.setdefault(source, set()).add(destination)
        predecessors.setdefault(destination, set()).add(source)
    rings, notes = [], []
    seen: set[bytes] = set()
    for host in sorted({source for source, _ in edges}):
        if host in seen:
            continue
        cycle = _cycle(host, successors, predecessors)
        if cycle is None:
            notes.append(f"the hosts that {ip_address(host)} exchanges LL messages with form no closed ring")
            continue
        seen.update(cycle)
        ring = _ring(cycle, data, control)
        links = {(host, cycle[place + 1 - len(cycle)]) for place, host in enumerate(cycle)}
        ring.doubtful = [flow for flow in everything if flow.doubtful and flow.key[:2] in links]
        rings.append(ring)
    return rings, notes


def _cycle(
    host: bytes, successors: dict[bytes, set[bytes]], predecessors: dict[bytes, set[bytes]]
) -> list[bytes] | None:
    """Return the cycle through `host`, None unless every host of it has one successor and one predecessor."""
    cycle = [host]
    while True:
        nexts = successors.get(cycle[-1], set())
        if len(nexts) != 1 or len(predecessors.get(cycle[-1], set())) != 1:
            return None
        (following,) = nexts
        if following == host:
            return cycle if len(cycle) > 1 else None
        if following in cycle:
            return None
        cycle.append(following)


def _ring(cycle: list[bytes], data: list[Flow], control: list[Flow]) -> Ring:
    zero = _rank_zero(cycle, control)
    if zero is not None:
        cycle = cycle[zero:] + cycle[:zero]
    ring = Ring(tuple(cycle), zero is not None)
    columns: dict[int, list[Flow]] = {}
    for place, host in enumerate(cycle):
        following = cycle[(place + 1) % len(cycle)]
        columns[place] = sorted(
            (flow for flow in data if (flow.key.source, flow.key.destination) == (host, following)),
            key=lambda flow: flow.key.dest_qp,
        )
        ring.receiving[(place + 1) % len(cycle)] = sorted(
            (flow for flow in control if (flow.key.source, flow.key.destination) == (following, host)),
            key=lambda flow: flow.key.dest_qp,
        )
    ring.channels = max(len(column) for column in columns.values())
    for place, column in columns.items():
        reverse = ring.receiving[(place + 1) % len(cycle)]
        ring.channels = max(ring.channels, len(reverse)) if column else ring.channels
    for place, column in columns.items():
        if column:
            ring.flows[place] = _channels(ring, column, ring.receiving[(place + 1) % len(cycle)])
    for place, row in ring.flows.items():
        for channel, flow in enumerate(row):
            if flow is not None:
                flow.rank, flow.channel = (place if ring.indexed else None), channel
    return ring


def _channels(ring: Ring, column: list[Flow], reverse: list[Flow]) -> list[Flow | None]:
    """Return the data flows between two hosts by channel.

    NCCL connects channel by channel, so that queue pair numbers grow with the channel at both ends. Where both ends
    are seen they must tell the same order.
    """
    places = {flow.udp_source: place for place, flow in enumerate(reverse)}
    paired = [places.get(flow.udp_source) for flow in column]
    known = [place for place in paired if place is not None]
    if len(places) == len(reverse) and known != sorted(known):
        ring.channels_ordered = False
    row: list[Flow | None] = [None] * ring.channels
    if len(column) == ring.channels:
        row[:] = column
    elif len(known) == len(column) and len(reverse) == ring.channels and len(set(known)) == len(known):
        for place, flow in zip(known, column, strict=True):
            row[place] = flow
    else:
        ring.channels_ordered = ring.channels == 1
        row[: len(column)] = column
    return row


def _rank_zero(cycle: list[bytes], control: list[Flow]) -> int | None:
    """Return the place of rank 0, None where the tags of the control writes do not tell."""
    tags: dict[int, int] = {}
    for place, host in enumerate(cycle):
        before = cycle[place - 1]
        named = {flow.tag for flow in control if (flow.key.source, flow.key.destination) == (host, before)} - {None}
        if len(named) == 1:
            tags[(place - 1) % len(cycle)] = next(tag for tag in named if tag is not None)
        elif named:
            return None
    if any(tag >= len(cycle) for tag in tags.values()) or len(set(tags.values())) < len(tags):
        return None  # a part of a larger job: its ranks count within that
    for place, tag in tags.items():
        if tag == 0:
            return place
    missing = [place for place in range(len(cycle)) if place not in tags]
    return missing[0] if len(missing) == 1 else None
