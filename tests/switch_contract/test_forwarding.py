"""Layer 2: known unicast, floods, what is dropped."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from controlplane.entities import TableEntry
from jobspec.model import Host, ShadowNode
from p4src.constants import FLOOD_GROUP, NotReplicated
from p4src.names import Action, MatchField, Param, Table
from tests.switch_contract.frames import (
    JOB,
    S1,
    S2,
    UNKNOWN_MAC,
    A,
    B,
    C,
    group,
    number,
    segment,
    syn,
    with_entries,
)
from tests.switch_contract.rig import Rig

BROADCAST = "ff:ff:ff:ff:ff:ff"
ENDS = {end.mac: end.port for end in JOB.hosts} | {end.mac: end.port for end in JOB.shadows}


def frame_to(mac: str, source: Host | ShadowNode = A) -> bytes:
    return bytes(Ether(src=source.mac, dst=mac, type=0x88B5) / Raw(b"payload" * 9))


def to_port(mac: str, port: int) -> TableEntry:
    return TableEntry.make(Table.L2_FORWARD, {MatchField.DST_ADDR: number(mac)}, Action.SET_PORT, {Param.PORT: port})


def test_known_hosts_and_shadows_are_reached_from_every_host(switch: Rig) -> None:
    for source in JOB.hosts:
        for mac, port in ENDS.items():
            frame = frame_to(mac, source)
            # Also back to where it came from: who asks for it gets it.
            assert switch.send(source.port, frame).packets == {port: [frame]}
    assert switch.reasons() == {NotReplicated.NONE: 15}


@pytest.mark.parametrize("mac", [BROADCAST, "01:00:5e:00:00:01", "33:33:00:00:00:01", "03:00:00:00:00:00"])
def test_a_flood_reaches_every_other_host_and_no_shadow(switch: Rig, mac: str) -> None:
    for source in JOB.hosts:
        frame = frame_to(mac, source)
        others = {host.port: [frame] for host in JOB.hosts if host != source}
        assert switch.send(source.port, frame).packets == others
    assert switch.reasons() == {NotReplicated.NONE: 3}


def test_tagged_segments_to_a_group_address_are_flooded_and_not_replicated(switch: Rig) -> None:
    for seq, flags in ((1, "S"), (2, "A")):
        frame = b"\x01" + segment(seq, b"data", flags=flags)[1:]
        outcome = switch.send(A.port, frame)
        assert outcome.packets == {B.port: [frame], C.port: [frame]}
        assert outcome.digests == []


def test_a_flood_from_a_port_outside_the_group_reaches_the_whole_group(switch: Rig) -> None:
    frame = frame_to(BROADCAST)
    assert switch.send(6, frame).packets == {host.port: [frame] for host in JOB.hosts}


def test_a_flood_without_its_group_goes_nowhere(switch: Rig) -> None:
    kept = [entity for entity in with_entries().entities if entity.key != ("group", FLOOD_GROUP)]
    switch.change(type(with_entries()).of(kept))
    assert switch.send(A.port, frame_to(BROADCAST)).packets == {}


def test_nothing_from_a_shadow_gets_through(switch: Rig) -> None:
    reset = Ether(src=S1.mac, dst=A.mac) / IP(src=str(S1.ip), dst=str(A.ip)) / TCP(flags="R")
    frames = [bytes(reset), bytes(Ether(src=S1.mac, dst=BROADCAST) / ARP()), syn(1), segment(2, b"x"), frame_to(S2.mac)]
    for shadow in JOB.shadows:
        for frame in frames:
            outcome = switch.send(shadow.port, frame)
            assert (outcome.packets, outcome.digests) == ({}, [])
    assert switch.reasons() == {NotReplicated.FROM_SHADOW: 2 * len(frames)}
    # The SYN from the shadow's port has left no trace.
    data = segment(2, b"x")
    assert switch.send(A.port, data).packets == {B.port: [data]}
    assert switch.reasons()[NotReplicated.UNKNOWN_ISN] == 1


def test_unknown_destinations_are_dropped(switch: Rig) -> None:
    frames = [
        frame_to(UNKNOWN_MAC),
        frame_to("00:00:00:00:00:00"),
        bytes(Ether(src=A.mac, dst=UNKNOWN_MAC) / IPv6() / TCP()),
        bytes.fromhex(UNKNOWN_MAC.replace(":", "")) + syn(1)[6:],
    ]
    for frame in frames:
        outcome = switch.send(A.port, frame)
        assert (outcome.packets, outcome.digests) == ({}, [])
    assert switch.reasons() == {NotReplicated.UNKNOWN_DESTINATION: len(frames)}


def test_less_than_an_ethernet_header_is_dropped(switch: Rig) -> None:
    lengths = [length for length in range(14) if switch.carries(syn(1)[:length])]
    for length in lengths:
        assert switch.send(A.port, syn(1)[:length]).packets == {}
    assert switch.reasons() == ({NotReplicated.UNKNOWN_DESTINATION: len(lengths)} if lengths else {})


def test_ports_that_lead_nowhere_swallow_what_is_sent_to_them(switch: Rig) -> None:
    """No interface, and the drop port."""
    ports = {"02:00:00:00:0a:01": 0, "02:00:00:00:0a:02": 300, "02:00:00:00:0a:03": 511}
    switch.change(with_entries(*(to_port(mac, port) for mac, port in ports.items())))
    found = [switch.send(A.port, frame_to(mac)).packets for mac in ports]
    assert found == [{}, {}, {}]
    assert switch.reasons() == {NotReplicated.NONE: 3}


def test_changes_of_tables_and_groups_are_in_force_at_once(switch: Rig) -> None:
    frame, flood = frame_to(B.mac), frame_to(BROADCAST)
    switch.change(with_entries(to_port(B.mac, C.port), group(FLOOD_GROUP, (7, 0), (C.port, 0))))
    assert switch.send(A.port, frame).packets == {C.port: [frame]}
    assert switch.send(A.port, flood).packets == {C.port: [flood], 7: [flood]}
    switch.change(with_entries())
    assert switch.send(A.port, frame).packets == {B.port: [frame]}
    assert switch.send(A.port, flood).packets == {B.port: [flood], C.port: [flood]}
