"""Checksums in the pipeline, against scapy's, with options, optional headers and odd payloads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.all import IP, UDP, Ether, Raw
from scapy.layers.inet import IPOption

from softswitch.core import SwitchCore
from softswitch.hashes import csum16
from softswitch.state import ActionCall, Lpm, TableEntry
from tests.softswitch.core_rig import load, only

ROUTER, NEXT, HOST = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"
OUT_PORT, BAD_PORT, OTHER_PORT = 4, 9, 8


def router() -> SwitchCore:
    core = load("checksums")
    forward = ActionCall("TestIngress.forward", (OUT_PORT, int(NEXT.replace(":", ""), 16)))
    core.tables["TestIngress.routes"].insert(TableEntry((Lpm(0x0A000000, 8),), 0, forward))
    return core


CORE = router()
PAYLOADS = st.binary(max_size=40)


def packet(payload: bytes, options: list[IPOption], **udp: int) -> Ether:
    ip = IP(src="192.168.0.1", dst="10.1.2.3", ttl=64, id=7, options=options)
    return Ether(src=HOST, dst=ROUTER) / ip / UDP(sport=1000, **udp) / Raw(payload)


@settings(max_examples=60, deadline=None)
@given(payload=PAYLOADS, words=st.integers(0, 10), port=st.sampled_from([1, 2000, 65535]))
def test_forwarded_packet_has_the_checksums_that_scapy_computes(payload: bytes, words: int, port: int) -> None:
    options = [IPOption(b"\x01" * (4 * words))] if words else []
    sent = packet(payload, options, dport=port)
    expected = packet(payload, options, dport=port)
    expected.src, expected.dst, expected[IP].ttl = ROUTER, NEXT, 63
    assert only(CORE, bytes(sent)) == (OUT_PORT, bytes(expected))


def test_an_ipv4_checksum_that_is_wrong_is_noticed_and_not_blessed() -> None:
    frame = bytearray(bytes(packet(b"x", [], dport=1)))
    for position in range(14, 34):
        damaged = bytearray(frame)
        damaged[position] ^= 0x10
        if damaged[14] >> 4 == 4 and damaged[14] & 15 == 5:
            assert only(CORE, bytes(damaged))[0] == BAD_PORT


def test_a_wrong_checksum_inside_the_options_is_noticed() -> None:
    frame = bytearray(bytes(packet(b"x", [IPOption(b"\x01" * 8)], dport=1)))
    frame[36] ^= 1
    assert only(CORE, bytes(frame))[0] == BAD_PORT


def test_a_udp_checksum_of_zero_means_none_and_stays() -> None:
    frame = bytes(packet(b"abc", [], dport=1, chksum=0))
    _, out = only(CORE, frame)
    assert Ether(out)[UDP].chksum == 0


def test_without_the_header_its_checksum_is_neither_verified_nor_updated() -> None:
    frame = bytes(Ether(src=HOST, dst=ROUTER, type=0x1234) / Raw(b"\x45" + bytes(30)))
    assert only(CORE, frame) == (OTHER_PORT, frame)


def test_a_packet_without_route_is_dropped_and_counted() -> None:
    core = router()
    lost = Ether(src=HOST, dst=ROUTER) / IP(dst="11.0.0.1") / UDP() / Raw(b"x")
    assert core.process(0, bytes(lost)).packets == []
    core.process(0, bytes(packet(b"x", [], dport=1)))
    routes = core.tables["TestIngress.routes"]
    assert routes.default_counter() == (1, len(bytes(lost)))
    assert routes.counter((Lpm(0x0A000000, 8),), 0) == (1, 43)


@pytest.mark.parametrize(("ether_type", "between"), [(0x0800, b""), (0x9000, b"\x77\x00"), (0x9001, b"\x99")])
@settings(max_examples=20, deadline=None)
@given(payload=PAYLOADS)
def test_inputs_of_headers_that_are_not_there_are_left_out(ether_type: int, between: bytes, payload: bytes) -> None:
    """The note's sum covers odd.value (if there), tag.value (if there), the Ethernet type and the payload."""
    whole = packet(payload, [], dport=7)
    frame = bytes(whole)
    frame = frame[:12] + ether_type.to_bytes(2, "big") + between + frame[14:]
    _, out = only(CORE, frame)
    tag = between[:1] if ether_type == 0x9000 else b""
    odd = between if ether_type == 0x9001 else b""
    covered = odd + tag + ether_type.to_bytes(2, "big") + payload
    assert int.from_bytes(out[:2], "big") == csum16(covered)
