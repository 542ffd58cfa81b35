"""Packet vectors for the compiled data plane: every path of the program, run by the embedded switch."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from p4src.artifacts import device_config
from p4src.constants import FLOOD_GROUP, NotReplicated
from p4src.names import Action, Counter, Digest, Table
from softswitch.core import SwitchCore
from softswitch.state import ActionCall, Entry, Exact

A_MAC, B_MAC, SHADOW_MAC = "02:00:00:00:01:00", "02:00:00:00:01:01", "02:00:00:00:02:00"
A_IP, B_IP, SHADOW_IP = "10.0.0.10", "10.0.0.11", "10.0.1.100"
A_PORT, B_PORT, SHADOW_PORT, OTHER_PORT = 1, 2, 3, 4
FLOW, GROUP, RID, BASE = 5, 6, 1, 20000
PRIMARY = 3
SPORT, DPORT = 40000, 4000


def number(address: str) -> int:
    """Return a MAC or an IP address as a number."""
    if ":" in address and len(address) == 17 and address.count(":") == 5:
        return int(address.replace(":", ""), 16)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return int.from_bytes(socket.inet_pton(family, address), "big")


def entry(table: SwitchCore, name: str, key: list[int], action: str, *arguments: int) -> None:
    table.tables[name].insert(Entry(tuple(Exact(value) for value in key), 0, ActionCall(action, arguments)))


@pytest.fixture
def switch() -> SwitchCore:
    return make_switch()


def make_switch() -> SwitchCore:
    core = SwitchCore(device_config())
    for mac, port in ((A_MAC, A_PORT), (B_MAC, B_PORT), (SHADOW_MAC, SHADOW_PORT)):
        entry(core, Table.L2_FORWARD, [number(mac)], Action.SET_PORT, port)
    entry(core, Table.SHADOW_PORTS, [SHADOW_PORT], Action.DROP_FROM_SHADOW)
    entry(core, Table.SHADOW, [RID], Action.TO_SHADOW, number(SHADOW_MAC), number(SHADOW_IP), BASE)
    entry(core, Table.REPLICATE, [number(A_IP), number(B_IP), DPORT, PRIMARY], Action.REPLICATE_FLOW, FLOW, GROUP)
    core.set_multicast_group(GROUP, [(B_PORT, 0), (SHADOW_PORT, RID)])
    core.set_multicast_group(FLOOD_GROUP, [(A_PORT, 0), (B_PORT, 0), (OTHER_PORT, 0)])
    return core


def segment(
    seq: int,
    payload: bytes = b"",
    *,
    flags: str = "A",
    sport: int = SPORT,
    dscp: int = PRIMARY,
    ecn: int = 0,
    options: list[tuple[str, object]] | None = None,
) -> bytes:
    packet = (
        Ether(src=A_MAC, dst=B_MAC)
        / IP(src=A_IP, dst=B_IP, tos=dscp << 2 | ecn, id=7)
        / TCP(sport=sport, dport=DPORT, seq=seq % 2**32, ack=99, flags=flags, options=options or [])
        / Raw(payload)
    )
    return bytes(packet)


def count(core: SwitchCore, reason: NotReplicated) -> int:
    return core.counters[Counter.NOT_REPLICATED].read(int(reason))[0]


def run(core: SwitchCore, frame: bytes, port: int = A_PORT) -> dict[int, bytes]:
    output = core.process(port, frame)
    assert len({egress for egress, _ in output.packets}) == len(output.packets), "two packets left one port"
    return dict(output.packets)


def ones_complement_sum(data: bytes) -> int:
    """Return the RFC 1071 sum modulo 0xffff: 0 when the data holds its right checksum."""
    padded = data + b"\0" * (len(data) % 2)
    return sum(int.from_bytes(padded[i : i + 2], "big") for i in range(0, len(padded), 2)) % 0xFFFF


def checksums_hold(frame: bytes) -> tuple[bool, bool]:
    """Return whether the IPv4 and the TCP checksum of `frame` are right."""
    ip = frame.index(b"\x08\x00\x45") + 2
    total = int.from_bytes(frame[ip + 2 : ip + 4], "big")
    segment_bytes = frame[ip + 20 : ip + total]
    pseudo_header = frame[ip + 12 : ip + 20] + bytes([0, 6]) + len(segment_bytes).to_bytes(2, "big")
    return ones_complement_sum(frame[ip : ip + 20]) == 0, ones_complement_sum(pseudo_header + segment_bytes) == 0


def open_flow(core: SwitchCore, isn: int, sport: int = SPORT) -> None:
    assert set(run(core, segment(isn, flags="S", sport=sport))) == {B_PORT, SHADOW_PORT}


def assert_replica(original: bytes, replica: bytes, position: int) -> None:
    expected = Ether(original)
    got = Ether(replica)
    assert got.dst == SHADOW_MAC
    assert (got[IP].dst, got[TCP].dport, got[TCP].seq) == (SHADOW_IP, BASE + FLOW, position)
    # All else is as it was.
    got.dst, got[IP].dst, got[TCP].dport, got[TCP].seq = B_MAC, B_IP, DPORT, expected[TCP].seq
    got[IP].chksum, got[TCP].chksum = expected[IP].chksum, expected[TCP].chksum
    assert bytes(got) == original


def test_untagged_traffic_is_forwarded_and_not_replicated(switch: SwitchCore) -> None:
    open_flow(switch, 1000)
    for dscp in (0, 1, 7, 63):
        frame = segment(1001, b"x" * 100, dscp=dscp)
        assert run(switch, frame) == {B_PORT: frame}
    assert count(switch, NotReplicated.UNTAGGED) == 4


def test_a_tagged_syn_starts_a_flow_and_tells_the_controller(switch: SwitchCore) -> None:
    frame = segment(0xFFFFFFF0, flags="S", options=[("MSS", 1460), ("WScale", 7)])
    output = switch.process(A_PORT, frame)
    assert output.digests == [(Digest.FLOW_START_T, (FLOW, 0xFFFFFFF0, number(A_IP), number(B_IP), SPORT, DPORT))]
    packets = dict(output.packets)
    assert packets[B_PORT] == frame
    assert_replica(frame, packets[SHADOW_PORT], 0)
    assert checksums_hold(packets[SHADOW_PORT]) == (True, True)


@given(
    isn=st.integers(0, 2**32 - 1),
    offset=st.integers(1, 2**32 - 1),
    payload=st.binary(max_size=200),
    ecn=st.integers(0, 3),
    flags=st.sampled_from(["A", "PA", "A", "PAU"]),
    timestamps=st.booleans(),
)
def test_a_tagged_segment_is_replicated_at_its_position(
    isn: int, offset: int, payload: bytes, ecn: int, flags: str, timestamps: bool
) -> None:
    switch = SHARED
    open_flow(switch, isn)
    options = [("NOP", None), ("NOP", None), ("Timestamp", (1, 2))] if timestamps else None
    frame = segment(isn + offset, payload, flags=flags, ecn=ecn, options=options)
    packets = run(switch, frame)
    assert set(packets) == {B_PORT, SHADOW_PORT}
    assert packets[B_PORT] == frame, "the original changed"
    assert_replica(frame, packets[SHADOW_PORT], offset)
    assert checksums_hold(packets[SHADOW_PORT]) == (True, True)


SHARED = make_switch()


@given(st.binary(min_size=1, max_size=60), st.data())
def test_corruption_before_the_switch_stays_visible(payload: bytes, data: st.DataObject) -> None:
    open_flow(SHARED, 5)
    frame = bytearray(segment(6, payload))
    # Anywhere behind the ports: sequence number, flags, window, checksum, payload. (A SYN would begin a connection.)
    bit = data.draw(st.integers((14 + 20 + 4) * 8, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    if frame[14 + 20 + 13] & 2:
        return
    packets = run(SHARED, bytes(frame))
    assert packets[B_PORT] == bytes(frame)
    assert not checksums_hold(packets[SHADOW_PORT])[1]


def test_a_damaged_ip_header_stays_damaged(switch: SwitchCore) -> None:
    open_flow(switch, 5)
    frame = bytearray(segment(6, b"payload"))
    frame[14 + 8] ^= 1  # TTL
    assert checksums_hold(run(switch, bytes(frame))[SHADOW_PORT])[0] is False


def test_jumbo_frames(switch: SwitchCore) -> None:
    open_flow(switch, 2**32 - 1)
    frame = segment(0, bytes(range(256)) * 35)
    packets = run(switch, frame)
    assert packets[B_PORT] == frame
    assert_replica(frame, packets[SHADOW_PORT], 1)
    assert checksums_hold(packets[SHADOW_PORT]) == (True, True)


def test_late_segments_of_an_old_connection_are_not_replicated(switch: SwitchCore) -> None:
    open_flow(switch, 1000)
    open_flow(switch, 77000, sport=SPORT + 1)
    late = segment(1001, b"old", sport=SPORT)
    assert run(switch, late) == {B_PORT: late}
    assert count(switch, NotReplicated.LATE_CONNECTION) == 1
    fresh = segment(77001, b"new", sport=SPORT + 1)
    assert_replica(fresh, run(switch, fresh)[SHADOW_PORT], 1)


def test_an_unknown_isn_is_not_replicated_until_flow_base_knows_it(switch: SwitchCore) -> None:
    frame = segment(5001, b"data")
    assert run(switch, frame) == {B_PORT: frame}
    assert count(switch, NotReplicated.UNKNOWN_ISN) == 1
    entry(switch, Table.FLOW_BASE, [FLOW, SPORT], Action.SET_ISN, 5000)
    assert_replica(frame, run(switch, frame)[SHADOW_PORT], 1)
    other = segment(5001, b"data", sport=SPORT + 1)
    assert run(switch, other) == {B_PORT: other}, "the entry must not fit another connection"
    assert count(switch, NotReplicated.UNKNOWN_ISN) == 2


def test_flow_base_does_not_revive_a_connection_that_a_newer_one_replaced(switch: SwitchCore) -> None:
    entry(switch, Table.FLOW_BASE, [FLOW, SPORT], Action.SET_ISN, 5000)
    open_flow(switch, 9000, sport=SPORT + 1)
    late = segment(5001, b"old")
    assert run(switch, late) == {B_PORT: late}
    assert count(switch, NotReplicated.LATE_CONNECTION) == 1


def test_other_flags_do_not_start_a_flow(switch: SwitchCore) -> None:
    for flags in ("SA", "R", "F", "RA", "FA"):
        frame = segment(5000, flags=flags)
        output = switch.process(A_PORT, frame)
        assert output.packets == [(B_PORT, frame)]
        assert output.digests == []


def test_a_flow_without_a_group_is_forwarded(switch: SwitchCore) -> None:
    entry(switch, Table.REPLICATE, [number(A_IP), number(B_IP), DPORT + 1, PRIMARY], Action.REPLICATE_FLOW, FLOW, 0)
    frame = bytes(Ether(src=A_MAC, dst=B_MAC) / IP(src=A_IP, dst=B_IP, tos=PRIMARY << 2) / TCP(dport=DPORT + 1))
    assert run(switch, frame) == {B_PORT: frame}
    assert count(switch, NotReplicated.NO_GROUP) == 1


def test_nothing_from_a_shadow_gets_through(switch: SwitchCore) -> None:
    reset = Ether(src=SHADOW_MAC, dst=A_MAC) / IP(src=SHADOW_IP, dst=A_IP) / TCP(flags="R")
    for frame in (reset, Ether(src=SHADOW_MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(), Ether(segment(1, b"x"))):
        assert run(switch, bytes(frame), SHADOW_PORT) == {}
    assert count(switch, NotReplicated.FROM_SHADOW) == 3


def test_flooding_reaches_every_other_host_and_no_shadow(switch: SwitchCore) -> None:
    frames: list[Packet] = [
        Ether(src=A_MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(),
        Ether(src=A_MAC, dst="33:33:00:00:00:01") / IPv6(),
        Ether(segment(1, b"tagged, but multicast")),
    ]
    frames[2].dst = "01:00:5e:00:00:01"
    for packet in frames:
        frame = bytes(packet)
        assert run(switch, frame) == {B_PORT: frame, OTHER_PORT: frame}


def test_unknown_destinations_are_dropped(switch: SwitchCore) -> None:
    assert run(switch, bytes(Ether(src=A_MAC, dst="02:00:00:00:09:09") / IP() / TCP())) == {}
    assert count(switch, NotReplicated.UNKNOWN_DESTINATION) == 1
    for length in range(1, 14):  # no whole Ethernet header
        assert run(switch, segment(1)[:length]) == {}
    assert count(switch, NotReplicated.UNKNOWN_DESTINATION) == 14


def test_an_unknown_replica_id_is_dropped_and_the_original_is_not(switch: SwitchCore) -> None:
    switch.set_multicast_group(GROUP, [(B_PORT, 0), (SHADOW_PORT, RID + 1)])
    frame = segment(1, flags="S")
    assert run(switch, frame) == {B_PORT: frame}


def test_two_shadows_each_get_their_own_rewrite(switch: SwitchCore) -> None:
    entry(switch, Table.SHADOW, [RID + 1], Action.TO_SHADOW, number(SHADOW_MAC) + 1, number(SHADOW_IP) + 1, 30000)
    switch.set_multicast_group(GROUP, [(B_PORT, 0), (SHADOW_PORT, RID), (OTHER_PORT, RID + 1)])
    open_frame = segment(10, flags="S")
    assert set(run(switch, open_frame)) == {B_PORT, SHADOW_PORT, OTHER_PORT}
    frame = segment(11, b"abc")
    packets = run(switch, frame)
    assert packets[B_PORT] == frame
    assert_replica(frame, packets[SHADOW_PORT], 1)
    second = Ether(packets[OTHER_PORT])
    assert (second.dst, second[IP].dst, second[TCP].dport) == ("02:00:00:00:02:01", "10.0.1.101", 30000 + FLOW)
    assert checksums_hold(packets[OTHER_PORT]) == (True, True)


def test_vlan_tagged_segments_keep_their_tag(switch: SwitchCore) -> None:
    def tagged(frame: bytes) -> bytes:
        packet = Ether(frame)
        return bytes(Ether(src=packet.src, dst=packet.dst) / Dot1Q(vlan=42, prio=3) / packet[IP])

    run(switch, tagged(segment(1, flags="S")))
    frame = tagged(segment(2, b"data"))
    packets = run(switch, frame)
    assert packets[B_PORT] == frame
    replica = Ether(packets[SHADOW_PORT])
    assert (replica[Dot1Q].vlan, replica[Dot1Q].prio, replica[TCP].seq, replica.dst) == (42, 3, 1, SHADOW_MAC)
    assert checksums_hold(packets[SHADOW_PORT]) == (True, True)


@pytest.mark.parametrize("kind", ["options", "fragment", "first fragment"])
def test_ip_options_and_fragments_are_forwarded_only(switch: SwitchCore, kind: str) -> None:
    open_flow(switch, 1)
    packet = Ether(segment(2, b"0123456789"))
    if kind == "options":
        packet[IP].options = b"\x94\x04\x00\x00"
        packet[IP].ihl = packet[IP].len = packet[IP].chksum = None
    elif kind == "fragment":
        packet[IP].frag, packet[IP].chksum = 10, None
    else:
        packet[IP].flags, packet[IP].chksum = "MF", None
    frame = bytes(packet)
    assert run(switch, frame) == {B_PORT: frame}
    assert count(switch, NotReplicated.UNSUPPORTED_HEADER) == 1


def test_every_other_kind_of_packet_is_forwarded_as_it_is(switch: SwitchCore) -> None:
    base = Ether(src=A_MAC, dst=B_MAC)
    kinds: list[Packet] = [
        base / ARP(),
        base / IP(src=A_IP, dst=B_IP) / UDP(sport=1, dport=53) / Raw(b"dns"),
        base / IP(src=A_IP, dst=B_IP, proto=1) / Raw(b"icmp"),
        base / IPv6() / TCP(dport=DPORT) / Raw(b"six"),
        base / IPv6() / UDP(dport=9) / Raw(b"six"),
        Ether(src=A_MAC, dst=B_MAC, type=0x88F7) / Raw(b"ptp"),
        Ether(src=A_MAC, dst=B_MAC, type=0x8100) / Raw(b"\x00"),
        base / IP(src=A_IP, dst=B_IP) / UDP(dport=4791) / BTH(dqpn=17, psn=1) / Raw(b"write"),
        base / IPv6() / UDP(dport=4791) / BTH(dqpn=17, psn=1) / Raw(b"write"),
    ]
    for packet in kinds:
        frame = bytes(packet)
        assert run(switch, frame) == {B_PORT: frame}, packet.summary()
    assert count(switch, NotReplicated.NONE) == len(kinds)


@pytest.mark.parametrize("version", [4, 6])
def test_roce_replicas_change_their_mac_address_alone(switch: SwitchCore, version: int) -> None:
    source, target = (A_IP, B_IP) if version == 4 else ("fd00::a", "fd00::b")
    network = IP(src=source, dst=target) if version == 4 else IPv6(src=source, dst=target)
    table = Table.REPLICATE_RDMA_IPV4 if version == 4 else Table.REPLICATE_RDMA_IPV6
    action = Action.REPLICATE_QP_IPV4 if version == 4 else Action.REPLICATE_QP_IPV6
    entry(switch, table, [number(source), number(target), 17], action, GROUP)
    frame = bytes(Ether(src=A_MAC, dst=B_MAC) / network / UDP(dport=4791) / BTH(dqpn=17, psn=5) / Raw(b"data" * 9))
    packets = run(switch, frame)
    assert packets[B_PORT] == frame
    assert packets[SHADOW_PORT] == bytes.fromhex(SHADOW_MAC.replace(":", "")) + frame[6:]
    assert switch.tables[table].counter((Exact(number(source)), Exact(number(target)), Exact(17)), 0) == (1, len(frame))
    elsewhere = bytes(Ether(src=A_MAC, dst=B_MAC) / network / UDP(dport=4791) / BTH(dqpn=18, psn=5))
    assert run(switch, elsewhere) == {B_PORT: elsewhere}


def test_truncation_anywhere_changes_nothing_and_crashes_nothing(switch: SwitchCore) -> None:
    open_flow(switch, 1)
    frame = segment(2, b"payload")
    for length in range(14, 14 + 20 + 20):
        assert run(switch, frame[:length]) == {B_PORT: frame[:length]}, length
    # The ports are in the header; what is left of the payload is the receiver's to judge.
    assert set(run(switch, frame[:-3])) == {B_PORT, SHADOW_PORT}


def test_direct_counters_count_packets_and_bytes(switch: SwitchCore) -> None:
    open_flow(switch, 1)
    frame = segment(2, b"x" * 50)
    before = len(segment(1, flags="S"))
    run(switch, frame)
    key = (Exact(number(A_IP)), Exact(number(B_IP)), Exact(DPORT), Exact(PRIMARY))
    assert switch.tables[Table.REPLICATE].counter(key, 0) == (2, before + len(frame))
    assert switch.tables[Table.SHADOW].counter((Exact(RID),), 0) == (2, before + len(frame))
