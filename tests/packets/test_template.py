"""Frames are, byte for byte, what scapy builds from the same fields."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from nccl_emu.tcp import Segment
from nccl_emu.tcp.segment import FLAGS_OF
from packets.frame import parse_frame
from packets.template import FrameTemplate, PacketError

MACS = ("02:00:00:00:00:01", "02:00:00:0a:ff:02")
IPS = ("10.1.0.1", "192.168.255.2")

u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
payloads = st.one_of(
    st.binary(max_size=70),
    # Sizes on both sides of the change of algorithm, odd ones among them, up to a jumbo frame; runs of 0x00 or
    # 0xFF are the corner cases of the ones' complement sum.
    st.builds(
        lambda size, seed: random.Random(seed).randbytes(size),
        st.one_of(st.integers(500, 530), st.integers(0, 8960)),
        st.integers(0, 1000),
    ),
    st.builds(lambda byte, size: bytes([byte]) * size, st.sampled_from([0, 0xFF]), st.integers(0, 1500)),
)
segments = st.builds(
    Segment,
    src_port=u16,
    dst_port=u16,
    seq=u32,
    ack=u32,
    flags=st.sampled_from(FLAGS_OF),
    window=u16,
    payload=payloads,
    dscp=st.integers(0, 63),
    mss=st.one_of(st.none(), u16),
    window_scale=st.one_of(st.none(), st.integers(0, 255)),
)


def by_scapy(segment: Segment, ident: int, ttl: int, dont_fragment: bool) -> bytes:
    options: list[tuple[str, Any]] = []
    if segment.mss is not None:
        options.append(("MSS", segment.mss))
    if segment.window_scale is not None:
        options.append(("WScale", segment.window_scale))
    flags = "DF" if dont_fragment else 0
    ip = IP(src=IPS[0], dst=IPS[1], tos=segment.dscp << 2, id=ident, ttl=ttl, flags=flags)
    tcp = TCP(
        sport=segment.src_port,
        dport=segment.dst_port,
        seq=segment.seq,
        ack=segment.ack,
        flags=int(segment.flags),
        window=segment.window,
        options=options,
    )
    return bytes(Ether(src=MACS[0], dst=MACS[1]) / ip / tcp / segment.payload)


@given(segments, u16, st.integers(1, 255), st.booleans())
@settings(max_examples=200, deadline=None)
def test_equal_to_scapy_and_back(segment: Segment, ident: int, ttl: int, dont_fragment: bool) -> None:
    template = FrameTemplate(*MACS, *IPS, ttl=ttl, dont_fragment=dont_fragment)
    frame = template.build(segment, ident)
    assert frame == by_scapy(segment, ident, ttl, dont_fragment)
    parsed = parse_frame(frame)
    assert parsed is not None
    assert parsed.checksums_ok
    assert parsed.segment == segment
    assert (parsed.src_mac, parsed.dst_mac, parsed.src_ip, parsed.dst_ip) == (*MACS, *IPS)
    assert (parsed.ident, parsed.ttl, parsed.ecn, parsed.vlan) == (ident, ttl, 0, None)


def test_checksum_that_comes_out_zero() -> None:
    """Zero has two representations in ones' complement; the field must hold the one that scapy writes."""
    template = FrameTemplate(*MACS, *IPS)
    base = Segment(1, 2, 0, 0, FLAGS_OF[16], 0)
    zeros = 0
    for ack in range(1 << 16):
        frame = template.build(dataclasses.replace(base, ack=ack))
        if frame[50:52] in (b"\x00\x00", b"\xff\xff"):
            zeros += 1
            assert frame == by_scapy(dataclasses.replace(base, ack=ack), 0, 64, True)
    assert zeros >= 1


@pytest.mark.parametrize(
    ("changes", "name", "offset"),
    [
        ({"src_port": 65536}, "src_port", 34),
        ({"dst_port": -1}, "dst_port", 36),
        ({"seq": 1 << 32}, "seq", 38),
        ({"ack": -1}, "ack", 42),
        ({"window": 65536}, "window", 48),
        ({"dscp": 64}, "dscp", 15),
        ({"payload": bytes(65496)}, "total length", 16),
        ({"mss": 65536}, "mss", 54),
        ({"window_scale": 256}, "window_scale", 54),
    ],
)
def test_a_field_that_does_not_fit_is_named(changes: dict[str, Any], name: str, offset: int) -> None:
    segment = dataclasses.replace(Segment(1, 2, 3, 4, FLAGS_OF[16], 5), **changes)
    with pytest.raises(PacketError, match=name) as caught:
        FrameTemplate(*MACS, *IPS).build(segment)
    assert caught.value.offset == offset


def test_identification_that_does_not_fit_is_named() -> None:
    with pytest.raises(PacketError, match="ident"):
        FrameTemplate(*MACS, *IPS).build(Segment(1, 2, 3, 4, FLAGS_OF[16], 5), 65536)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("02:00:00:00:00", MACS[1], *IPS), "src_mac"),
        ((MACS[0], "02-00-00-00-00-01", *IPS), "dst_mac"),
        ((MACS[0], "02:00:00:00:00:0g", *IPS), "dst_mac"),
        ((*MACS, "10.0.0", IPS[1]), "src_ip"),
        ((*MACS, IPS[0], "10.0.0.256"), "dst_ip"),
        ((*MACS, IPS[0], "rank1"), "dst_ip"),
    ],
)
def test_a_wrong_address_is_named(arguments: tuple[str, str, str, str], name: str) -> None:
    with pytest.raises(PacketError, match=name):
        FrameTemplate(*arguments)


def test_a_wrong_ttl_is_named() -> None:
    with pytest.raises(PacketError, match="ttl"):
        FrameTemplate(*MACS, *IPS, ttl=0)
