"""What a switch must hold for a set of jobs: pure, from validated jobs to entities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controlplane.entities import DigestConfig, Entity, MulticastGroup, Replica, SwitchState, TableEntry
from jobspec.checks import problems_between
from jobspec.errors import JobError, Problem
from jobspec.model import Flow, Host, Job, ShadowNode
from p4src.constants import FLOOD_GROUP, MAX_SHADOWS
from p4src.names import Action, Digest, MatchField, Param, Table

FLOW_START_DIGEST = DigestConfig(
    digest=str(Digest.FLOW_START_T),
    # A list of its own for every connection, at once: the ISN is wanted before the next switch fails.
    max_list_size=1,
    max_timeout_ns=0,
    # A repeated SYN within a second tells nothing new.
    ack_timeout_ns=1_000_000_000,
)


def desired_state(jobs: Sequence[Job]) -> SwitchState:
    """Return what the switch that `jobs` share must hold; no jobs want an empty switch.

    `flow_base` is not in it: its entries belong to the running controller (see `controlplane.reconcile`).

    Raises:
        JobError: jobs collide, or need more shadows than a switch can serve.
    """
    problems = [problem for _, problem in problems_between(jobs)]
    shadows = sum(len(job.shadows) for job in jobs)
    if shadows > MAX_SHADOWS:
        problems.append(Problem("shadows", f"{shadows} on one switch, which can serve {MAX_SHADOWS}"))
    if problems:
        raise JobError(problems)
    return SwitchState.of(_entities(jobs)) if jobs else SwitchState()


def device_id_of(jobs: Sequence[Job]) -> int:
    """Return the P4Runtime device id that `jobs` (at least one, all on the same switch) name."""
    return jobs[0].switch.device_id


def _entities(jobs: Sequence[Job]) -> Iterator[Entity]:
    yield FLOW_START_DIGEST
    hosts = frozenset(Replica(host.port, 0) for job in jobs for host in job.hosts)
    yield MulticastGroup(FLOOD_GROUP, hosts)
    for job in jobs:
        ends: list[Host | ShadowNode] = [*job.hosts, *job.shadows]
        for end in ends:
            match = {MatchField.DST_ADDR: mac_number(end.mac)}
            yield TableEntry.make(Table.L2_FORWARD, match, Action.SET_PORT, {Param.PORT: end.port})
        for shadow in job.shadows:
            port = {MatchField.INGRESS_PORT: shadow.port}
            yield TableEntry.make(Table.SHADOW_PORTS, port, Action.DROP_FROM_SHADOW)
            address = {
                Param.MAC: mac_number(shadow.mac),
                Param.IP: int(shadow.ip),
                Param.BASE_PORT: shadow.base_port,
            }
            yield TableEntry.make(Table.SHADOW, {MatchField.RID: shadow.rid}, Action.TO_SHADOW, address)
        for flow in job.flows:
            yield _replicate(job, flow)
            yield _group(flow)


def _replicate(job: Job, flow: Flow) -> TableEntry:
    match = {
        MatchField.SRC_ADDR: int(flow.source.ip),
        MatchField.DST_ADDR: int(flow.target.ip),
        MatchField.DST_PORT: flow.tcp_port,
        MatchField.DSCP: job.dscp.primary,
    }
    params = {Param.FLOW_ID: flow.id, Param.GROUP: flow.multicast_group}
    return TableEntry.make(Table.REPLICATE, match, Action.REPLICATE_FLOW, params)


def _group(flow: Flow) -> MulticastGroup:
    # The original is a member too: on v1model a group overrides the unicast port.
    copies = (Replica(shadow.port, shadow.rid) for shadow in flow.shadows)
    return MulticastGroup(flow.multicast_group, frozenset((Replica(flow.target.port, 0), *copies)))


def mac_number(mac: str) -> int:
    """Return a MAC address in text form as a number."""
    return int(mac.replace(":", ""), 16)
