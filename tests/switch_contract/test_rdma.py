"""RoCEv2 over IPv4 and IPv6, by queue pair."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from p4src.constants import NotReplicated
from tests.switch_contract.frames import (
    QP,
    S1,
    S2,
    VLAN_TAG,
    A,
    B,
    C,
    group,
    number,
    rdma,
    rdma_entry,
    tagged,
    with_entries,
)
from tests.switch_contract.oracle import rdma_replica
from tests.switch_contract.rig import Rig

VERSIONS = pytest.mark.parametrize("version", [4, 6])


@VERSIONS
def test_a_replica_changes_its_mac_address_alone(switch: Rig, version: int) -> None:
    """The iCRC at the end covers all behind the Ethernet header."""
    for size in (0, 1, 36, 1024, 4096, 8900):
        for frame in (rdma(version, b"i" * size), tagged(rdma(version, b"i" * size), VLAN_TAG)):
            outcome = switch.send(A.port, frame)
            assert outcome.packets == {B.port: [frame], S1.port: [rdma_replica(frame, S1)]}
            assert outcome.digests == []


@VERSIONS
def test_other_queue_pairs_and_ports_are_forwarded_only(switch: Rig, version: int) -> None:
    frames = [rdma(version, qp=qp) for qp in (0, QP - 1, QP + 1, QP | 1 << 23)]
    frames += [rdma(version, port=port) for port in (0, 4790, 4792)]
    for frame in frames:
        assert switch.send(A.port, frame).packets == {B.port: [frame]}
    assert switch.reasons() == {NotReplicated.NONE: len(frames)}


@VERSIONS
def test_the_way_back_is_not_the_queue_pair(switch: Rig, version: int) -> None:
    packet = Ether(rdma(version))
    packet.src, packet.dst = packet.dst, packet.src
    packet.payload.src, packet.payload.dst = packet.payload.dst, packet.payload.src
    frame = bytes(packet)
    assert switch.send(B.port, frame).packets == {A.port: [frame]}


@VERSIONS
def test_every_bit_of_the_queue_pair_and_of_the_addresses_counts(switch: Rig, version: int) -> None:
    frame = rdma(version)
    address_bytes = range(14 + 12, 14 + 20) if version == 4 else range(14 + 8, 14 + 40)
    transport = 14 + (20 if version == 4 else 40) + 8
    queue_pair = range(transport + 5, transport + 8)
    assert int.from_bytes(frame[queue_pair.start : queue_pair.stop], "big") == QP
    for place in (*address_bytes[::3], *queue_pair):
        other = bytearray(frame)
        other[place] ^= 0x10
        assert switch.send(A.port, bytes(other)).packets == {B.port: [bytes(other)]}, place


@VERSIONS
def test_two_shadows_and_none(switch: Rig, version: int) -> None:
    both = group(50, (B.port, 0), (S1.port, S1.rid), (S2.port, S2.rid))
    switch.change(with_entries(both, rdma_entry(version, 50), rdma_entry(version, 0, QP + 1)))
    frame = rdma(version)
    replicas = {shadow.port: [rdma_replica(frame, shadow)] for shadow in (S1, S2)}
    assert switch.send(A.port, frame).packets == {B.port: [frame], **replicas}
    without_group = rdma(version, qp=QP + 1)
    assert switch.send(A.port, without_group).packets == {B.port: [without_group]}


@VERSIONS
def test_the_destination_of_the_original_is_its_groups(switch: Rig, version: int) -> None:
    frame = bytes.fromhex(C.mac.replace(":", "")) + rdma(version)[6:]
    assert switch.send(A.port, frame).packets == {B.port: [frame], S1.port: [rdma_replica(frame, S1)]}
    flood = b"\xff" * 6 + rdma(version)[6:]
    assert switch.send(A.port, flood).packets == {B.port: [flood], C.port: [flood]}


def test_ip_options_and_fragments_hide_the_queue_pair(switch: Rig) -> None:
    for place, value in ((0, 0x46), (6, 0x20), (7, 0x01)):
        frame = bytearray(rdma(4))
        frame[14 + place] = value
        assert switch.send(A.port, bytes(frame)).packets == {B.port: [bytes(frame)]}
    assert switch.reasons() == {NotReplicated.NONE: 3}


def test_addresses_of_one_family_do_not_match_those_of_the_other(switch: Rig) -> None:
    packet = Ether(rdma(4))
    packet[IP].src, packet[IP].chksum = "10.9.9.9", None
    frame = bytes(packet)
    assert number("10.9.9.9") != int(A.ip)
    assert switch.send(A.port, frame).packets == {B.port: [frame]}
