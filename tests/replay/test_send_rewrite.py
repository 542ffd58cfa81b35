"""Other addresses: scapy builds the frame with the new ones, and ours must be the same byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.roce import BTH
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from replay.errors import ReplayError
from replay.send_rewrite import Rewrite, RoceAddressError

OLD = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
NEW = {"src": "06:aa:bb:cc:dd:01", "dst": "06:aa:bb:cc:dd:02"}
OLD4, NEW4 = {"src": "10.0.0.1", "dst": "10.0.0.2"}, {"src": "192.168.77.5", "dst": "203.0.113.254"}
OLD6, NEW6 = {"src": "fd00::1", "dst": "fd00::2"}, {"src": "2001:db8::77", "dst": "fe80::ffff"}
REWRITE = Rewrite.of(
    [f"{OLD[end]}={NEW[end]}" for end in OLD],
    [f"{old[end]}={new[end]}" for old, new in ((OLD4, NEW4), (OLD6, NEW6)) for end in old],
)
DATA = Raw(bytes(range(101)))


def frames(what: str, new: bool) -> bytes:
    """Return a frame of a kind, with the old addresses or the new ones."""
    mac, ip4, ip6 = (NEW, NEW4, NEW6) if new else (OLD, OLD4, OLD6)
    kinds: dict[str, Packet] = {
        "tcp": Ether(**mac) / IP(**ip4) / TCP(seq=7) / DATA,
        "tcp options": Ether(**mac) / IP(**ip4, options=[Raw(b"\x01" * 8)]) / TCP(seq=7) / DATA,
        "udp": Ether(**mac) / IP(**ip4) / UDP(sport=5, dport=6) / DATA,
        "udp without checksum": Ether(**mac) / IP(**ip4) / UDP(sport=5, dport=6, chksum=0) / DATA,
        "icmp": Ether(**mac) / IP(**ip4) / ICMP() / DATA,
        "later fragment": Ether(**mac) / IP(**ip4, frag=9, proto=6) / DATA,
        "tcp over ipv6": Ether(**mac) / IPv6(**ip6) / TCP(seq=7) / DATA,
        "udp over ipv6": Ether(**mac) / IPv6(**ip6) / UDP(sport=5, dport=6) / DATA,
        "icmpv6": Ether(**mac) / IPv6(**ip6) / ICMPv6EchoRequest() / DATA,
        "extensions": Ether(**mac) / IPv6(**ip6) / IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt() / TCP(seq=3) / DATA,
        "ipv6 later fragment": Ether(**mac) / IPv6(**ip6) / IPv6ExtHdrFragment(nh=6, offset=8) / DATA,
        "vlan": Ether(**mac) / Dot1Q(vlan=5) / IP(**ip4) / TCP(seq=7) / DATA,
        "two vlans": Ether(**mac, type=0x88A8) / Dot1Q(vlan=5) / Dot1Q(vlan=6) / IP(**ip4) / TCP(seq=7) / DATA,
        "arp": Ether(**mac) / ARP(hwsrc=mac["src"], hwdst=mac["dst"], psrc=ip4["src"], pdst=ip4["dst"]),
        "other": Ether(**mac, type=0x88F7) / DATA,
    }  # fmt: skip
    return bytes(kinds[what])


KINDS = (
    "tcp", "tcp options", "udp", "udp without checksum", "icmp", "later fragment", "tcp over ipv6", "udp over ipv6",
    "icmpv6", "extensions", "ipv6 later fragment", "vlan", "two vlans", "arp", "other",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_becomes_what_it_would_have_been(kind: str) -> None:
    assert REWRITE.apply(frames(kind, new=False)) == frames(kind, new=True)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_others_and_frames_cut_anywhere_stay(kind: str) -> None:
    whole = frames(kind, new=False)
    assert Rewrite().apply(whole) == whole
    assert Rewrite.of(["06:00:00:00:00:09=06:00:00:00:00:08"], ["10.9.9.9=10.9.9.8"]).apply(whole) == whole
    for length in range(len(whole)):
        assert len(REWRITE.apply(whole[:length])) == length


SIGNIFICANT = {"tcp": 14 + 20 + 16, "udp": 14 + 20 + 6, "tcp over ipv6": 14 + 40 + 16, "icmpv6": 14 + 40 + 2}


@given(st.sampled_from(sorted(SIGNIFICANT)), st.data())
def test_damage_before_the_capture_stays_as_large_as_it_was(kind: str, data: st.DataObject) -> None:
    """A checksum that was wrong by some amount is wrong by that amount afterwards."""
    sound, place = frames(kind, new=False), SIGNIFICANT[kind]
    error = data.draw(st.integers(1, 0xFFFE))
    damaged = bytearray(sound)
    damaged[place : place + 2] = (
        (int.from_bytes(sound[place : place + 2], "big") + error) % 0xFFFF or 0xFFFF
    ).to_bytes(2, "big")
    made, expected = REWRITE.apply(bytes(damaged)), frames(kind, new=True)
    difference = int.from_bytes(made[place : place + 2], "big") - int.from_bytes(expected[place : place + 2], "big")
    assert difference % 0xFFFF == error
    assert made[:place] + made[place + 2 :] == expected[:place] + expected[place + 2 :]


@given(st.binary(max_size=120))
def test_any_bytes_are_taken(data: bytes) -> None:
    try:
        assert len(REWRITE.apply(data)) == len(data)
    except RoceAddressError:
        assert b"\x12\xb7" in data


def roce(version: int) -> bytes:
    network = IP(**OLD4) if version == 4 else IPv6(**OLD6)
    return bytes(Ether(**OLD) / network / UDP(sport=9, dport=4791, chksum=0) / BTH(dqpn=5) / DATA)


@pytest.mark.parametrize("version", [4, 6])
def test_rocev2_may_get_other_mac_addresses_only(version: int) -> None:
    frame = roce(version)
    macs = Rewrite(REWRITE.macs)
    assert macs.apply(frame) == bytes.fromhex((NEW["dst"] + NEW["src"]).replace(":", "")) + frame[12:]
    with pytest.raises(RoceAddressError, match="iCRC covers the IP addresses"):
        REWRITE.apply(frame)
    # Addresses of others are no reason.
    others = Rewrite.of([], ["10.9.9.9=10.9.9.8"])
    assert others.apply(frame) == frame


@pytest.mark.parametrize(
    ("macs", "ips", "words"),
    [
        (["02:00:00:00:00:01"], [], "--rewrite-mac 02:00:00:00:00:01: is no pair of addresses; write OLD=NEW"),
        (["02:00:00:00:00=02:00:00:00:00:01"], [], "--rewrite-mac 02:00:00:00:00: is no MAC address"),
        ([], ["10.0.0.1=host"], "--rewrite-ip host: is no IP address"),
        ([], ["10.0.0.1=fd00::1"], "the addresses are of different families"),
        ([], ["10.0.0.1=10.0.0.2", "10.0.0.1=10.0.0.3"], "10.0.0.1 is rewritten already"),
    ],
)
def test_mistakes_are_told_with_their_option(macs: list[str], ips: list[str], words: str) -> None:
    with pytest.raises(ReplayError) as caught:
        Rewrite.of(macs, ips)
    assert words in str(caught.value)
