"""Rings: which hosts send to which, with how many channels, and who is rank 0.

A rank of an LL ring sends data to its successor, and control writes and acknowledgements to its predecessor; so a
capture of one direction still shows that the other exists. The tag of a control write is the rank of the host that it
is sent to (net.cc, tpRemoteRank); ring indices count from rank 0 along the ring (init.cc, setupChannel).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from rocev2.flow import Flow


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """One communicator's ring, as far as the capture shows it."""

    hosts: tuple[bytes, ...]
    """IP addresses in ring order, each the predecessor of the next; from ring index 0 on where `indexed`."""
    indexed: bool
    """Whether the place in `hosts` is the ring index."""
    flows: Mapping[int, tuple[Flow | None, ...]]
    """Data flows by place of the sender, one per channel in channel order; a channel that was not captured is None."""
    hidden: Mapping[tuple[int, int], int | None]
    """Place of the sender and channel of data that were not captured: steps that were announced to it, if known."""
    channels: int
    channels_ordered: bool
    """Whether the order of channels is certain."""


def find_rings(everything: list[Flow]) -> tuple[list[Ring], list[str]]:
    """Return the rings among flows, and what keeps others from being one."""
    data = [flow for flow in everything if flow.table is not None]
    control = [flow for flow in everything if flow.table is None and flow.promises is not None]
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
        rings.append(_ring(cycle, data, control))
    return rings, notes


def _cycle(
    host: bytes, successors: dict[bytes, set[bytes]], predecessors: dict[bytes, set[bytes]]
) -> list[bytes] | None:
    """Return the cycle through `host`, None unless every host of it has one successor and one predecessor."""
    cycle = [host]
    seen = {host}
    while True:
        nexts = successors.get(cycle[-1], set())
        if len(nexts) != 1 or len(predecessors.get(cycle[-1], set())) != 1:
            return None
        (following,) = nexts
        if following == host:
            return cycle if len(cycle) > 1 else None
        if following in seen:
            return None
        cycle.append(following)
        seen.add(following)


def _between(flows: Iterable[Flow], source: bytes, destination: bytes) -> list[Flow]:
    """Return the flows from a host to another by queue pair number: NCCL connects channel by channel."""
    chosen = (flow for flow in flows if (flow.key.source, flow.key.destination) == (source, destination))
    return sorted(chosen, key=lambda flow: flow.key.dest_qp)


def _ring(cycle: list[bytes], data: list[Flow], control: list[Flow]) -> Ring:
    zero = _rank_zero(cycle, control)
    if zero is not None:
        cycle = cycle[zero:] + cycle[:zero]
    links = list(zip(cycle, cycle[1:] + cycle[:1], strict=True))
    columns = [_between(data, *link) for link in links]
    reverses = [_between(control, following, host) for host, following in links]
    channels = max(
        max(len(column), len(reverse) if column else 0) for column, reverse in zip(columns, reverses, strict=True)
    )
    ordered = True
    flows: dict[int, tuple[Flow | None, ...]] = {}
    hidden: dict[tuple[int, int], int | None] = {}
    for place, (column, reverse) in enumerate(zip(columns, reverses, strict=True)):
        if column:
            flows[place], certain = _channels(channels, column, reverse)
            ordered &= certain
        announced = [flow.promises[1].steps for flow in reverse if flow.promises is not None]
        for channel in range(channels):
            if place not in flows or flows[place][channel] is None:
                hidden[place, channel] = announced[channel] if len(announced) == channels else None
    return Ring(tuple(cycle), zero is not None, flows, hidden, channels, ordered)


def _channels(channels: int, column: list[Flow], reverse: list[Flow]) -> tuple[tuple[Flow | None, ...], bool]:
    """Return the data flows between two hosts by channel, and whether that is certain.

    Queue pair numbers grow with the channel at both ends. Where both ends are seen they must tell the same order.
    """
    places = {flow.udp_source: place for place, flow in enumerate(reverse)}
    paired = [places.get(flow.udp_source) for flow in column]
    known = [place for place in paired if place is not None]
    certain = len(places) != len(reverse) or known == sorted(known)
    if len(column) == channels:
        return tuple(column), certain
    row: list[Flow | None] = [None] * channels
    if len(known) == len(column) and len(reverse) == channels and len(set(known)) == len(known):
        for place, flow in zip(known, column, strict=True):
            row[place] = flow
        return tuple(row), certain
    row[: len(column)] = column
    return tuple(row), channels == 1


def _rank_zero(cycle: list[bytes], control: list[Flow]) -> int | None:
    """Return the place of rank 0, None where the tags of the control writes do not tell."""
    tags: dict[int, int] = {}
    for place, host in enumerate(cycle):
        before = cycle[place - 1]
        named = {flow.promises[0] for flow in _between(control, host, before) if flow.promises is not None}
        if len(named) == 1:
            tags[(place - 1) % len(cycle)] = named.pop()
        elif named:
            return None
    if any(tag >= len(cycle) for tag in tags.values()) or len(set(tags.values())) < len(tags):
        return None  # a part of a larger job: its ranks count within that
    for place, tag in tags.items():
        if tag == 0:
            return place
    missing = [place for place in range(len(cycle)) if place not in tags]
    return missing[0] if len(missing) == 1 else None
