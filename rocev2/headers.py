"""Frames to RoCEv2 packets: the iCRC, and the headers behind the base transport header.

Formats: IBTA volume 1 chapter 9 and annex A17. Every length is checked before a field is read, so that no bytes
can make `parse` raise.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from packets.headers import ICRC_BYTES, ROCE_PORT, Header, Kind, LinkType
from packets.names import packet_name
from packets.reference import decode_packet
from rocev2.icrc import icrc
from rocev2.opcodes import AETH, ATOMIC_ETH, DETH, IMM, KNOWN, RDETH, RETH, extended_header_bytes, unknown

_UDP = 17
_PTP_PORTS = (319, 320)
_SPANNING_TREE = b"\x42\x42"


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


def parse(data: bytes, original_length: int, link_type: int = LinkType.ETHERNET) -> RoceFrame | Foreign | Broken:
    """Return what the frame is.

    Args:
        data: captured bytes from the link header on.
        original_length: bytes on the wire; more than ``len(data)`` when the snapshot length cut the frame.
        link_type: LINKTYPE_* of `data`.
    """
    header = decode_packet(memoryview(data), 0, len(data), original_length, link_type, False)
    if header.kind != Kind.ROCE:
        if header.protocol == _UDP and header.kind in (Kind.MALFORMED, Kind.TRUNCATED) and _to_roce(data, header):
            return Broken("cut by snaplen" if header.kind == Kind.TRUNCATED else "wrong length")
        name = packet_name(header.kind, header.ip_version, header.protocol, header.ethertype, link_type)
        if header.ethertype < 0x600 and header.ethertype and data[14 : 14 + 2] == _SPANNING_TREE:
            name = "802.3/llc (stp)"
        return Foreign(name, "ptp" if header.destination_port in _PTP_PORTS and header.kind == Kind.UDP else None)
    if header.short:
        return Broken("cut by snaplen")
    opcode = header.opcode
    if opcode not in KNOWN:
        return Broken(unknown(opcode))
    network = data[header.network : header.network + (20 if header.ip_version == 4 else 40)]
    udp, begin = header.transport, header.transport + 8
    stop = header.payload + header.payload_length
    body = data[begin:stop]
    if icrc(network, data[udp:begin], body) != int.from_bytes(data[stop : stop + ICRC_BYTES], "little"):
        return Broken("wrong iCRC")
    return _transport(header.ethernet_source.to_bytes(6, "big"), network, header.source_port, body)


def _to_roce(data: bytes, header: Header) -> bool:
    """Tell whether a damaged UDP packet goes to the RoCEv2 port, as far as that was captured."""
    options = (data[header.network] & 15) * 4 if header.ip_version == 4 else 40
    at = header.transport or header.network + options
    return data[at + 2 : at + 4] == ROCE_PORT.to_bytes(2, "big")


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
