"""Names of packets, link types and checksums."""

from __future__ import annotations

from packets.headers import Kind, LinkType

_ETHERTYPES = {0x0806: "arp", 0x88CC: "lldp", 0x88F7: "ptp", 0x8808: "pause", 0x8809: "lacp", 0x8915: "rocev1"}
_PROTOCOLS = {1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 58: "icmpv6"}
_LINKS = {
    9: "PPP", 105: "IEEE 802.11", 127: "radiotap", 147: "user 0", 189: "USB", 192: "PPI", 220: "USB", 227: "SocketCAN",
    239: "NFLOG", 247: "Infiniband", 249: "USB", 253: "netlink", 272: "IPMB", 280: "vsock",
}  # fmt: skip


def packet_name(kind: int, ip_version: int, protocol: int, ethertype: int, link_type: int) -> str:
    """Return the name of a packet with these fields of `packets.headers.Header`, for example ``ipv4/tcp``."""
    if kind == Kind.UNKNOWN_LINK:
        return f"link type {link_type}"
    if ip_version:
        return f"ipv{ip_version}/{'fragment' if kind == Kind.FRAGMENT else _PROTOCOLS.get(protocol, protocol)}"
    if ethertype in (0x0800, 0x86DD):
        return "ipv4 (malformed)" if ethertype == 0x0800 else "ipv6 (malformed)"
    if kind in (Kind.TRUNCATED, Kind.MALFORMED):
        return "short frame"
    if ethertype < 0x600:
        return "802.3/llc"
    return _ETHERTYPES.get(ethertype, f"ethertype 0x{ethertype:04x}")


def unread_link(link_type: int) -> str:
    """Return the message for an unsupported link type: its name, and what to do."""
    name = _LINKS.get(link_type)
    known = f"link type {link_type}" + (f" ({name})" if name else "")
    read = ", ".join(f"{int(link)} {link.name}" for link in LinkType)
    return f"packets of {known} are not decoded (decoded are {read}): capture on the Ethernet interface itself"
