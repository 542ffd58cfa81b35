"""Entities as text: addresses in their usual notation, with the names that a job gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from controlplane.desired import mac_number
from controlplane.entities import DigestConfig, Entity, MulticastGroup, TableEntry
from controlplane.plan import Update
from jobspec.model import Flow, Host, Job, QueuePair, ShadowNode
from p4src.constants import FLOOD_GROUP
from p4src.names import MatchField, Param, Table


@dataclass(frozen=True)
class Names:
    """Names of hosts, shadows and flows; empty if no job is known."""

    ports: Mapping[int, str] = field(default_factory=dict)
    """Switch port -> host or shadow."""
    macs: Mapping[int, str] = field(default_factory=dict)
    """MAC address -> host or shadow."""
    ips: Mapping[IPv4Address | IPv6Address, str] = field(default_factory=dict)
    """IP address -> host or shadow."""
    rids: Mapping[int, str] = field(default_factory=dict)
    """Replica id -> shadow."""
    flows: Mapping[int, str] = field(default_factory=dict)
    """Flow id -> e.g. ``digits/dp0 r0->r1 channel 0``."""
    groups: Mapping[int, str] = field(default_factory=dict)
    """Multicast group -> its flow or queue pair."""

    @classmethod
    def of(cls, jobs: Sequence[Job], switch: str | None = None) -> Names:
        """Return the names in `jobs`, with the ports of `switch` (None: the only one).

        A trunk's port is named after the switch at its other end.

        Raises:
            JobError: `switch` is not a switch of the jobs.
        """
        ports: dict[int, str] = {}
        macs: dict[int, str] = {}
        ips: dict[IPv4Address | IPv6Address, str] = {}
        rids: dict[int, str] = {}
        flows: dict[int, str] = {}
        groups = {FLOOD_GROUP: "flood"}
        for job in jobs:
            ends: list[Host | ShadowNode] = [*job.hosts, *job.shadows]
            here = job.switch_named(switch).name
            ports |= {port: f"to {other}" for port, other in job.trunk_graph.ports(here).items()}
            ports |= {end.port: end.name for end in ends if job.switch_of(end).name == here}
            macs |= {mac_number(end.mac): end.name for end in ends}
            ips |= {address: host.name for host in job.hosts for _, address in host.addresses}
            ips |= {shadow.ip: shadow.name for shadow in job.shadows}
            rids |= {shadow.rid: shadow.name for shadow in job.shadows}
            flows |= {flow.id: _flow_name(job, flow) for flow in job.flows}
            groups |= {flow.multicast_group: _flow_name(job, flow) for flow in job.flows}
            groups |= {pair.multicast_group: _pair_name(job, pair) for pair in job.queue_pairs}
        return cls(ports, macs, ips, rids, flows, groups)


def _flow_name(job: Job, flow: Flow) -> str:
    ends = f"{flow.source.name}->{flow.target.name}"
    return f"{job.name}/{flow.group.name} {ends} channel {flow.channel}"


def _pair_name(job: Job, pair: QueuePair) -> str:
    return f"{job.name} {pair.source.name}->{pair.target.name} queue pair {pair.number}"


def describe_update(update: Update, names: Names) -> str:
    """Return an update in one line."""
    text = f"{update.change} {describe(update.entity, names)}"
    if update.before is not None and update.before != update.entity:
        text += f" (was {_effect(update.before, names)})"
    return text


def describe(entity: Entity, names: Names) -> str:
    """Return an entity in one line, e.g. ``shadow_ports ingress_port 9 (sh0): drop_from_shadow``."""
    if isinstance(entity, TableEntry):
        return f"{entity.table} {match_text(entity, names)}: {_effect(entity, names)}"
    if isinstance(entity, MulticastGroup):
        return f"group {group_text(entity, names)}: {_effect(entity, names)}"
    return f"digest {entity.digest}: {_effect(entity, names)}"


def match_text(entry: TableEntry, names: Names) -> str:
    """Return the key of an entry."""
    if entry.table == Table.REPLICATE:
        source, target, port, dscp = match_values(entry, names).values()
        return f"{source} -> {target} port {port} dscp {dscp}"
    if entry.table in (Table.REPLICATE_RDMA_IPV4, Table.REPLICATE_RDMA_IPV6):
        source, target, queue_pair = match_values(entry, names).values()
        return f"{source} -> {target} queue pair {queue_pair}"
    return ", ".join(f"{name} {value}" for name, value in match_values(entry, names).items())


def action_text(entry: TableEntry, names: Names) -> str:
    """Return the action of an entry with its parameters."""
    params = ", ".join(f"{name} {value}" for name, value in param_values(entry, names).items())
    return f"{entry.action} {params}".rstrip()


def group_text(group: MulticastGroup, names: Names) -> str:
    """Return a group's number and its flow or queue pair."""
    return f"{group.id}{_named(names.groups.get(group.id))}"


def replicas_text(group: MulticastGroup, names: Names) -> str:
    """Return the copies of a group."""
    return ", ".join(
        f"port {copy.port}{_named(names.ports.get(copy.port))}" + (f" rid {copy.rid}" if copy.rid else "")
        for copy in sorted(group.replicas)
    )


def match_values(entry: TableEntry, names: Names) -> dict[str, str]:
    """Return field -> value in the usual notation, source before destination."""
    order = [MatchField.SRC_ADDR, *MatchField]
    fields = sorted(entry.match, key=lambda pair: order.index(MatchField(pair[0])))
    return {name: _value(entry.table, name, value, names) for name, value in fields}


def param_values(entry: TableEntry, names: Names) -> dict[str, str]:
    """Return parameter -> value in the usual notation."""
    params = sorted(entry.params, key=lambda pair: list(Param).index(Param(pair[0])))
    return {name: _value("", name, value, names) for name, value in params}


def _effect(entity: Entity, names: Names) -> str:
    if isinstance(entity, TableEntry):
        return action_text(entity, names)
    if isinstance(entity, MulticastGroup):
        return replicas_text(entity, names)
    return digest_text(entity)


def digest_text(config: DigestConfig) -> str:
    """Return the settings of a digest."""
    return (
        f"lists of {config.max_list_size}, sent after {config.max_timeout_ns / 1e6:g} ms, "
        f"repeated after {config.ack_timeout_ns / 1e6:g} ms"
    )


def _value(table: str, name: str, value: int, names: Names) -> str:
    if name == Param.MAC or (table == Table.L2_FORWARD and name == MatchField.DST_ADDR):
        return ":".join(f"{byte:02x}" for byte in value.to_bytes(6, "big")) + _named(names.macs.get(value))
    if table == Table.REPLICATE_RDMA_IPV6 and name in (MatchField.SRC_ADDR, MatchField.DST_ADDR):
        return _address(IPv6Address(value), names)
    if name in (Param.IP, MatchField.SRC_ADDR, MatchField.DST_ADDR):
        return _address(IPv4Address(value), names)
    if name in (Param.PORT, MatchField.INGRESS_PORT):
        return str(value) + _named(names.ports.get(value))
    if name == MatchField.RID:
        return str(value) + _named(names.rids.get(value))
    if name == Param.FLOW_ID:
        return str(value) + _named(names.flows.get(value))
    return str(value)


def _address(address: IPv4Address | IPv6Address, names: Names) -> str:
    return str(address) + _named(names.ips.get(address))


def _named(name: str | None) -> str:
    return f" ({name})" if name else ""
