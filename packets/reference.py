"""Decoding of headers in plain Python: the reference for `packets.kernels`, and the fallback without it."""

from __future__ import annotations

import struct
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from packets.batch import Bytes
from packets.checksum import sum_le, swap
from packets.headers import BTH_BYTES, HEADER, ICRC_BYTES, ROCE_PORT, Checksum, Header, Headers, Kind, LinkType

# Plain numbers: looking up an enum member takes longer than reading the field.
_FRAGMENT, _MALFORMED, _ROCE, _TCP_KIND = int(Kind.FRAGMENT), int(Kind.MALFORMED), int(Kind.ROCE), int(Kind.TCP)
_TRUNCATED, _UDP_KIND, _UNKNOWN_LINK = int(Kind.TRUNCATED), int(Kind.UDP), int(Kind.UNKNOWN_LINK)
_ABSENT, _BAD, _OK, _PARTIAL = int(Checksum.ABSENT), int(Checksum.BAD), int(Checksum.OK), int(Checksum.PARTIAL)
_ETHERNET = int(LinkType.ETHERNET)
_U16 = struct.Struct("!H").unpack_from
_MACS = struct.Struct("!HIHIH").unpack_from
_IPV4 = struct.Struct("!BBH2xHxBHII").unpack_from
_IPV6 = struct.Struct("!HxxHBxQQQQ").unpack_from
_TCP = struct.Struct("!HHIIBBHH").unpack_from
_UDP = struct.Struct("!HHHH").unpack_from
_TAGS = frozenset((0x8100, 0x88A8, 0x9100, 0x9200))
_EXTENSIONS = frozenset((0, 43, 44, 60, 135))
"""IPv6 headers that are skipped: hop-by-hop, routing, fragment (of a whole packet), destination, mobility."""
_LINK_BYTES = {
    int(LinkType.ETHERNET): (14, 12),
    int(LinkType.LINUX_SLL): (16, 14),
    int(LinkType.LINUX_SLL2): (20, 0),
}
"""Length of the link header, and the position of the EtherType in it."""
_VERSIONS = {
    int(LinkType.RAW): (0, (4, 6)),
    int(LinkType.RAW_BSD): (0, (4, 6)),
    int(LinkType.NULL): (4, (4, 6)),
    int(LinkType.LOOP): (4, (4, 6)),
    int(LinkType.IPV4): (0, (4,)),
    int(LinkType.IPV6): (0, (6,)),
}
"""Bytes before the IP header, and the IP versions that may follow, of link types without an EtherType."""
_row = attrgetter(*(HEADER.names or ()))


class _Cut(Exception):
    """The captured bytes end within the headers."""


class _Contradiction(Exception):
    """The headers are inconsistent, or the packet ends within them."""


def decode(
    data: Bytes,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    wire_lengths: NDArray[np.int64],
    link_types: NDArray[np.uint16],
    verify: bool,
    rows: Headers,
) -> None:
    """Decode the headers of a batch.

    Args:
        data: see `packets.batch.PacketBatch`, also for the next four.
        starts: first byte of each packet.
        lengths: captured bytes.
        wire_lengths: bytes on the wire.
        link_types: LINKTYPE_*.
        verify: whether TCP checksums are verified.
        rows: [n] output; must be zero.
    """
    view = memoryview(data)  # type: ignore[arg-type]
    packets = zip(starts.tolist(), lengths.tolist(), wire_lengths.tolist(), link_types.tolist(), strict=True)
    for number, (start, captured, wire, link_type) in enumerate(packets):
        rows[number] = _row(decode_packet(view, start, captured, wire, link_type, verify))


def decode_packet(data: memoryview, start: int, captured: int, wire: int, link_type: int, verify: bool) -> Header:
    """Return the headers of one packet; the arguments are those of `decode` for one."""
    header = Header()
    end = start + captured
    if start < 0 or captured < 0 or end > len(data):
        header.kind = _MALFORMED
        return header
    try:
        _link(header, data, start, end, start + wire, link_type, verify)
    except _Cut:
        header.kind = _TRUNCATED if wire > captured else _MALFORMED
    except _Contradiction:
        header.kind = _MALFORMED
    return header


def _link(
    header: Header, data: memoryview, start: int, captured_end: int, wire_end: int, link_type: int, verify: bool
) -> None:
    if link_type in _LINK_BYTES:
        size, place = _LINK_BYTES[link_type]
        at = start + size
        if at > captured_end:
            raise _Cut
        if link_type == _ETHERNET:
            one, two, three, four, ethertype = _MACS(data, start)
            header.ethernet_destination, header.ethernet_source = one << 32 | two, three << 32 | four
        else:
            (ethertype,) = _U16(data, start + place)
    elif link_type in _VERSIONS:
        size, versions = _VERSIONS[link_type]
        at = start + size
        if at >= captured_end:
            raise _Cut
        version = versions[0] if len(versions) == 1 else data[at] >> 4
        ethertype = {4: 0x0800, 6: 0x86DD}.get(version, 0)
    else:
        header.kind = _UNKNOWN_LINK
        return
    while ethertype in _TAGS:
        header.ethertype = ethertype
        if at + 4 > captured_end:
            raise _Cut
        tag, ethertype = _U16(data, at)[0], _U16(data, at + 2)[0]
        if not header.vlan_depth:
            header.vlan = tag & 0xFFF
        header.vlan_depth += 1
        at += 4
    header.ethertype = ethertype
    if ethertype == 0x0800:
        place, end = _ipv4(header, data, at, captured_end, max(captured_end, wire_end))
    elif ethertype == 0x86DD:
        place, end = _ipv6(header, data, at, captured_end, max(captured_end, wire_end))
    else:
        return
    if header.kind == _FRAGMENT:
        return
    header.transport = place
    if header.protocol == 6:
        _tcp(header, data, place, end, captured_end, verify)
    elif header.protocol == 17:
        _udp(header, data, place, end, captured_end)


def _ipv4(header: Header, data: memoryview, at: int, captured_end: int, limit: int) -> tuple[int, int]:
    """Return the start and the end of the IP payload; no packet ends after `limit`."""
    if at + 20 > captured_end:
        raise _Cut
    version, tos, total, fragment, protocol, field, source, destination = _IPV4(data, at)
    size = (version & 15) << 2
    if version >> 4 != 4 or size < 20:
        raise _Contradiction
    header.ip_version, header.network, header.tos, header.protocol = 4, at, tos, protocol
    header.source_low, header.destination_low = source, destination
    # Segmentation offload leaves 0 if 16 bits do not suffice or the network card fills it in.
    end = at + total if total else limit
    if end < at + size or end > limit:
        raise _Contradiction
    if at + size > captured_end:
        raise _Cut
    if sum_le(data[at : at + size]) % 0xFFFF == 0:
        header.ip_checksum = _OK
    else:
        header.ip_checksum = _BAD if field and total else _PARTIAL
    if fragment & 0x3FFF:
        header.kind = _FRAGMENT
    return at + size, end


def _ipv6(header: Header, data: memoryview, at: int, captured_end: int, limit: int) -> tuple[int, int]:
    """As `_ipv4`."""
    if at + 40 > captured_end:
        raise _Cut
    version, length, protocol, *addresses = _IPV6(data, at)
    if version >> 12 != 6:
        raise _Contradiction
    header.ip_version, header.network, header.tos, header.ip_checksum = 6, at, version >> 4 & 0xFF, _ABSENT
    header.source_high, header.source_low, header.destination_high, header.destination_low = addresses
    begin = place = at + 40
    end = begin + length if length else limit
    while protocol in _EXTENSIONS:
        header.protocol = protocol
        if place + 8 > min(end, limit):
            raise _Contradiction
        if place + 8 > captured_end:
            raise _Cut
        stop = place + 8
        if protocol == 44:
            if _U16(data, place + 2)[0] & 0xFFF9:
                header.kind = _FRAGMENT
                return place, end
        else:
            stop += 8 * data[place + 1]
            if protocol == 0 and not length and stop <= captured_end:
                end = begin + (_jumbo(data, place, stop) or end - begin)
        protocol, place = data[place], stop
    header.protocol = protocol
    if place > end or end > limit:
        raise _Contradiction
    return place, end


def _jumbo(data: memoryview, at: int, stop: int) -> int:
    """Return the length in the jumbo payload option (RFC 2675) of the header data[at:stop], 0 without one."""
    at += 2
    while at + 2 <= stop:
        if data[at] == 0:
            at += 1
            continue
        if data[at] == 0xC2 and data[at + 1] == 4 and at + 6 <= stop:
            return int.from_bytes(data[at + 2 : at + 6], "big")
        at += 2 + data[at + 1]
    return 0


def _tcp(header: Header, data: memoryview, at: int, end: int, captured_end: int, verify: bool) -> None:
    if at + 20 > end:
        raise _Contradiction
    if at + 20 > captured_end:
        raise _Cut
    header.source_port, header.destination_port, header.seq, header.ack, offset, header.flags, header.window, field = (
        _TCP(data, at)
    )
    payload = at + (offset >> 4 << 2)
    if payload < at + 20 or payload > end:
        raise _Contradiction
    if payload > captured_end:
        raise _Cut
    header.kind = _TCP_KIND
    header.payload, header.wire_payload_length = payload, end - payload
    header.payload_length = min(end, captured_end) - payload
    header.short = int(end > captured_end)
    if verify and not header.short:
        network = header.network
        addresses = data[network + 12 : network + 20] if header.ip_version == 4 else data[network + 8 : network + 40]
        length = end - at
        constant = sum_le(addresses) + swap(6)
        pseudo = constant + swap(length & 0xFFFF) + swap(length >> 16)
        if (pseudo + sum_le(data[at:end])) % 0xFFFF == 0:
            header.checksum = _OK
        elif not _U16(data, network + (2 if header.ip_version == 4 else 4))[0]:
            header.checksum = _PARTIAL  # the card that fills in the length also fills in the checksum
        elif field in (_folded(pseudo), _folded(constant)):  # some cards get a sum without the length
            header.checksum = _PARTIAL
        else:
            header.checksum = _BAD


def _folded(total: int) -> int:
    """Return a sum of little-endian words as a big-endian word in ones' complement: 0 only for a sum of 0."""
    return swap(total % 0xFFFF) or (0xFFFF if total else 0)


def _udp(header: Header, data: memoryview, at: int, end: int, captured_end: int) -> None:
    if at + 8 > end:
        raise _Contradiction
    if at + 8 > captured_end:
        raise _Cut
    header.source_port, header.destination_port, length, field = _UDP(data, at)
    payload, stop = at + 8, at + length
    if length < 8 or stop > end:
        raise _Contradiction
    last = stop
    if header.destination_port == ROCE_PORT:
        payload, last = payload + BTH_BYTES, stop - ICRC_BYTES
        if payload > last:
            raise _Contradiction
        if payload > captured_end:
            raise _Cut
        header.opcode, flags = data[at + 8], data[at + 9]
        header.solicited, header.pad = flags >> 7, flags >> 4 & 3
        header.dest_qp, header.psn = (int.from_bytes(data[place : place + 3], "big") for place in (at + 13, at + 17))
        header.ack_request = data[at + 16] >> 7
    header.kind = _ROCE if header.destination_port == ROCE_PORT else _UDP_KIND
    header.checksum = 0 if field else _ABSENT
    header.payload, header.wire_payload_length = payload, last - payload
    header.payload_length = min(last, captured_end) - payload
    header.short = int(stop > captured_end)
