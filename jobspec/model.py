"""The job file as validated objects: ranks, destinations of replicas, and the testbed's workload."""

from __future__ import annotations

from functools import cached_property
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from checkmate_common.fields import Address, Dscp, Mac, Name, Strict, SwitchPort, check_address, listed_ports
from checkmate_common.recovery.state import StateManifest, StateRules, default_state
from checkmate_common.stream.frame import HEADER_BYTES
from checkmate_common.stream.schedule import DEFAULT_FRAME_PAYLOAD, FlowShape
from jobspec.errors import JobError, Problem
from jobspec.store import StoreSpec
from jobspec.trunks import TrunkGraph
from jobspec.workload import ChangeSpec as ChangeSpec
from jobspec.workload import OptimizerSpec as OptimizerSpec
from jobspec.workload import ScheduleSpec as ScheduleSpec
from jobspec.workload import Workload as Workload
from p4src.constants import MAX_FLOWS

IPV4_TCP_HEADERS = 40
"""Bytes of an IPv4 and a TCP header without options: MSS = MTU - 40 (RFC 9293, section 3.7.1)."""
FIRST_QUEUE_PAIR_GROUP = MAX_FLOWS + 1
"""First multicast group of RoCEv2 queue pairs; those of flows are below."""
MAX_QUEUE_PAIR = (1 << 24) - 1
"""Largest number of a queue pair (24 bits in the BTH, InfiniBand Architecture volume 1, section 9.2)."""


class SwitchSpec(Strict):
    """A switch that the job's hosts and shadow nodes are attached to."""

    name: Name = "s1"
    """Name in the fabric and in reports."""
    device_id: int = Field(default=1, ge=1)
    """P4Runtime device id."""
    ports: Annotated[list[SwitchPort], BeforeValidator(listed_ports), Field(min_length=1)]
    """Ports that exist; a single number n is short for 1..n."""


class Trunk(Strict):
    """A link between two switches."""

    between: list[Name] = Field(min_length=2, max_length=2)
    """The switches."""
    ports: list[SwitchPort] = Field(min_length=2, max_length=2)
    """The port at each, in the same order."""

    @property
    def ends(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Switch and port at both ends."""
        return (self.between[0], self.ports[0]), (self.between[1], self.ports[1])


class Network(Strict):
    """Properties of the links."""

    mtu: int = Field(default=1500, ge=576, le=9216)
    """Largest IP packet in bytes, the same on all links."""


class DscpSpec(Strict):
    """Codepoints that tell the switch what to replicate."""

    primary: Dscp = 3
    """Hop 0 of the all-gather: each reduced byte exactly once."""
    redundant: Dscp = 7
    """Later hops, for repair."""


class RedundancySpec(Strict):
    """Which hops of the all-gather are replicated: each repeats all reduced bytes, on other flows."""

    hops: list[Annotated[int, Field(ge=0, le=62)]] = Field(default_factory=lambda: [0], min_length=1)
    """Hop 0, and later ones for repair: h hops cost h gradients' worth of replica bytes per step."""


class Host(Strict):
    """A host that a rank runs on."""

    name: Name
    """Unique name."""
    switch: Name | None = None
    """Switch that it is attached to; None means the job's only one."""
    port: SwitchPort
    """Port of the switch."""
    mac: Mac
    """MAC address of the training NIC."""
    ipv4: IPv4Address | None = Field(default=None, alias="ip")
    """IPv4 address, None if there is none; use `ip` if there must be one."""
    ipv6: Annotated[IPv6Address | None, BeforeValidator(check_address)] = None
    """IPv6 address, which RoCEv2 may use; None if there is none."""

    @property
    def ip(self) -> IPv4Address:
        """Address of the rank; in the testbed its kernel does not own it.

        Raises:
            JobError: the host has none (it uses only RoCEv2 over IPv6 and is not a rank of a ring).
        """
        if self.ipv4 is None:
            raise JobError([Problem("hosts", f"host {self.name} has no ip; add it")])
        return self.ipv4

    @property
    def addresses(self) -> tuple[tuple[str, IPv4Address | IPv6Address], ...]:
        """Field and value of each address that the host has."""
        both = (("ip", self.ipv4), ("ipv6", self.ipv6))
        return tuple((field, address) for field, address in both if address is not None)

    @model_serializer(mode="wrap")
    def _written(self, inner: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write only what a job file contains."""
        plain = {"ip" if key == "ipv4" else key: value for key, value in inner(self).items()}
        return {key: value for key, value in plain.items() if value is not None}


class ShadowNode(Strict):
    """A CPU node that receives replicas."""

    name: Name
    """Unique name."""
    switch: Name | None = None
    """Switch that it is attached to; None means the job's only one."""
    port: SwitchPort
    """Port of the switch."""
    mac: Mac
    """MAC address that replicas are sent to."""
    ip: IPv4Address
    """Destination of replicas; the node's kernel must not own it (it would answer with a reset)."""
    base_port: int = Field(default=20000, ge=1024, le=65535)
    """Replicas of flow f have TCP destination port base_port + f."""
    rid: int = Field(default=1, ge=1, le=65535)
    """Replica id: the receiver's identity in the switch's multicast groups."""


class Group(Strict):
    """A data-parallel group: ranks that hold equal parameters and all-reduce their gradients in a ring."""

    name: Name
    """Unique name."""
    id: int = Field(default=0, ge=0, le=65535)
    """Number in frame headers, unique within the job."""
    ring: list[Name] = Field(min_length=2, max_length=64)
    """Hosts in ring order: rank r is the r-th, its successor the next."""
    channels: int = Field(default=1, ge=1, le=16)
    """TCP connections per ring edge; each carries its own part of every bucket."""
    tcp_port: int = Field(default=4000, ge=1024, le=65535)
    """Channel c of a rank listens on tcp_port + c."""
    shadows: list[Name] = Field(min_length=1)
    """Shadow nodes that receive this group's replicas."""


class QueuePairSpec(Strict):
    """RoCEv2 packets of one direction that are replicated: all packets to one queue pair."""

    source: Address
    """Address of the host that sends, under `hosts`."""
    target: Address
    """Address of the host that receives, of the same family."""
    queue_pair: int = Field(ge=2, le=MAX_QUEUE_PAIR)
    """Destination queue pair in the BTH; 0 and 1 are for management."""
    shadows: list[Name] = Field(min_length=1)
    """Shadow nodes that receive the copies, unchanged except for the destination MAC address."""


class Framing(Strict):
    """How chunks are framed in a flow's stream."""

    payload_bytes: int = Field(default=DEFAULT_FRAME_PAYLOAD, ge=512, le=1 << 30)
    """Largest payload of one frame in bytes, each with its own CRC32C."""


_WHERE_SAID = ("switch", "switches", "trunks", "groups", "rdma")
"""Parts of a job that are omitted from a file if empty."""


class Job(Strict):
    """One training job and its replication."""

    version: Literal[1]
    """Version of this file format."""
    name: Name
    """Unique name of the job."""
    id: int = Field(default=1, ge=0, le=65535)
    """Number in frame headers."""
    sole_switch: SwitchSpec | None = Field(default=None, alias="switch")
    """The switch, if there is one; use `switch` or `switches`."""
    several_switches: list[SwitchSpec] = Field(default_factory=list, alias="switches")
    """The switches, if there are several; use `switches`."""
    trunks: list[Trunk] = Field(default_factory=list)
    """Links between switches; together they form a tree."""
    network: Network = Field(default_factory=Network)
    """The links."""
    dscp: DscpSpec = Field(default_factory=DscpSpec)
    """Codepoints."""
    redundancy: RedundancySpec = Field(default_factory=RedundancySpec)
    """Hops that are replicated."""
    hosts: list[Host] = Field(min_length=2)
    """Hosts; a job may declare more than its rings use."""
    shadows: list[ShadowNode] = Field(min_length=1)
    """Shadow nodes."""
    first_flow_id: int = Field(default=0, ge=0)
    """Number of the first flow; jobs that share a switch need disjoint ranges."""
    groups: list[Group] = Field(default_factory=list)
    """Data-parallel groups that all-reduce over TCP; a job may have queue pairs instead, or both."""
    first_queue_pair_id: int = Field(default=0, ge=0)
    """Number of the first queue pair under `rdma`; jobs that share a switch need disjoint ranges."""
    rdma: list[QueuePairSpec] = Field(default_factory=list)
    """RoCEv2 traffic to replicate."""
    framing: Framing = Field(default_factory=Framing)
    """Frame format."""
    store: StoreSpec = Field(default_factory=StoreSpec)
    """How recovery points are stored."""
    digests: bool = False
    """Ranks send digests of parameters and optimizer state each step; a step is published only if the shadow's are
    equal."""
    workload: Workload = Field(default_factory=Workload)
    """What the testbed trains."""
    state: StateRules = Field(default_factory=default_state)
    """Origin of each object of the framework's state, by name or pattern; if given, it must cover all of them."""

    @model_serializer(mode="wrap")
    def _written(self, inner: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write only what a job file contains: one of ``switch`` and ``switches``, and no empty parts."""
        names = {"sole_switch": "switch", "several_switches": "switches"}
        plain = {names.get(key, key): value for key, value in inner(self).items()}
        plain["shadows"] = [{k: v for k, v in end.items() if (k, v) != ("switch", None)} for end in plain["shadows"]]
        if not self.rdma:
            del plain["first_queue_pair_id"]
        if self.state == default_state():
            del plain["state"]
        return {key: value for key, value in plain.items() if value or key not in _WHERE_SAID}

    @cached_property
    def state_manifest(self) -> StateManifest:
        """The declarations under `state`."""
        return StateManifest(self.state)

    @property
    def switches(self) -> tuple[SwitchSpec, ...]:
        """All switches, the same whether the file names one or several."""
        return (*([self.sole_switch] if self.sole_switch else []), *self.several_switches)

    @property
    def switch(self) -> SwitchSpec:
        """The job's only switch.

        Raises:
            JobError: there are several.
        """
        return self.switch_named(None)

    def switch_named(self, name: str | None) -> SwitchSpec:
        """Return the switch named `name`, or the only one for None.

        Raises:
            JobError: no switch has that name, or `name` is None and there are several.
        """
        if name is None and len(self.switches) == 1:
            return self.switches[0]
        for switch in self.switches:
            if switch.name == name:
                return switch
        known = ", ".join(switch.name for switch in self.switches)
        if name is None:
            message = f"job {self.name!r} has several switches ({known}); choose one with --switch"
        else:
            message = f"job {self.name!r} has no switch {name!r}; expected one of {known}"
        raise JobError([Problem("switch", message)])

    def switch_of(self, end: Host | ShadowNode) -> SwitchSpec:
        """Return the switch that `end` is attached to."""
        return self.switch_named(end.switch)

    @cached_property
    def trunk_graph(self) -> TrunkGraph:
        """How trunks connect the switches."""
        return TrunkGraph(tuple(switch.name for switch in self.switches), tuple(trunk.ends for trunk in self.trunks))

    def port_towards(self, switch: str, end: Host | ShadowNode) -> int:
        """Return the port through which `switch` reaches `end`: the end's own, or that of the trunk on the path."""
        home = self.switch_of(end).name
        return end.port if home == switch else self.trunk_graph.port_towards(switch, home)

    @property
    def replicated_dscps(self) -> str:
        """Codepoints that are replicated, as text: ``3``, or ``3 and 7`` with redundant hops."""
        return (
            f"{self.dscp.primary} and {self.dscp.redundant}"
            if len(self.redundancy.hops) > 1
            else str(self.dscp.primary)
        )

    @property
    def mss(self) -> int:
        """Largest TCP payload in bytes."""
        return self.network.mtu - IPV4_TCP_HEADERS

    def host(self, name: str) -> Host:
        """Return the host named `name`; KeyError if there is none."""
        return self._hosts_by_name[name]

    def shadow(self, name: str) -> ShadowNode:
        """Return the shadow node named `name`; KeyError if there is none."""
        return self._shadows_by_name[name]

    @cached_property
    def _hosts_by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def _shadows_by_name(self) -> dict[str, ShadowNode]:
        return {shadow.name: shadow for shadow in self.shadows}

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """All flows, numbered from `first_flow_id` in the order group, channel, rank."""
        flows: list[Flow] = []
        for group in self.groups:
            for channel in range(group.channels):
                for rank, source in enumerate(group.ring):
                    flows.append(
                        Flow(
                            id=self.first_flow_id + len(flows),
                            group=group,
                            channel=channel,
                            rank=rank,
                            source=self.host(source),
                            target=self.host(group.ring[(rank + 1) % len(group.ring)]),
                            shadows=tuple(self.shadow(name) for name in group.shadows),
                            frame_payload=self.framing.payload_bytes,
                            hops=tuple(sorted(self.redundancy.hops)),
                        )
                    )
        return tuple(flows)

    @cached_property
    def queue_pairs(self) -> tuple[QueuePair, ...]:
        """All queue pairs, numbered from `first_queue_pair_id` in the order of the file."""
        owners = {address: host for host in self.hosts for _, address in host.addresses}
        return tuple(
            QueuePair(
                id=self.first_queue_pair_id + index,
                source=owners[spec.source],
                target=owners[spec.target],
                source_address=spec.source,
                target_address=spec.target,
                number=spec.queue_pair,
                shadows=tuple(self.shadow(name) for name in spec.shadows),
            )
            for index, spec in enumerate(self.rdma)
        )


class Flow(Strict):
    """One TCP connection from a rank to its ring successor, on one channel."""

    id: int
    """Unique on the switch."""
    group: Group
    """Its DP group."""
    channel: int
    """Its channel."""
    rank: int
    """The sending rank."""
    source: Host
    """Host of the sending rank."""
    target: Host
    """Host of the successor."""
    shadows: tuple[ShadowNode, ...]
    """Shadow nodes that receive its replicas."""
    frame_payload: int
    """Largest payload of one frame in bytes."""
    hops: tuple[int, ...] = (0,)
    """Replicated hops of the all-gather in ascending order, from 0."""

    @property
    def tcp_port(self) -> int:
        """Port that the successor listens on."""
        return self.group.tcp_port + self.channel

    @property
    def multicast_group(self) -> int:
        """The flow's multicast group on the switch: one group per flow, as each has its own original egress port."""
        return self.id + 1

    @property
    def shape(self) -> FlowShape:
        """The flow's parameters for the stream arithmetic."""
        return FlowShape(
            ring_size=len(self.group.ring),
            rank=self.rank,
            channels=self.group.channels,
            channel=self.channel,
            header_bytes=HEADER_BYTES,
            frame_payload=self.frame_payload,
        )


class QueuePair(Strict):
    """The RoCEv2 packets from one host to a queue pair of another."""

    id: int
    """Unique on the switch."""
    source: Host
    """Host that sends."""
    target: Host
    """Host whose queue pair it is."""
    source_address: Address
    """Address of the sender, as it is in the packets."""
    target_address: Address
    """Address of the receiver, of the same family."""
    number: int
    """Number of the queue pair, 24 bits."""
    shadows: tuple[ShadowNode, ...]
    """Shadow nodes that receive its replicas."""

    @property
    def version(self) -> int:
        """IP version, 4 or 6."""
        return self.source_address.version

    @property
    def multicast_group(self) -> int:
        """The queue pair's multicast group on the switch."""
        return FIRST_QUEUE_PAIR_GROUP + self.id
