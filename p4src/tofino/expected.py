"""Expected results of the source's parsers, written independently of any compiler.

One packet for every path through the parser, and for each of them packets that differ in a single inspected field: a
lost `select` shows as a header that is found although absent, or not found although present.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

_MACS = bytes(range(12))
_IPV4, _IPV6, _VLAN = 0x0800, 0x86DD, 0x8100
_TCP, _UDP, _ROCEV2 = 6, 17, 4791


@dataclass(frozen=True)
class Case:
    """A packet, described by the fields that the parsers inspect."""

    name: str
    """Its description."""
    vlan: bool = False
    """An 802.1Q tag."""
    ether_type: int = _IPV4
    """EtherType after Ethernet and the tag."""
    version: int = 4
    """IPv4 header: version."""
    ihl: int = 5
    """IPv4 header: length in 32-bit words."""
    more_fragments: bool = False
    """IPv4 header: flag."""
    fragment_offset: int = 0
    """IPv4 header: offset in units of 8 bytes."""
    protocol: int = _TCP
    """IPv4 protocol or IPv6 next header."""
    port: int = _ROCEV2
    """UDP destination port."""

    def packet(self) -> bytes:
        """Return the frame, long enough for all headers."""
        data = _MACS
        if self.vlan:
            data += struct.pack("!HH", _VLAN, 5)
        data += struct.pack("!H", self.ether_type)
        if self.ether_type == _IPV6:
            data += struct.pack("!IHBB", 6 << 28, 64, self.protocol, 64) + bytes(32)
        else:
            flags = self.more_fragments << 13 | self.fragment_offset
            first = self.version << 4 | self.ihl
            data += struct.pack("!BBHHHBBH", first, 0, 84, 1, flags, 64, self.protocol, 0) + bytes(8)
        return data + struct.pack("!HH", 1234, self.port) + bytes(76)

    def ingress_headers(self) -> frozenset[str]:
        """Return the headers that the ingress parser finds (`include/parser.p4`)."""
        found = {"ethernet"} | ({"vlan"} if self.vlan else set())
        transport = None
        if self.ether_type == _IPV4:
            found.add("ipv4")
            whole = (self.version, self.ihl, self.more_fragments, self.fragment_offset) == (4, 5, False, 0)
            transport = {_TCP: "tcp", _UDP: "udp"}.get(self.protocol) if whole else None
        elif self.ether_type == _IPV6:
            found.add("ipv6")
            transport = "udp" if self.protocol == _UDP else None
        if transport:
            found.add(transport)
        if transport == "udp" and self.port == _ROCEV2:
            found.add("bth")
        return frozenset(found)

    def egress_headers(self, *, replica_tcp: bool) -> frozenset[str]:
        """Return the headers that the egress parser finds (`tna/checkmate.p4`), which stops where rewriting stops."""
        found = {"ethernet"} | ({"vlan"} if self.vlan else set())
        if self.ether_type == _IPV4:
            found |= {"ipv4", "tcp"} if replica_tcp else {"ipv4"}
        return frozenset(found)


def cases() -> Iterator[Case]:
    """Yield every path through the parsers, and variants of each inspected field with one bit changed."""
    for vlan in (False, True):
        tag = "tagged " if vlan else ""
        tcp = Case(f"{tag}TCP over IPv4", vlan=vlan)
        yield tcp
        yield replace(tcp, name=f"{tag}UDP over IPv4", protocol=_UDP, port=53)
        yield replace(tcp, name=f"{tag}RoCEv2 over IPv4", protocol=_UDP)
        yield replace(tcp, name=f"{tag}UDP over IPv6", ether_type=_IPV6, protocol=_UDP, port=53)
        yield replace(tcp, name=f"{tag}RoCEv2 over IPv6", ether_type=_IPV6, protocol=_UDP)
        yield replace(tcp, name=f"{tag}TCP over IPv6", ether_type=_IPV6)
        yield replace(tcp, name=f"{tag}ARP", ether_type=0x0806)
        for bit in range(16):
            for ether_type in (_IPV4, _IPV6):
                strange = ether_type ^ 1 << bit
                if strange not in (_IPV4, _IPV6, _VLAN):
                    yield replace(tcp, name=f"{tag}EtherType {strange:#06x}", ether_type=strange)
            yield replace(tcp, name=f"{tag}UDP port bit {bit}", protocol=_UDP, port=_ROCEV2 ^ 1 << bit)
            yield replace(
                tcp, name=f"{tag}UDP port bit {bit}, IPv6", ether_type=_IPV6, protocol=_UDP, port=_ROCEV2 ^ 1 << bit
            )
        for bit in range(8):
            for protocol in (_TCP, _UDP):
                yield replace(tcp, name=f"{tag}protocol {protocol} bit {bit}", protocol=protocol ^ 1 << bit)
            next_header = _UDP ^ 1 << bit
            yield replace(tcp, name=f"{tag}next header {next_header}", ether_type=_IPV6, protocol=next_header)
        for bit in range(4):
            yield replace(tcp, name=f"{tag}version bit {bit}", version=4 ^ 1 << bit)
            yield replace(tcp, name=f"{tag}header length bit {bit}", ihl=5 ^ 1 << bit)
        for protocol in (_TCP, _UDP):
            yield replace(tcp, name=f"{tag}first fragment", more_fragments=True, protocol=protocol)
            for bit in range(13):
                yield replace(tcp, name=f"{tag}fragment offset bit {bit}", fragment_offset=1 << bit, protocol=protocol)
