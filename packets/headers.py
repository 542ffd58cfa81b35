"""Decoded headers of a packet, and the constants for them."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

ROCE_PORT = 4791
"""UDP destination port of RoCEv2 (IANA)."""
ICRC_BYTES = 4
"""Invariant CRC behind a RoCEv2 packet."""
BTH_BYTES = 12
"""Base transport header of RoCEv2."""


class LinkType(IntEnum):
    """Link types that are decoded (https://www.tcpdump.org/linktypes.html)."""

    NULL = 0
    """BSD loopback: 4 bytes of address family in the byte order of the machine that captured."""
    ETHERNET = 1
    RAW_BSD = 12
    """Raw IP, the number that most systems use instead of 101."""
    RAW = 101
    LOOP = 108
    """OpenBSD loopback: like NULL, in network byte order."""
    LINUX_SLL = 113
    """Linux cooked capture, ``tcpdump -i any``."""
    IPV4 = 228
    IPV6 = 229
    LINUX_SLL2 = 276
    """Linux cooked capture, version 2."""


class Kind(IntEnum):
    """Kind of a packet."""

    OTHER = 0
    """Not IP, or a protocol other than TCP and UDP: `ethertype` and `protocol` say which."""
    TCP = 1
    UDP = 2
    ROCE = 3
    """RoCEv2: UDP to port 4791 with room for a base transport header and the iCRC, which is not verified here."""
    FRAGMENT = 4
    """A fragment of an IP packet: its payload is not decoded."""
    TRUNCATED = 5
    """The snapshot length cut it within its headers."""
    MALFORMED = 6
    """Its headers extend beyond its last byte or are inconsistent."""
    UNKNOWN_LINK = 7
    """The link type is none of `LinkType`."""


class Checksum(IntEnum):
    """State of a checksum."""

    UNCHECKED = 0
    """Not verified: not requested, not all bytes captured, or a protocol whose checksum is not supported."""
    OK = 1
    BAD = 2
    PARTIAL = 3
    """Not finished, as in captures on a host with offload: in TCP the field holds only the pseudo-header's sum, in IPv4
    it is 0; and neither is right if the IP length is 0. Nothing is known about the bytes."""
    ABSENT = 4
    """There is none: IPv6, UDP with a field of 0."""


class Header:
    """The headers of one packet; fields that were not reached or do not exist are 0.

    Positions are indices into the batch's `data`. All numbers are in host byte order.
    """

    kind: Annotated[int, "u1"] = 0
    """A `Kind`."""
    ip_version: Annotated[int, "u1"] = 0
    """4 or 6, 0 without a complete IP header."""
    protocol: Annotated[int, "u1"] = 0
    """IP protocol number after all extension headers."""
    tos: Annotated[int, "u1"] = 0
    """IPv4 type of service or IPv6 traffic class: DSCP and ECN."""
    ip_checksum: Annotated[int, "u1"] = 0
    """A `Checksum`, of the IPv4 header."""
    checksum: Annotated[int, "u1"] = 0
    """A `Checksum`, of TCP or UDP."""
    short: Annotated[int, "u1"] = 0
    """1 if the headers are complete, but the snapshot length cut the payload."""
    flags: Annotated[int, "u1"] = 0
    """TCP flag byte."""
    opcode: Annotated[int, "u1"] = 0
    """RoCEv2 opcode."""
    ack_request: Annotated[int, "u1"] = 0
    """RoCEv2 acknowledge request bit."""
    solicited: Annotated[int, "u1"] = 0
    """RoCEv2 solicited event bit."""
    pad: Annotated[int, "u1"] = 0
    """RoCEv2 pad bytes, 0..3, at the end of the payload."""
    ethertype: Annotated[int, "u2"] = 0
    """EtherType after all VLAN tags (a length below 0x600 in an 802.3 frame); for raw IP, by the version."""
    vlan_depth: Annotated[int, "u2"] = 0
    """Number of VLAN tags."""
    vlan: Annotated[int, "u2"] = 0
    """VLAN identifier of the outermost tag."""
    source_port: Annotated[int, "u2"] = 0
    """TCP or UDP source port."""
    destination_port: Annotated[int, "u2"] = 0
    """TCP or UDP destination port."""
    window: Annotated[int, "u2"] = 0
    """TCP window as on the wire."""
    seq: Annotated[int, "u4"] = 0
    """TCP sequence number."""
    ack: Annotated[int, "u4"] = 0
    """TCP acknowledgment number."""
    dest_qp: Annotated[int, "u4"] = 0
    """RoCEv2 destination queue pair."""
    psn: Annotated[int, "u4"] = 0
    """RoCEv2 packet sequence number."""
    payload_length: Annotated[int, "i8"] = 0
    """Captured bytes of the payload, without Ethernet padding; for RoCEv2 everything after the base transport header,
    including extended headers and pad, without the iCRC."""
    wire_payload_length: Annotated[int, "i8"] = 0
    """Bytes of the payload on the wire, more than `payload_length` only if `short` is 1."""
    payload: Annotated[int, "i8"] = 0
    """Position of the payload."""
    network: Annotated[int, "i8"] = 0
    """Position of the IP header."""
    transport: Annotated[int, "i8"] = 0
    """Position of the TCP or UDP header."""
    ethernet_source: Annotated[int, "u8"] = 0
    """Source MAC address, the first byte in bits 40 to 47; 0 if the link type has none."""
    ethernet_destination: Annotated[int, "u8"] = 0
    """Destination MAC address."""
    source_high: Annotated[int, "u8"] = 0
    """First 8 bytes of an IPv6 source address, 0 for IPv4."""
    source_low: Annotated[int, "u8"] = 0
    """Last 8 bytes of an IPv6 source address, or the IPv4 source address."""
    destination_high: Annotated[int, "u8"] = 0
    """Like `source_high`, for the destination."""
    destination_low: Annotated[int, "u8"] = 0
    """Like `source_low`, for the destination."""


HEADER = np.dtype(
    [(name, of.__metadata__[0]) for name, of in get_type_hints(Header, include_extras=True).items()], align=True
)
"""One row for each packet, with the fields of `Header` by name: ``headers["seq"]`` is a column."""

Headers = NDArray[Any]
"""[n] rows of `HEADER`."""
