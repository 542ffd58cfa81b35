"""The reader: what it skips, what it verifies, and what it says of garbage."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP, IPOption_Router_Alert
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet

from nccl_emu.tcp import Segment, TcpFlags
from packets.frame import parse_frame
from packets.template import FrameTemplate, PacketError

ETHERNET = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
ADDRESSES = {"src": "10.0.0.1", "dst": "10.0.0.2"}
PORTS = {"sport": 1000, "dport": 2000}
TEMPLATE = FrameTemplate("02:00:00:00:00:01", "02:00:00:00:00:02", "10.0.0.1", "10.0.0.2")
FRAME = TEMPLATE.build(Segment(1000, 2000, 7, 8, TcpFlags.ACK | TcpFlags.PSH, 500, b"gradient" * 8, 11), 99)


def parsed_segment(packet: Packet) -> Segment:
    parsed = parse_frame(bytes(packet))
    assert parsed is not None
    assert parsed.checksums_ok
    return parsed.segment


def test_vlan_tag_is_read_and_skipped() -> None:
    packet = ETHERNET / Dot1Q(vlan=77, prio=3) / IP(**ADDRESSES, tos=46 << 2 | 1) / TCP(**PORTS) / b"data"
    parsed = parse_frame(bytes(packet))
    assert parsed is not None
    assert (parsed.vlan, parsed.ecn, parsed.segment.dscp) == (77, 1, 46)
    assert (parsed.segment.payload, parsed.checksums_ok) == (b"data", True)


def test_ip_options_are_skipped() -> None:
    packet = ETHERNET / IP(**ADDRESSES, options=[IPOption_Router_Alert()]) / TCP(**PORTS, seq=5) / b"data"
    segment = parsed_segment(packet)
    assert (segment.seq, segment.payload) == (5, b"data")


def test_tcp_options_of_a_kernel_syn() -> None:
    options = [("MSS", 8960), ("SAckOK", b""), ("Timestamp", (1, 2)), ("NOP", None), ("WScale", 9)]
    segment = parsed_segment(ETHERNET / IP(**ADDRESSES) / TCP(**PORTS, flags="S", options=options))
    assert (segment.mss, segment.window_scale, segment.flags) == (8960, 9, TcpFlags.SYN)


def test_end_of_option_list_ends_the_options() -> None:
    options = [("EOL", None), ("MSS", 1)]
    assert parsed_segment(ETHERNET / IP(**ADDRESSES) / TCP(**PORTS, options=options)).mss is None


@pytest.mark.parametrize("size", [0, 1, 5])
def test_ethernet_padding_is_no_payload(size: int) -> None:
    frame = TEMPLATE.build(Segment(1, 2, 3, 4, TcpFlags.ACK, 5, b"x" * size))
    padded = frame.ljust(60, b"\xaa")
    assert len(padded) > len(frame)
    parsed = parse_frame(padded)
    assert parsed is not None
    assert (parsed.segment.payload, parsed.checksums_ok) == (b"x" * size, True)


def test_views_are_read_without_changing_them() -> None:
    buffer = bytearray(FRAME)
    assert parse_frame(memoryview(buffer)) == parse_frame(FRAME)
    assert buffer == FRAME
    big = b"head" + TEMPLATE.build(Segment(1, 2, 3, 4, TcpFlags.ACK, 5, random.Random(0).randbytes(3001)))
    parsed = parse_frame(memoryview(big)[4:])
    assert parsed is not None
    assert parsed.checksums_ok


@pytest.mark.parametrize(
    "packet",
    [
        ETHERNET / ARP(),
        ETHERNET / IPv6() / TCP(),
        ETHERNET / Dot1Q(vlan=1) / IPv6() / TCP(),
        ETHERNET / IP(**ADDRESSES) / UDP() / b"data",
    ],
    ids=["arp", "ipv6", "vlan-ipv6", "udp"],
)
def test_other_protocols_are_none(packet: Packet) -> None:
    assert parse_frame(bytes(packet)) is None


def changed(offset: int, *values: int) -> bytes:
    frame = bytearray(FRAME)
    frame[offset : offset + len(values)] = bytes(values)
    return bytes(frame)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "Ethernet"),
        (FRAME[:13], "Ethernet"),
        (FRAME[:12] + b"\x81\x00\x00", "Ethernet"),
        (FRAME[:33], "IPv4"),
        (FRAME[:-1], "IPv4"),
        (changed(14, 0x65), "IPv4"),
        (changed(14, 0x44), "IPv4"),
        (changed(16, 0, 19), "IPv4"),
        (changed(16, 0, 39), "TCP"),
        (changed(20, 0x20, 0), "fragments"),
        (changed(20, 0, 1), "fragments"),
        (changed(46, 0x40), "TCP"),
        (changed(16, 0, 44, *FRAME[18:46], 0x70), "TCP"),
    ],
)
def test_garbage_is_named_with_its_layer(frame: bytes, reason: str) -> None:
    with pytest.raises(PacketError, match=reason):
        parse_frame(frame)


@pytest.mark.parametrize(
    ("options", "kind", "place"),
    [
        (b"\x02\x03\x05\x00", 2, 0),
        (b"\x01\x03\x04\x00", 3, 1),
        (b"\x08\x01\x00\x00", 8, 0),
        (b"\x08\x00\x00\x00", 8, 0),
        (b"\x01\x01\x08\x0a", 8, 2),
        (b"\x01\x01\x01\x08", 8, 3),
    ],
)
def test_broken_options_are_named_with_their_place(options: bytes, kind: int, place: int) -> None:
    frame = bytearray(TEMPLATE.build(Segment(1, 2, 3, 4, TcpFlags.SYN, 5, b"", 0, 1000)))
    frame[54:58] = options
    with pytest.raises(PacketError, match=f"option {kind} ") as caught:
        parse_frame(bytes(frame))
    assert caught.value.offset == 54 + place


@given(st.integers(14 * 8, len(FRAME) * 8 - 1))
@settings(max_examples=300)
def test_every_single_bit_error_is_found(bit: int) -> None:
    frame = bytearray(FRAME)
    frame[bit >> 3] ^= 0x80 >> (bit & 7)
    try:
        parsed = parse_frame(bytes(frame))
    except PacketError:
        return
    assert parsed is None or not parsed.checksums_ok


def test_which_checksum_is_wrong() -> None:
    def verdict(frame: bytes) -> tuple[bool, bool]:
        parsed = parse_frame(frame)
        assert parsed is not None
        return parsed.ip_checksum_ok, parsed.tcp_checksum_ok

    assert verdict(FRAME) == (True, True)
    assert verdict(changed(22, 63)) == (False, True)  # TTL
    assert verdict(changed(60, 0)) == (True, False)  # payload
    assert verdict(changed(26, 11)) == (False, False)  # an address is in both


@given(st.binary(max_size=120))
@settings(max_examples=300)
def test_random_bytes_raise_nothing_but_packet_error(data: bytes) -> None:
    with contextlib.suppress(PacketError):
        parse_frame(data)


@given(
    st.integers(0, len(FRAME)),
    st.lists(st.tuples(st.integers(12, len(FRAME) - 1), st.integers(0, 255)), max_size=6),
    st.binary(max_size=20),
)
@settings(max_examples=500)
def test_mangled_frames_raise_nothing_but_packet_error(cut: int, edits: list[tuple[int, int]], tail: bytes) -> None:
    frame = bytearray(FRAME)
    for offset, value in edits:
        frame[offset] = value
    with contextlib.suppress(PacketError):
        parsed = parse_frame(bytes(frame[:cut]) + tail)
        if parsed is not None:
            assert len(parsed.segment.payload) <= cut + len(tail)
