"""Every kind of header: what is looked at, what is passed on as it is, and headers that end too early."""

from __future__ import annotations

from scapy.contrib.roce import BTH
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from p4src.constants import NotReplicated
from tests.switch_contract.checks import open_flow
from tests.switch_contract.frames import (
    DPORT,
    FLOW,
    PRIMARY,
    S1,
    S2,
    SPORT,
    VLAN_TAG,
    A,
    B,
    network,
    padded_to,
    rdma,
    segment,
    syn,
    tagged,
)
from tests.switch_contract.oracle import rdma_replica, replica
from tests.switch_contract.rig import Rig

TCP_SEGMENT = TCP(sport=SPORT, dport=DPORT, seq=2, flags="A")
OTHERS = {
    "arp": Ether() / ARP(psrc=str(A.ip), pdst=str(B.ip)),
    "non-ip": Ether(type=0x88F7) / Raw(b"ptp" * 20),
    "length field": Ether(type=0x0040) / Raw(b"\xaa\xaa\x03" + bytes(61)),
    "icmp": Ether() / network(4, 1) / ICMP() / Raw(b"ping"),
    "udp": Ether() / network(4) / UDP(sport=1, dport=53) / Raw(b"dns"),
    "udp to the port before RoCEv2": Ether() / network(4) / UDP(dport=4790) / Raw(bytes(40)),
    "gre": Ether() / network(4, 47) / Raw(bytes(40)),
    "sctp": Ether() / network(4, 132) / Raw(bytes(40)),
    "ipv6 tcp": Ether() / network(6, 6) / TCP_SEGMENT / Raw(b"six"),
    "ipv6 udp": Ether() / network(6) / UDP(dport=9) / Raw(b"six"),
    "ipv6 with extension": Ether() / IPv6() / IPv6ExtHdrHopByHop() / UDP(dport=4791) / BTH(dqpn=17) / Raw(b"x"),
    "ipv6 fragment": Ether() / IPv6() / IPv6ExtHdrFragment(nh=17) / UDP(dport=4791) / BTH(dqpn=17),
    "ipv6 in ipv4": Ether() / network(4, 41) / IPv6() / TCP_SEGMENT,
    "mpls": Ether(type=0x8847) / Raw(b"\x00\x01\x01\x40") / network(4, 6) / TCP_SEGMENT,
    "two vlan tags": Ether(type=0x8100) / Raw(b"\x00\x05\x81\x00\x00\x06\x08\x00") / network(4, 6) / TCP_SEGMENT,
    "service vlan tag": Ether(type=0x88A8) / Raw(b"\x00\x05\x08\x00") / network(4, 6) / TCP_SEGMENT,
    "vlan arp": Ether(type=0x8100) / Raw(b"\x00\x05\x08\x06") / ARP(),
    "vlan ipv6 tcp": Ether(type=0x8100) / Raw(b"\x00\x05\x86\xdd") / network(6, 6) / TCP_SEGMENT,
    "empty": Ether(type=0x88B5),
}
"""Frames that are forwarded as they are and are no candidates for replication."""


def test_every_other_kind_of_packet_is_forwarded_as_it_is(switch: Rig) -> None:
    for kind, other in OTHERS.items():
        packet = other.copy()
        packet.src, packet.dst = A.mac, B.mac
        frame = bytes(packet)
        for each in filter(switch.carries, (frame, padded_to(60, frame), tagged(frame, VLAN_TAG))):
            outcome = switch.send(A.port, each)
            assert (outcome.packets, outcome.digests) == ({B.port: [each]}, []), kind
    assert switch.reasons() == {NotReplicated.NONE: switch.sent}


def test_ip_options_are_forwarded_and_not_looked_behind(switch: Rig) -> None:
    open_flow(switch, 1)
    packet = Ether(segment(2, b"0123456789"))
    for words in range(6, 16):
        packet[IP].options = [Raw(b"\x01" * 4 * (words - 5))]
        packet[IP].ihl, packet[IP].len, packet[IP].chksum = words, None, None
        frame = bytes(packet)
        for each in (frame, tagged(frame, VLAN_TAG)):
            assert switch.send(A.port, each).packets == {B.port: [each]}, f"header of {words} words"
    assert switch.reasons() == {NotReplicated.NONE: 1, NotReplicated.UNSUPPORTED_HEADER: 20}


def damaged(place: int, value: int) -> bytes:
    frame = bytearray(segment(2, b"0123456789"))
    frame[14 + place] = value
    return bytes(frame)


STRANGE = {
    "first fragment": damaged(6, 0x20),
    "a later fragment": damaged(7, 0x01),
    "the last fragment": damaged(6, 0x1F),
    "first fragment that must not be": damaged(6, 0x60),
    "IP version 6": damaged(0, 0x65),
    "IP version 0": damaged(0, 0x05),
    "header of 16 bytes": damaged(0, 0x44),
    "header of 0 bytes": damaged(0, 0x40),
}


def test_fragments_and_strange_ip_headers_are_forwarded_only(switch: Rig) -> None:
    open_flow(switch, 1)
    for kind, frame in STRANGE.items():
        assert switch.send(A.port, frame).packets == {B.port: [frame]}, kind
    assert switch.reasons() == {NotReplicated.NONE: 1, NotReplicated.UNSUPPORTED_HEADER: len(STRANGE)}


def test_bits_of_the_ip_header_that_do_not_matter(switch: Rig) -> None:
    """The reserved bit, "don't fragment" and ECN."""
    open_flow(switch, 1)
    for place, value in ((6, 0x80), (6, 0x40), (6, 0xC0), (1, PRIMARY << 2 | 3)):
        frame = damaged(place, value)
        replicas = {shadow.port: [replica(frame, shadow, FLOW.id, 1)] for shadow in (S1, S2)}
        assert switch.send(A.port, frame).packets == {B.port: [frame], **replicas}


WHOLE = {
    "tcp": (segment(2, b"payload"), 14 + 20 + 20),
    "tcp in vlan": (tagged(segment(2, b"payload"), VLAN_TAG), 18 + 20 + 20),
    "rdma over ipv4": (rdma(4), 14 + 20 + 8 + 12),
    "rdma over ipv4 in vlan": (tagged(rdma(4), VLAN_TAG), 18 + 20 + 8 + 12),
    "rdma over ipv6": (rdma(6), 14 + 40 + 8 + 12),
    "rdma over ipv6 in vlan": (tagged(rdma(6), VLAN_TAG), 18 + 40 + 8 + 12),
    "udp": (bytes(Ether(src=A.mac, dst=B.mac) / network(4) / UDP(dport=53) / Raw(b"dns")), 14 + 20 + 8),
    "arp": (bytes(Ether(src=A.mac, dst=B.mac) / ARP()), 14 + 28),
}
"""Frames, and where the last header that the program looks at (of ARP, all of it) ends."""


def test_frames_that_end_within_a_header_are_forwarded_as_they_are(switch: Rig) -> None:
    open_flow(switch, 1)
    for kind, (whole, end) in WHOLE.items():
        for length in range(14, min(end + 2, len(whole)) + 1):
            frame, complete = whole[:length], length >= end
            if not switch.carries(frame):
                continue
            replicas: dict[int, list[bytes]] = {}
            if complete and kind.startswith("tcp"):
                replicas = {shadow.port: [replica(frame, shadow, FLOW.id, 1)] for shadow in (S1, S2)}
            elif complete and kind.startswith("rdma"):
                replicas = {S1.port: [rdma_replica(frame, S1)]}
            outcome = switch.send(A.port, frame)
            assert (outcome.packets, outcome.digests) == ({B.port: [frame], **replicas}, []), f"{kind}: {length} bytes"


def test_a_segment_cut_behind_its_ip_header_counts_as_unsupported(switch: Rig) -> None:
    frame = syn(1)
    for length in (14, 33):
        assert switch.send(A.port, frame[:length]).packets == {B.port: [frame[:length]]}
    assert switch.reasons() == {NotReplicated.NONE: 2}
    for length in (34, 53):
        assert switch.send(A.port, frame[:length]).packets == {B.port: [frame[:length]]}
    assert switch.reasons() == {NotReplicated.NONE: 2, NotReplicated.UNSUPPORTED_HEADER: 2}
