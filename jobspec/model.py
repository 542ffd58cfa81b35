"""The job file as validated objects: who trains, where replicas go, and what the testbed runs."""

from __future__ import annotations

import re
from functools import cached_property
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from jobspec.errors import JobError, Problem
from jobspec.frame import HEADER_BYTES
from jobspec.schedule import DEFAULT_FRAME_PAYLOAD, FlowShape
from jobspec.trunks import TrunkGraph

_MAC = re.compile(r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")
IPV4_TCP_HEADERS = 40
"""Bytes of an IPv4 and a TCP header without options: MSS = MTU - 40 (RFC 9293, section 3.7.1)."""


def _check_mac(value: str) -> str:
    mac = value.strip().lower().replace("-", ":")
    if not _MAC.match(mac):
        raise ValueError("expected a MAC address such as 02:00:00:00:00:01")
    if int(mac[:2], 16) & 1:
        raise ValueError("expected a unicast MAC address (the first byte is even)")
    return mac


def _check_dscp(value: int) -> int:
    if value & 0b11 != 0b11:
        raise ValueError(
            "expected a codepoint of pool 2 (xxxx11: 3, 7, 11, ... 63), which RFC 2474 leaves to local use"
        )
    return value


def _listed_ports(value: Any) -> Any:
    # `ports: 10` is short for ports 1..10. A number that is too large is refused as a port, not counted to.
    if isinstance(value, int) and not isinstance(value, bool):
        return list(range(1, value + 1)) if value <= MAX_PORT else [value]
    return value


Mac = Annotated[str, AfterValidator(_check_mac)]
"""Unicast MAC address, lower case with colons."""
Dscp = Annotated[int, Field(ge=0, le=63), AfterValidator(_check_dscp)]
"""Differentiated-services codepoint of pool 2."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]
"""Letters, digits, ``-`` and ``_``, beginning with a letter, at most 32."""
MAX_PORT = 510
"""Largest port number of a switch; 511 is BMv2's drop port."""
SwitchPort = Annotated[int, Field(ge=1, le=MAX_PORT)]
"""Port number of a switch."""


class _Strict(BaseModel):
    # extra="forbid": a misspelled key is an error with its line, not a silently ignored wish.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SwitchSpec(_Strict):
    """A switch that the job's hosts and shadow nodes are attached to."""

    name: Name = "s1"
    """Name in the fabric and in reports."""
    device_id: int = Field(default=1, ge=1)
    """P4Runtime device id."""
    ports: Annotated[list[SwitchPort], BeforeValidator(_listed_ports), Field(min_length=1)]
    """Ports that exist; a single number n is short for 1..n."""


class Trunk(_Strict):
    """A link between two switches."""

    between: list[Name] = Field(min_length=2, max_length=2)
    """The switches."""
    ports: list[SwitchPort] = Field(min_length=2, max_length=2)
    """The port at each, in the same order."""

    @property
    def ends(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Switch and port at both ends."""
        return (self.between[0], self.ports[0]), (self.between[1], self.ports[1])


class Network(_Strict):
    """Properties of the links."""

    mtu: int = Field(default=1500, ge=576, le=9216)
    """Largest IP packet in bytes, the same on all links."""


class DscpSpec(_Strict):
    """Codepoints that tell the switch what to replicate."""

    primary: Dscp = 3
    """Hop 0 of the all-gather: each reduced byte exactly once."""
    redundant: Dscp = 7
    """Later hops, for repair."""


class Host(_Strict):
    """A host that a rank runs on."""

    name: Name
    """Unique name."""
    switch: Name | None = None
    """Switch that it is attached to; None stands for the job's only one."""
    port: SwitchPort
    """Port of the switch."""
    mac: Mac
    """MAC address of the training NIC."""
    ip: IPv4Address
    """Address of the rank; in the testbed its kernel does not own it."""


class ShadowNode(_Strict):
    """A CPU node that receives replicas."""

    name: Name
    """Unique name."""
    switch: Name | None = None
    """Switch that it is attached to; None stands for the job's only one."""
    port: SwitchPort
    """Port of the switch."""
    mac: Mac
    """MAC address that replicas are sent to."""
    ip: IPv4Address
    """Replica address: replicas are sent to it, the node's kernel must not own it (it would answer with a reset)."""
    base_port: int = Field(default=20000, ge=1024, le=65535)
    """Replicas of flow f have TCP destination port base_port + f."""
    rid: int = Field(default=1, ge=1, le=65535)
    """Replica id: the receiver's identity in the switch's multicast groups."""


class Group(_Strict):
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


class Framing(_Strict):
    """How a chunk travels in a flow's stream."""

    payload_bytes: int = Field(default=DEFAULT_FRAME_PAYLOAD, ge=512, le=1 << 30)
    """Largest payload of one frame in bytes, each with its own CRC32C."""


OptionValue = float | int | bool | list[float]
"""Value of a keyword argument of an optimizer."""
_DEFAULT_OPTIONS: dict[str, OptionValue] = {"lr": 1e-3}


class OptimizerSpec(_Strict):
    """Optimizer of the workload."""

    name: Literal["AdamW", "Adam", "SGD", "RMSprop", "Adagrad"] = "AdamW"
    """Class of ``torch.optim``."""
    options: dict[str, OptionValue] = Field(default_factory=lambda: _DEFAULT_OPTIONS.copy())
    """Keyword arguments of the class."""


class ScheduleSpec(_Strict):
    """Learning-rate schedule: linear warm-up, then a cosine down to `floor` times the base rate."""

    warmup_steps: int = Field(default=0, ge=0)
    """Steps until the base rate is reached."""
    total_steps: int = Field(default=1000, ge=1)
    """Step at which the floor is reached."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Last factor of the base rate."""


class Workload(_Strict):
    """What the testbed trains: an MLP on scikit-learn's digits data set."""

    kind: Literal["digits-mlp"] = "digits-mlp"
    """The one workload so far."""
    hidden: list[Annotated[int, Field(ge=1, le=65536)]] = Field(default_factory=lambda: [128, 64], max_length=16)
    """Widths of the hidden layers."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout after each hidden layer (so that the ranks' RNG states matter)."""
    batch_size: int = Field(default=256, ge=1)
    """Global batch, shared out among the ranks."""
    bucket_bytes: int = Field(default=25 * 1024 * 1024, ge=4)
    """Cap of a gradient bucket in bytes (DDP's bucket_cap_mb)."""
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    """Optimizer."""
    schedule: ScheduleSpec = Field(default_factory=ScheduleSpec)
    """Learning-rate schedule."""


class Job(_Strict):
    """One training job and the replication that it asks for."""

    version: Literal[1]
    """Version of this file format."""
    name: Name
    """Unique name of the job."""
    id: int = Field(default=1, ge=0, le=65535)
    """Number in frame headers."""
    sole_switch: SwitchSpec | None = Field(default=None, alias="switch")
    """The switch, where there is one; read `switch` or `switches`."""
    several_switches: list[SwitchSpec] = Field(default_factory=list, alias="switches")
    """The switches, where there are several; read `switches`."""
    trunks: list[Trunk] = Field(default_factory=list)
    """Links between switches; together they form a tree."""
    network: Network = Field(default_factory=Network)
    """The links."""
    dscp: DscpSpec = Field(default_factory=DscpSpec)
    """Codepoints."""
    hosts: list[Host] = Field(min_length=2)
    """Hosts; a job may declare more than its rings use."""
    shadows: list[ShadowNode] = Field(min_length=1)
    """Shadow nodes."""
    first_flow_id: int = Field(default=0, ge=0)
    """Flows are numbered from here on; jobs that share a switch need ranges of their own."""
    groups: list[Group] = Field(min_length=1)
    """Data-parallel groups."""
    framing: Framing = Field(default_factory=Framing)
    """Frame format."""
    digests: bool = False
    """Ranks send the digest of their parameters each step; a step is published only when the shadow's is equal."""
    workload: Workload = Field(default_factory=Workload)
    """What the testbed trains."""

    @model_serializer(mode="wrap")
    def _written(self, inner: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write what a job file has: one of ``switch`` and ``switches``, and nothing for what was not said."""
        names = {"sole_switch": "switch", "several_switches": "switches"}
        plain = {names.get(key, key): value for key, value in inner(self).items()}
        for key in ("hosts", "shadows"):
            plain[key] = [{k: v for k, v in end.items() if (k, v) != ("switch", None)} for end in plain[key]]
        return {key: value for key, value in plain.items() if value or key not in ("switch", "switches", "trunks")}

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
        """Return the switch called `name`, or the only one for None.

        Raises:
            JobError: no switch has that name, or None does not tell which of several is meant.
        """
        if name is None and len(self.switches) == 1:
            return self.switches[0]
        for switch in self.switches:
            if switch.name == name:
                return switch
        known = ", ".join(switch.name for switch in self.switches)
        if name is None:
            message = f"job {self.name!r} has several ({known}), and none was named (--switch)"
        else:
            message = f"job {self.name!r} has no switch {name!r}; expected one of {known}"
        raise JobError([Problem("switch", message)])

    def switch_of(self, end: Host | ShadowNode) -> SwitchSpec:
        """Return the switch that `end` is attached to."""
        return self.switch_named(end.switch)

    @cached_property
    def trunk_graph(self) -> TrunkGraph:
        """How trunks join the switches."""
        return TrunkGraph(tuple(switch.name for switch in self.switches), tuple(trunk.ends for trunk in self.trunks))

    def port_towards(self, switch: str, end: Host | ShadowNode) -> int:
        """Return the port by which `switch` reaches `end`: the end's own, or that of the trunk on the way."""
        home = self.switch_of(end).name
        return end.port if home == switch else self.trunk_graph.port_towards(switch, home)

    @property
    def mss(self) -> int:
        """Largest TCP payload in bytes."""
        return self.network.mtu - IPV4_TCP_HEADERS

    def host(self, name: str) -> Host:
        """Return the host called `name`; KeyError when there is none."""
        return self._hosts_by_name[name]

    def shadow(self, name: str) -> ShadowNode:
        """Return the shadow node called `name`; KeyError when there is none."""
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
                        )
                    )
        return tuple(flows)


class Flow(_Strict):
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
    """Who receives its replicas."""
    frame_payload: int
    """Largest payload of one frame in bytes."""

    @property
    def tcp_port(self) -> int:
        """Port that the successor listens on."""
        return self.group.tcp_port + self.channel

    @property
    def multicast_group(self) -> int:
        """The flow's multicast group on the switch: one group a flow, as each has its own original egress port."""
        return self.id + 1

    @property
    def shape(self) -> FlowShape:
        """What the stream arithmetic needs to know of the flow."""
        return FlowShape(
            ring_size=len(self.group.ring),
            rank=self.rank,
            channels=self.group.channels,
            channel=self.channel,
            header_bytes=HEADER_BYTES,
            frame_payload=self.frame_payload,
        )
