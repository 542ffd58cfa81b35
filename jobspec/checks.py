"""Rules of a job, and of jobs that share a switch, that go beyond the type of one field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jobspec.errors import Problem
from jobspec.model import Job
from p4src.constants import FLOOD_GROUP, MAX_FLOWS

Found = Iterator[tuple[str, str]]
"""(field path, message) pairs."""


def problems_of(job: Job) -> list[Problem]:
    """Return everything that is wrong within one job, in the order of the file; empty when it is sound."""
    rules: tuple[Callable[[Job], Found], ...] = (_dscp, _unique, _ports, _groups, _flow_numbers, _replica_ports)
    return [Problem(field, message) for rule in rules for field, message in rule(job)]


def problems_between(jobs: Sequence[Job]) -> list[tuple[int, Problem]]:
    """Return what collides between sound jobs on one switch, as (index of the later job, problem)."""
    found: list[tuple[int, Problem]] = []
    for index, later in enumerate(jobs):
        for earlier in jobs[:index]:
            found += [(index, Problem(field, message)) for field, message in _collisions(earlier, later)]
    return found


def _repeated(values: Iterable[tuple[str, Any]], what: str) -> Found:
    seen: dict[Any, str] = {}
    for field, value in values:
        if value in seen:
            yield field, f"{what} {value} is used already by {seen[value]}; expected one of its own"
        else:
            seen[value] = field


def _dscp(job: Job) -> Found:
    if job.dscp.primary == job.dscp.redundant:
        yield "dscp.redundant", f"equals dscp.primary ({job.dscp.primary}); expected another codepoint of pool 2"


def _endpoints(job: Job) -> list[tuple[str, Any]]:
    hosts = [(f"hosts[{i}]", host) for i, host in enumerate(job.hosts)]
    return [*hosts, *((f"shadows[{i}]", shadow) for i, shadow in enumerate(job.shadows))]


def _unique(job: Job) -> Found:
    ends = _endpoints(job)
    yield from _repeated(((f"{field}.name", end.name) for field, end in ends), "name")
    yield from _repeated(((f"{field}.port", end.port) for field, end in ends), "switch port")
    yield from _repeated(((f"{field}.mac", end.mac) for field, end in ends), "MAC address")
    yield from _repeated(((f"{field}.ip", end.ip) for field, end in ends), "address")
    yield from _repeated(((f"shadows[{i}].rid", s.rid) for i, s in enumerate(job.shadows)), "replica id")
    yield from _repeated(((f"groups[{i}].name", g.name) for i, g in enumerate(job.groups)), "group name")
    yield from _repeated(((f"groups[{i}].id", g.id) for i, g in enumerate(job.groups)), "group id")
    yield from _repeated(((f"switch.ports[{i}]", port) for i, port in enumerate(job.switch.ports)), "switch port")


def _ports(job: Job) -> Found:
    known = set(job.switch.ports)
    for field, end in _endpoints(job):
        if end.port not in known:
            yield f"{field}.port", f"switch {job.switch.name} has no port {end.port}; expected one of {_ranges(known)}"


def _groups(job: Job) -> Found:
    hosts = {host.name for host in job.hosts}
    shadows = {shadow.name for shadow in job.shadows}
    listening: dict[tuple[str, int], str] = {}
    for g, group in enumerate(job.groups):
        yield from _repeated(((f"groups[{g}].ring[{i}]", name) for i, name in enumerate(group.ring)), "rank")
        yield from _repeated(((f"groups[{g}].shadows[{i}]", n) for i, n in enumerate(group.shadows)), "shadow")
        for i, name in enumerate(group.ring):
            if name not in hosts:
                yield f"groups[{g}].ring[{i}]", f"no host is called {name!r}; expected one of {_names(hosts)}"
        for i, name in enumerate(group.shadows):
            if name not in shadows:
                yield f"groups[{g}].shadows[{i}]", f"no shadow is called {name!r}; expected one of {_names(shadows)}"
        if group.tcp_port + group.channels - 1 > 65535:
            yield f"groups[{g}].tcp_port", f"{group.channels} channels from {group.tcp_port} on go beyond port 65535"
        # Flows overlap when two groups make the same host listen on the same port.
        for name in dict.fromkeys(group.ring):
            for port in range(group.tcp_port, group.tcp_port + group.channels):
                other = listening.setdefault((name, port), group.name)
                if other != group.name:
                    message = f"host {name} listens on port {port} for group {other} already: the flows overlap"
                    yield f"groups[{g}].tcp_port", message


def _edges(job: Job) -> int:
    return sum(len(group.ring) * group.channels for group in job.groups)


def _flow_numbers(job: Job) -> Found:
    last = job.first_flow_id + _edges(job) - 1
    if last >= MAX_FLOWS:
        yield (
            "first_flow_id",
            f"flows {job.first_flow_id}..{last} go beyond {MAX_FLOWS - 1}, the most that a switch holds",
        )


def _replica_ports(job: Job) -> Found:
    last = job.first_flow_id + _edges(job) - 1
    for i, shadow in enumerate(job.shadows):
        if shadow.base_port + last > 65535:
            yield f"shadows[{i}].base_port", f"{shadow.base_port} + flow {last} goes beyond port 65535"


def _collisions(a: Job, b: Job) -> Found:
    """Yield what job `b` takes that job `a` has, with paths in `b`."""
    if a.name == b.name:
        yield "name", f"two jobs are called {a.name!r}; expected names of their own"
    if a.id == b.id:
        yield "id", f"job {a.name!r} has number {a.id} already"
    if (a.switch.name, a.switch.device_id, set(a.switch.ports)) != (
        b.switch.name,
        b.switch.device_id,
        set(b.switch.ports),
    ):
        yield "switch", f"differs from the switch of job {a.name!r}; jobs installed together describe the same switch"
    if a.network.mtu != b.network.mtu:
        yield "network.mtu", f"{b.network.mtu}, job {a.name!r} has {a.network.mtu} on the same switch"
    mine, theirs = _endpoints(b), [end for _, end in _endpoints(a)]
    for attribute, what in (("port", "switch port"), ("mac", "MAC address"), ("ip", "address")):
        taken = {getattr(end, attribute): end.name for end in theirs}
        for field, end in mine:
            value = getattr(end, attribute)
            if value in taken:
                yield f"{field}.{attribute}", f"{what} {value} belongs to {taken[value]} of job {a.name!r}"
    rids = {shadow.rid: shadow.name for shadow in a.shadows}
    for i, shadow in enumerate(b.shadows):
        if shadow.rid in rids:
            yield f"shadows[{i}].rid", f"replica id {shadow.rid} belongs to {rids[shadow.rid]} of job {a.name!r}"
    first_a, first_b = a.first_flow_id, b.first_flow_id
    last_a, last_b = first_a + _edges(a) - 1, first_b + _edges(b) - 1
    if first_a <= last_b and first_b <= last_a:
        yield ("first_flow_id",
               f"flows {first_b}..{last_b} overlap flows {first_a}..{last_a} of job {a.name!r}; "
               f"expected {last_a + 1} or more")  # fmt: skip


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _ranges(numbers: set[int]) -> str:
    ordered = sorted(numbers)
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}..{ordered[-1]}"
    return ", ".join(map(str, ordered))


assert MAX_FLOWS < FLOOD_GROUP, "multicast groups of flows (flow id + 1) must stay below the flood group"
