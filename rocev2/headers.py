"""Frames to RoCEv2 packets: Ethernet, VLAN tags, IPv4/IPv6, UDP 4791, BTH and its extended headers.

Formats: IEEE 802.3 and 802.1Q, RFC 791, RFC 8200, RFC 768, IBTA volume 1 chapter 9 and annex A17. Every length is
checked before a field is read, so that no bytes can make `parse` raise.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rocev2.icrc import icrc
from rocev2.opcodes import AETH, ATOMIC_ETH, DETH, IMM, KNOWN, RDETH, RETH, extended_header_bytes, unknown

UDP_PORT = 4791
"""UDP destination port of RoCEv2 (IANA)."""
_ETHERTYPES = {0x0806: "arp", 0x88CC: "lldp", 0x88F7: "ptp", 0x8808: "pause", 0x8809: "lacp", 0x8915: "rocev1"}
_PROTOCOLS = {1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 58: "icmpv6"}
_TAGS = {0x8100, 0x88A8, 0x9100}
_EXTENSIONS = {0, 43, 60, 135}  # IPv6 headers that are skipped: hop-by-hop, routing, destination, mobility


class Foreign(NamedTuple):
    """A frame that is not RoCEv2."""

    name: str
    """What it is, for example ``ipv4/tcp`` or ``arp``."""
    mark: str | None = None
    """What more is known of it, for example ``ptp``."""


class Broken(NamedTuple):
    """A frame to the RoCEv2 port that must not be used."""

    mark: str
    """Why: what is wrong with it."""


class RoceFrame(NamedTuple):
    """One RoCEv2 packet with a right iCRC."""

    source_mac: bytes
    source: bytes
    """Source IP address, 4 or 16 bytes."""
    destination: bytes
    """Destination IP address, 4 or 16 bytes."""
    udp_source: int
    """UDP source port: the same for all packets of a connection (entropy for ECMP)."""
    congested: bool
    """ECN says congestion experienced."""
    opcode: int
    dest_qp: int
    psn: int
    ack_requested: bool
    address: int
    """RETH virtual address, 0 without RETH."""
    rkey: int
    """RETH remote key, 0 without RETH."""
    length: int
    """RETH DMA length in bytes, 0 without RETH."""
    immediate: int
    """Immediate data as NCCL means it (little endian), -1 without ImmDt."""
    syndrome: int
    """AETH syndrome, -1 without AETH."""
    payload: bytes
    """The payload, without pad bytes."""


def parse(data: bytes, original_length: int) -> RoceFrame | Foreign | Broken:
    """Return what the frame is.

    Args:
        data: captured bytes from the Ethernet destination on.
        original_length: bytes on the wire; more than ``len(data)`` when the snapshot length cut the frame.
    """
    if len(data) < 14:
        return Foreign("short frame")
    kind = (data[12] << 8) | data[13]
    start = 14
    while kind in _TAGS:
        if len(data) < start + 4:
            return Foreign("short frame")
        kind = (data[start + 2] << 8) | data[start + 3]
        start += 4
    if kind == 0x86DD:
        return _ipv6(data, start, original_length)
    if kind == 0x0800:
        return _ipv4(data, start, original_length)
    if kind < 0x600:
        return Foreign("802.3/llc (stp)" if data[start : start + 2] == b"\x42\x42" else "802.3/llc")
    return Foreign(_ETHERTYPES.get(kind, f"ethertype 0x{kind:04x}"))


def _ipv4(data: bytes, start: int, original_length: int) -> RoceFrame | Foreign | Broken:
    header = data[start : start + 20]
    if len(header) < 20 or header[0] >> 4 != 4 or header[0] & 15 < 5:
        return Foreign("ipv4 (malformed)")
    fragment = ((header[6] & 0x3F) << 8) | header[7]  # the more-fragments bit and the offset
    if fragment:
        return Foreign("ipv4/fragment")
    protocol = header[9]
    head = (header[0] & 15) * 4
    end = start + ((header[2] << 8) | header[3])
    if protocol != 17:
        return Foreign(f"ipv4/{_PROTOCOLS.get(protocol, protocol)}")
    return _udp(data, "ipv4", header, start + head, end, original_length)


def _ipv6(data: bytes, start: int, original_length: int) -> RoceFrame | Foreign | Broken:
    header = data[start : start + 40]
    if len(header) < 40 or header[0] >> 4 != 6:
        return Foreign("ipv6 (malformed)")
    protocol = header[6]
    position = start + 40
    end = position + ((header[4] << 8) | header[5])
    while protocol in _EXTENSIONS:
        if len(data) < position + 8:
            return Foreign("ipv6 (malformed)")
        protocol, position = data[position], position + 8 + data[position + 1] * 8
    if protocol != 17:
        return Foreign("ipv6/fragment" if protocol == 44 else f"ipv6/{_PROTOCOLS.get(protocol, protocol)}")
    return _udp(data, "ipv6", header, position, end, original_length)


def _udp(
    data: bytes, family: str, network: bytes, start: int, end: int, original_length: int
) -> RoceFrame | Foreign | Broken:
    if len(data) < start + 8:
        return Foreign(f"{family} (malformed)")
    source, destination, length = struct.unpack_from("!HHH", data, start)
    if destination != UDP_PORT:
        return Foreign(f"{family}/udp", "ptp" if destination in (319, 320) else None)
    stop = start + length
    if length < 8 or stop > end:
        return Broken("wrong length")
    if stop > len(data):
        return Broken("cut by snaplen" if original_length > len(data) else "wrong length")
    if length < 8 + 12 + 4:
        return Broken("wrong length")
    opcode = data[start + 8]
    if opcode not in KNOWN:
        return Broken(unknown(opcode))
    body = data[start + 8 : stop - 4]
    crc = icrc(network, data[start : start + 8], body)
    if crc != int.from_bytes(data[stop - 4 : stop], "little"):
        return Broken("wrong iCRC")
    return _transport(data[6:12], network, source, body)


def _transport(source_mac: bytes, network: bytes, udp_source: int, body: bytes) -> RoceFrame | Broken:
    opcode = body[0]
    parts = KNOWN[opcode]
    position = 12 + extended_header_bytes(opcode)
    end = len(body) - ((body[1] >> 4) & 3)
    if end < position:
        return Broken("wrong length")
    address = rkey = length = 0
    immediate = syndrome = -1
    at = 12
    if parts & RDETH:
        at += 4
    if parts & DETH:
        at += 8
    if parts & RETH:
        address, rkey, length = struct.unpack_from("!QII", body, at)
        at += 16
    if parts & ATOMIC_ETH:
        at += 28
    if parts & AETH:
        syndrome = body[at]
        at += 4
    if parts & IMM:
        immediate = int.from_bytes(body[at : at + 4], "little")
    if len(network) == 20:
        source, destination, traffic_class = network[12:16], network[16:20], network[1]
    else:
        source, destination, traffic_class = network[8:24], network[24:40], network[1] >> 4
    return RoceFrame(
        source_mac, source, destination, udp_source, traffic_class & 3 == 3, opcode,
        int.from_bytes(body[5:8], "big"), int.from_bytes(body[9:12], "big"), body[8] & 0x80 != 0,
        address, rkey, length, immediate, syndrome, body[position:end],
    )  # fmt: skip
