"""The desired state of a switch for a set of jobs: pure, from validated jobs to entities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from controlplane.entities import DigestConfig, Entity, MulticastGroup, Replica, SwitchState, TableEntry
from jobspec.checks import problems_between
from jobspec.errors import JobError, Problem
from jobspec.model import Flow, Host, Job, QueuePair, ShadowNode
from jobspec.rdma_checks import too_many
from p4src.constants import FLOOD_GROUP, MAX_FLOWS, MAX_SHADOWS
from p4src.names import Action, Digest, MatchField, Param, Table

FLOW_START_DIGEST = DigestConfig(
    digest=str(Digest.FLOW_START_T),
    # Each connection is sent at once, in a separate list: the ISN must arrive before the next switch fails.
    max_list_size=1,
    max_timeout_ns=0,
    # A repeated SYN within a second is not news.
    ack_timeout_ns=1_000_000_000,
)


def desired_state(jobs: Sequence[Job], switch: str | None = None) -> SwitchState:
    """Return the state that one switch of `jobs` must have; without jobs it is empty.

    A flow or queue pair is replicated only at the switch that its source is attached to, so that each byte is
    replicated once, however many switches it passes. From there its replicas, already rewritten, are forwarded to
    their shadow like any frame to a known MAC address.

    The result does not include `flow_base`, whose entries belong to the running controller (see `controlplane.plan`).

    Args:
        jobs: the jobs, which describe the same switches.
        switch: name of the switch; None if there is only one.

    Raises:
        JobError: jobs collide, need more shadows, flow entries or queue pairs than a switch can serve, or `switch` is
            not one of theirs.
    """
    problems = [problem for _, problem in problems_between(jobs)]
    if problems:
        raise JobError(problems)
    if not jobs:
        return SwitchState()
    name = jobs[0].switch_named(switch).name
    shadows = sum(len(_shadows_served(job, name)) for job in jobs)
    if shadows > MAX_SHADOWS:
        raise JobError([Problem("shadows", f"{shadows} on one switch, which can serve {MAX_SHADOWS}")])
    entries = sum(min(2, len(flow.hops)) for job in jobs for flow in _flows(job, name))
    if entries > MAX_FLOWS:
        message = (
            f"the flows on one switch need {entries} entries, but it holds {MAX_FLOWS}: each flow that is replicated"
        )
        raise JobError([Problem("redundancy.hops", f"{message} for repair too needs two")])
    complaint = too_many(Counter(pair.version for job in jobs for pair in _queue_pairs(job, name)))
    if complaint:
        raise JobError([Problem("rdma", complaint)])
    return SwitchState.of(_entities(jobs, name))


def device_id_of(jobs: Sequence[Job], switch: str | None = None) -> int:
    """Return the P4Runtime device id that `jobs` (at least one) give to `switch`, their only one for None.

    Raises:
        JobError: `switch` is not one of theirs.
    """
    return jobs[0].switch_named(switch).device_id


def _shadows_served(job: Job, switch: str) -> list[ShadowNode]:
    """Return the shadows that are attached to `switch` or get replicas from it."""
    replicated: list[Flow | QueuePair] = [*_flows(job, switch), *_queue_pairs(job, switch)]
    used = {shadow.name for each in replicated for shadow in each.shadows}
    return [shadow for shadow in job.shadows if shadow.name in used or job.switch_of(shadow).name == switch]


def _flows(job: Job, switch: str) -> list[Flow]:
    return [flow for flow in job.flows if job.switch_of(flow.source).name == switch]


def _queue_pairs(job: Job, switch: str) -> list[QueuePair]:
    return [pair for pair in job.queue_pairs if job.switch_of(pair.source).name == switch]


def _entities(jobs: Sequence[Job], switch: str) -> Iterator[Entity]:
    yield FLOW_START_DIGEST
    # Shadows get no flooded frames: they accept only replicas.
    ports = {host.port for job in jobs for host in job.hosts if job.switch_of(host).name == switch}
    ports |= set(jobs[0].trunk_graph.ports(switch))
    yield MulticastGroup(FLOOD_GROUP, frozenset(Replica(port, 0) for port in ports))
    for job in jobs:
        ends: list[Host | ShadowNode] = [*job.hosts, *job.shadows]
        for end in ends:
            match = {MatchField.DST_ADDR: mac_number(end.mac)}
            port = job.port_towards(switch, end)
            yield TableEntry.make(Table.L2_FORWARD, match, Action.SET_PORT, {Param.PORT: port})
        for shadow in _shadows_served(job, switch):
            if job.switch_of(shadow).name == switch:
                ingress = {MatchField.INGRESS_PORT: shadow.port}
                yield TableEntry.make(Table.SHADOW_PORTS, ingress, Action.DROP_FROM_SHADOW)
            address = {
                Param.MAC: mac_number(shadow.mac),
                Param.IP: int(shadow.ip),
                Param.BASE_PORT: shadow.base_port,
            }
            yield TableEntry.make(Table.SHADOW, {MatchField.RID: shadow.rid}, Action.TO_SHADOW, address)
        for flow in _flows(job, switch):
            yield _replicate(flow, job.dscp.primary)
            if len(flow.hops) > 1:
                # The same flow id: ISN and source port come from the SYN, which has the primary codepoint.
                yield _replicate(flow, job.dscp.redundant)
            yield _group(job, switch, flow)
        for pair in _queue_pairs(job, switch):
            yield _replicate_rdma(pair)
            yield _group(job, switch, pair)


def _replicate(flow: Flow, dscp: int) -> TableEntry:
    match = {
        MatchField.SRC_ADDR: int(flow.source.ip),
        MatchField.DST_ADDR: int(flow.target.ip),
        MatchField.DST_PORT: flow.tcp_port,
        MatchField.DSCP: dscp,
    }
    params = {Param.FLOW_ID: flow.id, Param.GROUP: flow.multicast_group}
    return TableEntry.make(Table.REPLICATE, match, Action.REPLICATE_FLOW, params)


def _replicate_rdma(pair: QueuePair) -> TableEntry:
    match = {
        MatchField.SRC_ADDR: int(pair.source_address),
        MatchField.DST_ADDR: int(pair.target_address),
        MatchField.DESTINATION_QP: pair.number,
    }
    params = {Param.GROUP: pair.multicast_group}
    if pair.version == 4:
        return TableEntry.make(Table.REPLICATE_RDMA_IPV4, match, Action.REPLICATE_QP_IPV4, params)
    return TableEntry.make(Table.REPLICATE_RDMA_IPV6, match, Action.REPLICATE_QP_IPV6, params)


def _group(job: Job, switch: str, flow: Flow | QueuePair) -> MulticastGroup:
    # The original is a member too: on v1model a group overrides the unicast port. Several members may leave through
    # one trunk port, each with its own replica id.
    copies = (Replica(job.port_towards(switch, shadow), shadow.rid) for shadow in flow.shadows)
    original = Replica(job.port_towards(switch, flow.target), 0)
    return MulticastGroup(flow.multicast_group, frozenset((original, *copies)))


def mac_number(mac: str) -> int:
    """Return a MAC address in text form as a number."""
    return int(mac.replace(":", ""), 16)
