"""Frames: against scapy's iCRC, every header variant, damaged lengths, and bytes from an enemy."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.all import IP, UDP, Ether, IPv6, raw
from scapy.contrib.roce import BTH

from capture.model import Packet
from rocev2.encode import Traffic, encode, to_packets
from rocev2.frames import Endpoint, Transport, frame
from rocev2.headers import Verdict
from rocev2.opcodes import ACKNOWLEDGE, CNP, KNOWN, RD, UD_SEND_ONLY, WRITE_ONLY_IMM
from rocev2.report import decode
from tests.rocev2.parsing import RoceFrame, parse

ATOMICS = {0x12, 0x13, 0x14, 0x52, 0x53, 0x54}  # read, never written
V4 = (Endpoint(bytes(6), bytes((10, 0, 0, 1))), Endpoint(bytes(6), bytes((10, 0, 0, 2))))
V6 = (Endpoint(bytes(6), bytes(15) + b"\1"), Endpoint(bytes(6), bytes(15) + b"\2"))


@pytest.mark.parametrize("layer", [IP(src="10.0.0.1", dst="10.0.0.2", tos=0x6A, ttl=3), IPv6(tc=0x6A, fl=77, hlim=9)])
@pytest.mark.parametrize("payload", [b"", b"gradient" * 5])
def test_icrc_is_that_of_scapy(layer: IP | IPv6, payload: bytes) -> None:
    packet = Ether() / layer / UDP(sport=50000, dport=4791, chksum=0) / BTH(opcode=10, dqpn=77, psn=5, becn=1) / payload
    head = raw(packet)
    parsed = parse(head, len(head))
    if not payload:  # without RETH a WRITE_ONLY is too short, which is found only after the iCRC is right
        assert parsed == Verdict.LENGTH
    else:
        assert isinstance(parsed, RoceFrame)
        assert (parsed.dest_qp, parsed.psn, parsed.udp_source) == (77, 5, 50000)


@pytest.mark.parametrize("ends", [V4, V6])
@pytest.mark.parametrize("vlans", [(), (5,), (100, 7)])
@pytest.mark.parametrize("opcode", sorted(KNOWN.keys() - ATOMICS))
def test_every_opcode_comes_back(ends: tuple[Endpoint, Endpoint], vlans: tuple[int, ...], opcode: int) -> None:
    packet = Transport(opcode, 0xABCDEF, 0xFFFFFF, b"12345", 1 << 63, 0xDEADBEEF, 5, 0x01020304, 0x60, 9, True)
    parsed = parse(frame(*ends, 4242, packet, vlans=vlans, congested=True), 2000)
    assert isinstance(parsed, RoceFrame)
    assert (parsed.source, parsed.destination, parsed.udp_source) == (ends[0].ip, ends[1].ip, 4242)
    assert (parsed.opcode, parsed.dest_qp, parsed.psn) == (opcode, 0xABCDEF, 0xFFFFFF)
    assert parsed.payload == b"12345"
    assert parsed.immediate in (-1, 0x01020304)
    assert (parsed.address, parsed.length) in ((0, 0), (1 << 63, 5))


def test_any_flipped_bit_that_the_icrc_covers_is_found() -> None:
    good = frame(*V6, 4242, Transport(WRITE_ONLY_IMM, 7, 8, b"x" * 16, 64, 2, 16, 16))
    for position in range(14 + 40 + 8, len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        parsed = parse(bytes(bad), len(bad))
        if position == 14 + 40 + 8 + 4:  # FECN, BECN: routers may set them
            assert isinstance(parsed, RoceFrame)
        else:
            assert isinstance(parsed, Verdict), position


def test_a_cut_frame_is_named_and_a_wrong_length_too() -> None:
    good = frame(*V4, 4242, Transport(WRITE_ONLY_IMM, 7, 8, b"x" * 64, 64, 2, 64, 64))
    assert parse(good[:80], len(good)) == Verdict.CUT
    assert parse(good[:80], 80) == Verdict.LENGTH
    assert isinstance(parse(good + b"\0" * 20, len(good) + 20), RoceFrame)  # Ethernet padding


def names(*frames: bytes) -> dict[str, int]:
    return decode(
        [Packet(n, 0, data, len(data), 0, 1, 0) for n, data in enumerate(frames, 1)],
        use_p2p=False,
        dtype=None,
        file="x",
    ).other


def test_other_traffic_is_named() -> None:
    ethernet = bytes(12)
    fragment = raw(Ether() / IP(src="1.1.1.1", dst="2.2.2.2", flags="MF", proto=17) / (b"x" * 40))
    assert names(
        ethernet + b"\x08\x06" + bytes(46),
        ethernet + b"\x88\xcc" + bytes(46),
        ethernet + b"\x88\xf7" + bytes(46),
        ethernet + b"\x00\x69\x42\x42\x03" + bytes(43),
        ethernet + b"\x12\x34" + bytes(46),
        raw(Ether() / IP(src="1.1.1.1", dst="2.2.2.2", proto=6) / bytes(20)),
        raw(Ether() / IP(src="1.1.1.1", dst="2.2.2.2") / UDP(dport=53)),
        fragment,
        b"short",
    ) == {
        "arp": 1, "lldp": 1, "ptp": 1, "802.3/llc (stp)": 1, "ethertype 0x1234": 1, "ipv4/tcp": 1, "ipv4/udp": 1,
        "ipv4/fragment": 1, "short frame": 1,
    }  # fmt: skip


def test_signals_are_counted_by_name_and_wrong_icrcs_not_used() -> None:
    capture = encode(Traffic(buckets=(1200,)))
    packets = to_packets(capture.packets)
    broken = bytearray(packets[20].data)
    broken[-6] ^= 1
    extra = [
        frame(*V6, 1, Transport(CNP, 5, 0, bytes(16))),
        frame(*V6, 1, Transport(ACKNOWLEDGE, 5, 3, syndrome=0x60)),
        frame(*V6, 1, Transport(ACKNOWLEDGE, 5, 3, syndrome=0x20)),
        frame(*V6, 1, Transport(UD_SEND_ONLY, 1, 0, bytes(64))),
        frame(*V6, 1, Transport(UD_SEND_ONLY, 1, 0, b"\1\7" + bytes(254))),
        frame(*V6, 1, Transport(UD_SEND_ONLY, 9, 0, bytes(64))),
        frame(*V6, 1, Transport(RD, 9, 0, bytes(64))),
        frame(*V6, 1, Transport(ACKNOWLEDGE, 5, 4), congested=True),
        bytes(broken),
    ]
    packets += [Packet(1000 + n, 0, data, len(data), 0, 1, 0) for n, data in enumerate(extra)]
    packets.append(Packet(2000, 0, b"frame of another link", 21, 0, 127, 0))
    found = decode(packets, use_p2p=False, dtype="float32", file="x")
    assert found.marks == {
        "cnp": 1, "nak": 1, "rnr_nak": 1, "ud_qp1": 1, "connection_manager": 1, "ud_send_only": 1, "rd_send_first": 1,
        "ecn_ce": 1, "wrong iCRC": 1,
    }  # fmt: skip
    assert found.other == {"link type 127": 1}
    assert found.all_reduces[0].tensor == capture.tensors[0]


@given(st.binary(max_size=200), st.integers(0, 3000))
def test_no_bytes_make_the_parser_fail(data: bytes, length: int) -> None:
    for head in (b"", bytes(12) + b"\x86\xdd\x60", bytes(12) + b"\x08\x00\x45"):
        assert isinstance(parse(head + data, length), RoceFrame | Verdict)


def test_mutated_frames_with_right_icrcs_do_no_harm() -> None:
    """Fields made absurd one by one, signed again: no crash, no unbounded time; what remains is right."""
    capture = encode(Traffic(buckets=(2500,), p2p=True))
    rng = random.Random(4)
    for _ in range(150):
        packets = []
        for packet in capture.packets:
            sent = packet.sent.packet
            if rng.random() < 0.05:
                sent = Transport(
                    rng.choice(sorted(KNOWN.keys() - ATOMICS)),
                    rng.choice([sent.dest_qp, rng.getrandbits(24)]),
                    rng.choice([sent.psn, rng.getrandbits(24)]),
                    rng.choice([sent.payload, b"", rng.randbytes(rng.randrange(1, 1100))]),
                    rng.choice([sent.address, 0, (1 << 64) - 1, rng.getrandbits(64)]),
                    sent.rkey,
                    rng.choice([sent.length, 0, (1 << 32) - 1, rng.getrandbits(32)]),
                    rng.choice([sent.immediate, (1 << 32) - 1]),
                    rng.getrandbits(8),
                )
            ends = V6 if packet.source == 0 else V6[::-1]
            packets.append(frame(*ends, packet.sent.udp_source, sent))
        frames = [Packet(n, 0, data, len(data), 0, 1, 0) for n, data in enumerate(packets, 1)]
        found = decode(frames, use_p2p=True, dtype="float32", file="x")
        assert found.rocev2_packets == len(frames)
