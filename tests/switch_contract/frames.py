"""The network of the contract suite, and frames between its hosts."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from controlplane.desired import desired_state
from controlplane.entities import Entity, MulticastGroup, Replica, SwitchState, TableEntry
from jobspec.model import Host
from p4src.names import Action, MatchField, Param, Table
from tests.controlplane.jobs import JobText

JOB = JobText(hosts=3, shadows=2, first_flow_id=5).job()
"""Hosts at ports 1 to 3, shadows at 4 and 5; flow 5 goes from `A` to `B`, and both shadows get it."""
A, B, C = JOB.hosts
S1, S2 = JOB.shadows
FLOW = JOB.flows[0]
DPORT, PRIMARY = FLOW.tcp_port, JOB.dscp.primary
SPORT = 40000
UNKNOWN_MAC = "02:00:00:00:09:09"

ONE_SHADOW, NO_GROUP, UNKNOWN_RID, MISSING_GROUP, HIGHEST = range(DPORT + 1, DPORT + 6)
"""TCP ports of further flows from A to B: replicated to the first shadow alone; without a group; to a replica id that
no shadow has; to a group that does not exist; with the highest flow id but one, to port 65535 + flow."""
FLOW_IDS = {DPORT: FLOW.id, ONE_SHADOW: 40, NO_GROUP: 41, UNKNOWN_RID: 42, MISSING_GROUP: 43, HIGHEST: 1022}
S_HIGHEST = S2.model_copy(update={"rid": 0xFFFF, "base_port": 0xFFFF})
"""Another replica id and base port of the second shadow."""
QP = 17
A6, B6 = "fd00::a", "fd00::b"


def number(address: str) -> int:
    """Return a MAC or an IP address as a number."""
    if address.count(":") == 5:
        return int(address.replace(":", ""), 16)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return int.from_bytes(socket.inet_pton(family, address), "big")


def flow_entry(
    dport: int, group: int, *, flow_id: int | None = None, source: Host = A, target: Host = B, dscp: int = PRIMARY
) -> TableEntry:
    """Return an entry that binds a connection to a flow."""
    match = {
        MatchField.SRC_ADDR: int(source.ip),
        MatchField.DST_ADDR: int(target.ip),
        MatchField.DST_PORT: dport,
        MatchField.DSCP: dscp,
    }
    params = {Param.FLOW_ID: FLOW_IDS[dport] if flow_id is None else flow_id, Param.GROUP: group}
    return TableEntry.make(Table.REPLICATE, match, Action.REPLICATE_FLOW, params)


def flow_base_entry(isn: int, sport: int = SPORT, flow_id: int = FLOW.id) -> TableEntry:
    """Return an entry that tells the ISN of a connection."""
    match = {MatchField.FLOW_ID: flow_id, MatchField.SRC_PORT: sport}
    return TableEntry.make(Table.FLOW_BASE, match, Action.SET_ISN, {Param.ISN: isn})


def rdma_entry(version: int, group: int, qp: int = QP) -> TableEntry:
    """Return an entry that binds a queue pair of A to B to a group."""
    source, target = (str(A.ip), str(B.ip)) if version == 4 else (A6, B6)
    match = {
        MatchField.SRC_ADDR: number(source),
        MatchField.DST_ADDR: number(target),
        MatchField.DESTINATION_QP: qp,
    }
    table = Table.REPLICATE_RDMA_IPV4 if version == 4 else Table.REPLICATE_RDMA_IPV6
    action = Action.REPLICATE_QP_IPV4 if version == 4 else Action.REPLICATE_QP_IPV6
    return TableEntry.make(table, match, action, {Param.GROUP: group})


def group(number_: int, *copies: tuple[int, int]) -> MulticastGroup:
    """Return a group of (port, replica id)."""
    return MulticastGroup(number_, frozenset(Replica(port, rid) for port, rid in copies))


def _more() -> Sequence[Entity]:
    shadow = {
        Param.MAC: number(S_HIGHEST.mac),
        Param.IP: int(S_HIGHEST.ip),
        Param.BASE_PORT: S_HIGHEST.base_port,
    }
    return (
        group(41, (B.port, 0), (S1.port, S1.rid)),
        flow_entry(ONE_SHADOW, 41),
        rdma_entry(4, 41),
        rdma_entry(6, 41),
        flow_entry(NO_GROUP, 0),
        group(43, (B.port, 0), (S1.port, 99)),
        flow_entry(UNKNOWN_RID, 43),
        flow_entry(MISSING_GROUP, 4444),
        TableEntry.make(Table.SHADOW, {MatchField.RID: S_HIGHEST.rid}, Action.TO_SHADOW, shadow),
        group(1023, (B.port, 0), (S2.port, S_HIGHEST.rid)),
        flow_entry(HIGHEST, 1023),
    )


STATE = SwitchState.of([*desired_state([JOB]).entities, *_more()])
"""What the switch holds in every test unless the test says otherwise: the job and the further flows."""


def with_entries(*entities: Entity) -> SwitchState:
    """Return `STATE` with `entities` added, or put in the place of those that have their keys."""
    return SwitchState.of({**STATE.by_key, **{entity.key: entity for entity in entities}}.values())


def segment(
    seq: int,
    payload: bytes = b"",
    *,
    flags: str = "A",
    sport: int = SPORT,
    dport: int = DPORT,
    dscp: int = PRIMARY,
    ecn: int = 0,
    options: Sequence[tuple[str, object]] = (),
) -> bytes:
    """Return a TCP segment from A to B; `seq` is taken modulo 2^32."""
    return bytes(
        Ether(src=A.mac, dst=B.mac)
        / IP(src=str(A.ip), dst=str(B.ip), tos=dscp << 2 | ecn, id=7)
        / TCP(sport=sport, dport=dport, seq=seq % 2**32, ack=99, flags=flags, options=list(options))
        / Raw(payload)
    )


def syn(isn: int, sport: int = SPORT, dport: int = DPORT) -> bytes:
    """Return the tagged segment that begins a connection of A to B."""
    return segment(isn, flags="S", sport=sport, dport=dport)


def network(version: int, protocol: int = 17) -> Packet:
    """Return a bare IPv4 or IPv6 header from A to B."""
    if version == 4:
        return IP(src=str(A.ip), dst=str(B.ip), proto=protocol)
    return IPv6(src=A6, dst=B6, nh=protocol)


def rdma(version: int, payload: bytes = b"data" * 9, qp: int = QP, port: int = 4791) -> bytes:
    """Return a RoCEv2 packet from A to B."""
    head = Ether(src=A.mac, dst=B.mac) / network(version) / UDP(sport=1234, dport=port)
    return bytes(head / BTH(dqpn=qp, psn=5) / Raw(payload))


def tagged(frame: bytes, *tags: bytes) -> bytes:
    """Put VLAN tags (type and tag control, 4 bytes each) between the addresses and the type."""
    return frame[:12] + b"".join(tags) + frame[12:]


VLAN_TAG = b"\x81\x00\x60\x2a"
"""Priority 3, VLAN 42."""


def padded_to(size: int, frame: bytes) -> bytes:
    """Return the frame with bytes behind it, as a network card pads a short one."""
    return frame.ljust(size, b"\0")
