"""Rules of a job, and of jobs that share a switch, that involve more than one field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from jobspec.errors import Problem
from jobspec.model import Host, Job, ShadowNode, SwitchSpec
from jobspec.rdma_checks import queue_pair_collisions, queue_pairs
from jobspec.trunks import without_unknown
from p4src.constants import FLOOD_GROUP, MAX_FLOWS

Found = Iterator[tuple[str, str]]
"""(field path, message) pairs."""


def problems_of(job: Job) -> list[Problem]:
    """Return all problems within one job, in the order of the file; empty if it is valid."""
    rules: tuple[Callable[[Job], Found], ...] = (
        _switches, _dscp, _unique, _ports, _trunks, _has_traffic, _groups, _redundancy, _ranks, _flow_numbers,
        _replica_ports, queue_pairs,
    )  # fmt: skip
    return [Problem(field, message) for rule in rules for field, message in rule(job)]


def problems_between(jobs: Sequence[Job]) -> list[tuple[int, Problem]]:
    """Return the collisions between valid jobs on one switch, as (index of the later job, problem)."""
    found: list[tuple[int, Problem]] = []
    for index, later in enumerate(jobs):
        for earlier in jobs[:index]:
            found += [(index, Problem(field, message)) for field, message in _collisions(earlier, later)]
    return found


def _repeated(values: Iterable[tuple[str, Any]], what: str) -> Found:
    seen: dict[Any, str] = {}
    for field, value in values:
        if value in seen:
            yield field, f"{what} {value} is already used by {seen[value]}; expected a unique one"
        else:
            seen[value] = field


def _dscp(job: Job) -> Found:
    if job.dscp.primary == job.dscp.redundant:
        yield "dscp.redundant", f"equals dscp.primary ({job.dscp.primary}); expected another codepoint of pool 2"


def _switches(job: Job) -> Found:
    if job.sole_switch is not None and job.several_switches:
        yield "switches", "is given beside switch; expected only one of them"
    if not job.switches:
        yield "switch", "is missing; add it, or a list of several as switches"
    yield from _repeated(((f"{_path(job, i)}.name", s.name) for i, s in enumerate(job.switches)), "switch name")
    names = [switch.name for switch in job.switches]
    for field, end in _endpoints(job):
        if end.switch is None and len(names) > 1:
            yield f"{field}.switch", f"is missing: the job has several switches; expected one of {', '.join(names)}"
        elif end.switch is not None and end.switch not in names:
            yield f"{field}.switch", f"there is no switch {end.switch!r}; expected one of {', '.join(names)}"


def _path(job: Job, index: int) -> str:
    """Return the path in the file of the switch at `index` of `job.switches`."""
    if job.sole_switch is not None:
        return f"switches[{index - 1}]" if index else "switch"
    return f"switches[{index}]"


def _switch_of(job: Job, end: Host | ShadowNode) -> SwitchSpec | None:
    """Return the switch of `end`, None if the file does not say."""
    if end.switch is None:
        return job.switches[0] if len(job.switches) == 1 else None
    return next((switch for switch in job.switches if switch.name == end.switch), None)


def _endpoints(job: Job) -> list[tuple[str, Host | ShadowNode]]:
    hosts: list[tuple[str, Host | ShadowNode]] = [(f"hosts[{i}]", host) for i, host in enumerate(job.hosts)]
    return [*hosts, *((f"shadows[{i}]", shadow) for i, shadow in enumerate(job.shadows))]


def _addresses(job: Job) -> list[tuple[str, IPv4Address | IPv6Address]]:
    """Return (field, address) of every end; a host may have one of each family."""
    found = [(f"hosts[{i}].{name}", address) for i, host in enumerate(job.hosts) for name, address in host.addresses]
    return [*found, *((f"shadows[{i}].ip", shadow.ip) for i, shadow in enumerate(job.shadows))]


def _unique(job: Job) -> Found:
    ends = _endpoints(job)
    yield from _repeated(((f"{field}.name", end.name) for field, end in ends), "name")
    yield from _repeated(_used_ports(job), "switch port")
    yield from _repeated(((f"{field}.mac", end.mac) for field, end in ends), "MAC address")
    yield from _repeated(_addresses(job), "address")
    yield from _repeated(((f"shadows[{i}].rid", s.rid) for i, s in enumerate(job.shadows)), "replica id")
    yield from _repeated(((f"groups[{i}].name", g.name) for i, g in enumerate(job.groups)), "group name")
    yield from _repeated(((f"groups[{i}].id", g.id) for i, g in enumerate(job.groups)), "group id")
    for s, switch in enumerate(job.switches):
        path = f"{_path(job, s)}.ports"
        yield from _repeated(((f"{path}[{i}]", port) for i, port in enumerate(switch.ports)), "switch port")


def _used_ports(job: Job) -> list[tuple[str, str]]:
    """Return (field, port) of hosts, shadows and trunks, each port with its switch if there are several."""
    found = []
    for field, end in _endpoints(job):
        home = _switch_of(job, end)
        if home is not None:
            found.append((f"{field}.port", _port_text(job, home.name, end.port)))
    for t, trunk in enumerate(job.trunks):
        found += [(f"trunks[{t}].ports[{i}]", _port_text(job, name, port)) for i, (name, port) in enumerate(trunk.ends)]
    return found


def _port_text(job: Job, switch: str, port: int) -> str:
    return f"{port} of {switch}" if len(job.switches) > 1 else str(port)


def _ports(job: Job) -> Found:
    for field, end in _endpoints(job):
        home = _switch_of(job, end)
        if home is not None:
            yield from _exists(home, f"{field}.port", end.port)


def _exists(switch: SwitchSpec, field: str, port: int) -> Found:
    if port not in switch.ports:
        yield field, f"switch {switch.name} has no port {port}; expected one of {_ranges(set(switch.ports))}"


def _trunks(job: Job) -> Found:
    switches = {switch.name: switch for switch in job.switches}
    known: list[int] = []
    for t, trunk in enumerate(job.trunks):
        field = f"trunks[{t}]"
        for i, (name, port) in enumerate(trunk.ends):
            if name in switches:
                yield from _exists(switches[name], f"{field}.ports[{i}]", port)
            else:
                yield f"{field}.between[{i}]", f"there is no switch {name!r}; expected one of {_names(set(switches))}"
        if set(trunk.between) <= set(switches):
            known.append(t)
    graph = without_unknown(switches, [job.trunks[t].ends for t in known])
    for closing in graph.redundant_trunks():
        t = known[closing]
        one, other = job.trunks[t].between
        joined = "connects a switch to itself" if one == other else f"{one} and {other} are already connected"
        yield f"trunks[{t}].between", f"{joined}: flooded frames would loop forever; remove the trunk"
    for name in graph.unreachable():
        index = next(i for i, switch in enumerate(job.switches) if switch.name == name)
        yield _path(job, index), f"no trunk connects switch {name} to {graph.switches[0]}; add one under trunks"


def _has_traffic(job: Job) -> Found:
    if not job.groups and not job.rdma:
        yield "groups", "is missing, so nothing is replicated; add it, or queue pairs under rdma"


def _ranks(job: Job) -> Found:
    ranks = {name: group.name for group in job.groups for name in group.ring}
    for i, host in enumerate(job.hosts):
        if host.ipv4 is None and host.name in ranks:
            yield f"hosts[{i}].ip", f"is missing: host {host.name} is a rank of group {ranks[host.name]}; add it"
        elif not host.addresses:
            yield f"hosts[{i}].ip", "is missing; add it, or ipv6 if all of its traffic is RoCEv2 over IPv6"


def _groups(job: Job) -> Found:
    hosts = {host.name for host in job.hosts}
    shadows = {shadow.name for shadow in job.shadows}
    listening: dict[tuple[str, int], str] = {}
    for g, group in enumerate(job.groups):
        yield from _repeated(((f"groups[{g}].ring[{i}]", name) for i, name in enumerate(group.ring)), "rank")
        yield from _repeated(((f"groups[{g}].shadows[{i}]", n) for i, n in enumerate(group.shadows)), "shadow")
        for i, name in enumerate(group.ring):
            if name not in hosts:
                yield f"groups[{g}].ring[{i}]", f"there is no host {name!r}; expected one of {_names(hosts)}"
        for i, name in enumerate(group.shadows):
            if name not in shadows:
                yield f"groups[{g}].shadows[{i}]", f"there is no shadow {name!r}; expected one of {_names(shadows)}"
        if group.tcp_port + group.channels - 1 > 65535:
            yield f"groups[{g}].tcp_port", f"{group.channels} channels from {group.tcp_port} up exceed port 65535"
        # Flows overlap if two groups make the same host listen on the same port.
        for name in dict.fromkeys(group.ring):
            for port in range(group.tcp_port, group.tcp_port + group.channels):
                other = listening.setdefault((name, port), group.name)
                if other != group.name:
                    message = f"host {name} already listens on port {port} for group {other}: the flows overlap"
                    yield f"groups[{g}].tcp_port", message


def _redundancy(job: Job) -> Found:
    hops = job.redundancy.hops
    yield from _repeated(((f"redundancy.hops[{i}]", hop) for i, hop in enumerate(hops)), "hop")
    if 0 not in hops:
        yield "redundancy.hops", "lacks hop 0, which carries each reduced byte first; add it"
    for i, hop in enumerate(hops):
        for group in job.groups:
            count = len(group.ring) - 1
            if hop < count:
                continue
            has = f"ring of group {group.name} has {len(group.ring)} ranks and therefore {count} hop{'s' * (count > 1)}"
            advice = f"expected 0..{count - 1}"
            if count == 1:
                advice = "for repair give the group a second shadow node"
            yield f"redundancy.hops[{i}]", f"there is no hop {hop}: the {has}; {advice}"
    entries = _edges(job) * min(2, len(hops))
    if len(hops) > 1 and entries > MAX_FLOWS:
        message = (
            f"{_edges(job)} flows with a codepoint for repair need {entries} entries, but a switch holds {MAX_FLOWS}"
        )
        yield "redundancy.hops", f"{message}; remove it, or use fewer channels"


def _edges(job: Job) -> int:
    return sum(len(group.ring) * group.channels for group in job.groups)


def _flow_numbers(job: Job) -> Found:
    last = job.first_flow_id + _edges(job) - 1
    if last >= MAX_FLOWS:
        yield (
            "first_flow_id",
            f"flows {job.first_flow_id}..{last} exceed {MAX_FLOWS - 1}, the highest that a switch supports",
        )


def _replica_ports(job: Job) -> Found:
    last = job.first_flow_id + _edges(job) - 1
    for i, shadow in enumerate(job.shadows):
        if shadow.base_port + last > 65535:
            yield f"shadows[{i}].base_port", f"{shadow.base_port} + flow {last} exceeds port 65535"


def _collisions(a: Job, b: Job) -> Found:
    """Yield the collisions of job `b` with job `a`, with paths in `b`."""
    if a.name == b.name:
        yield "name", f"two jobs are named {a.name!r}; expected unique names"
    elif a.name.casefold() == b.name.casefold():
        # Server names in certificates are compared without case.
        yield "name", f"{b.name!r} differs from job {a.name!r} only in case; expected another name"
    if a.id == b.id:
        yield "id", f"job {a.name!r} already has number {a.id}"
    if _wiring(a) != _wiring(b):
        several = len(b.switches) > 1
        what = "switches and trunks" if several else "switch"
        yield ("switches" if several else "switch",
               f"differ{'' if several else 's'} from the {what} of job {a.name!r}; "
               f"jobs installed together must describe the same {what}")  # fmt: skip
    if a.network.mtu != b.network.mtu:
        yield "network.mtu", f"{b.network.mtu}, job {a.name!r} has {a.network.mtu} on the same switch"
    mine, theirs = _endpoints(b), [end for _, end in _endpoints(a)]
    ports = {_port_text(a, a.switch_of(end).name, end.port): end.name for end in theirs}
    for field, end in mine:
        port = _port_text(b, b.switch_of(end).name, end.port)
        if port in ports:
            yield f"{field}.port", f"switch port {port} belongs to {ports[port]} of job {a.name!r}"
    macs = {end.mac: end.name for end in theirs}
    for field, end in mine:
        if end.mac in macs:
            yield f"{field}.mac", f"MAC address {end.mac} belongs to {macs[end.mac]} of job {a.name!r}"
    owners = {address: field for field, address in _addresses(a)}
    for field, address in _addresses(b):
        if address in owners:
            yield field, f"address {address} belongs to {_owner(a, owners[address])} of job {a.name!r}"
    rids = {shadow.rid: shadow.name for shadow in a.shadows}
    for i, shadow in enumerate(b.shadows):
        if shadow.rid in rids:
            yield f"shadows[{i}].rid", f"replica id {shadow.rid} belongs to {rids[shadow.rid]} of job {a.name!r}"
    first_a, first_b = a.first_flow_id, b.first_flow_id
    last_a, last_b = first_a + _edges(a) - 1, first_b + _edges(b) - 1
    if first_a <= last_b and first_b <= last_a and _edges(a) and _edges(b):
        yield ("first_flow_id",
               f"flows {first_b}..{last_b} overlap flows {first_a}..{last_a} of job {a.name!r}; "
               f"expected {last_a + 1} or more")  # fmt: skip
    yield from queue_pair_collisions(a, b)


def _owner(job: Job, field: str) -> str:
    return next(end.name for path, end in _endpoints(job) if field.startswith(f"{path}."))


def _wiring(job: Job) -> tuple[object, ...]:
    switches = {switch.name: (switch.device_id, frozenset(switch.ports)) for switch in job.switches}
    return switches, {frozenset(trunk.ends) for trunk in job.trunks}


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _ranges(numbers: set[int]) -> str:
    ordered = sorted(numbers)
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}..{ordered[-1]}"
    return ", ".join(map(str, ordered))


assert MAX_FLOWS < FLOOD_GROUP, "multicast groups of flows (flow id + 1) must stay below the flood group"
