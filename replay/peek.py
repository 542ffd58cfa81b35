"""A quick look at a captured packet: which TCP connection, which bytes; or what else it is. Verifies nothing."""

from __future__ import annotations

import struct
from typing import NamedTuple

from capture.model import LINKTYPE_ETHERNET, Packet

SYN = 0x02
_ETHERNET = struct.Struct("!12xH")
_U16 = struct.Struct("!H")
_U32 = struct.Struct("!I")
_IPV4 = 0x0800
_VLAN_TAGS = (0x8100, 0x88A8)
_ROCEV2_PORT = (4791).to_bytes(2, "big")
_IPV6 = 0x86DD
_UDP = 17
_ETHERTYPES = {0x0806: "arp", 0x88CC: "lldp", 0x88F7: "ptp", 0x8808: "pause"}
_PROTOCOLS = {1: "icmp", 2: "igmp", _UDP: "udp"}


class Peek(NamedTuple):
    """The TCP part of a packet, as far as it was captured."""

    key: bytes
    """Source and destination IPv4 address and port, 12 bytes: one direction of one connection."""
    flags: int
    """Flag byte of the TCP header."""
    seq: int
    """Sequence number."""
    payload: bytes
    """Payload without Ethernet padding."""


def peek(packet: Packet) -> Peek | str:
    """Return the TCP segment in `packet`, or the name of what it is instead."""
    data = packet.data
    if packet.link_type != LINKTYPE_ETHERNET:
        return f"link type {packet.link_type}"
    if len(data) < 14:
        return "cut off"
    ethertype = _ETHERNET.unpack_from(data)[0]
    start = 14
    if ethertype in _VLAN_TAGS and len(data) >= 18:
        ethertype = _U16.unpack_from(data, 16)[0]
        start = 18
    if ethertype == _IPV6:
        roce = data[start + 6 : start + 7] == bytes([_UDP]) and data[start + 42 : start + 44] == _ROCEV2_PORT
        return "rocev2" if roce else "ipv6"
    if ethertype != _IPV4:
        return _ETHERTYPES.get(ethertype, "802.3" if ethertype < 0x600 else f"ethertype {ethertype:#06x}")
    if len(data) < start + 20:
        return "cut off"
    tcp = start + ((data[start] & 0xF) << 2)
    if data[start + 9] != 6:
        if data[start + 9] == _UDP and data[tcp + 2 : tcp + 4] == _ROCEV2_PORT:
            return "rocev2"
        return _PROTOCOLS.get(data[start + 9], f"ip protocol {data[start + 9]}")
    if len(data) < tcp + 20:
        return "cut off"
    end = start + _U16.unpack_from(data, start + 2)[0]
    begin = tcp + (data[tcp + 12] >> 4 << 2)
    key = data[start + 12 : start + 20] + data[tcp : tcp + 4]
    return Peek(key, data[tcp + 13], _U32.unpack_from(data, tcp + 4)[0], data[begin:end])


def dotted(key: bytes) -> tuple[str, int, str, int]:
    """Return source address and port, destination address and port of a `Peek.key`."""
    source, destination = (".".join(map(str, key[i : i + 4])) for i in (0, 4))
    return source, _U16.unpack_from(key, 8)[0], destination, _U16.unpack_from(key, 10)[0]
