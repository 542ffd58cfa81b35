"""Compiled decoding of headers and copying of payloads: `packets.reference` and `packets.gather`, for numba.

Everything here is a pure function over arrays and runs without the interpreter lock. Positions are int64 throughout,
and every one is checked against the packet's captured end before it is read: numba does not check bounds.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from packets.compiled import jit
from packets.headers import BTH_BYTES, ICRC_BYTES, ROCE_PORT, Checksum, Kind, LinkType

_FRAGMENT, _MALFORMED, _OTHER, _ROCE = int(Kind.FRAGMENT), int(Kind.MALFORMED), int(Kind.OTHER), int(Kind.ROCE)
_TCP, _TRUNCATED, _UDP, _UNKNOWN_LINK = int(Kind.TCP), int(Kind.TRUNCATED), int(Kind.UDP), int(Kind.UNKNOWN_LINK)
_ABSENT, _BAD, _OK, _PARTIAL = int(Checksum.ABSENT), int(Checksum.BAD), int(Checksum.OK), int(Checksum.PARTIAL)
_NULL, _ETHERNET, _RAW_BSD, _RAW = int(LinkType.NULL), int(LinkType.ETHERNET), int(LinkType.RAW_BSD), int(LinkType.RAW)
_LOOP, _SLL, _IPV4, _IPV6 = int(LinkType.LOOP), int(LinkType.LINUX_SLL), int(LinkType.IPV4), int(LinkType.IPV6)
_SLL2 = int(LinkType.LINUX_SLL2)


@jit
def _u16(data, at):
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


@jit
def unsigned(data, at, size):
    """Return a big-endian number of up to 8 bytes."""
    value = np.uint64(0)
    for place in range(at, at + size):
        value = value << np.uint64(8) | np.uint64(data[place])
    return value


@jit
def _sum(data, start, stop):
    """Return `data`[start:stop] summed as little-endian 16-bit words, zero padded: a number congruent mod 0xFFFF."""
    words = (stop - start) >> 2
    total = np.uint64(0)
    for word in data[start : start + 4 * words].view(np.uint32):
        total += np.uint64(word)
    shift = np.uint64(0)
    for place in range(start + 4 * words, stop):
        total += np.uint64(data[place]) << shift
        shift += np.uint64(8)
    return total


@jit
def _swap(word):
    return (word & 0xFF) << 8 | word >> 8 & 0xFF


@jit
def _fold(total):
    """Return the sum as a big-endian word in ones' complement: 0 only for a sum of 0."""
    if total == np.uint64(0):
        return np.int64(0)
    rest = np.int64(total % np.uint64(0xFFFF))
    return np.int64(0xFFFF) if rest == 0 else np.int64(_swap(rest))


@jit
def _cut(row, captured, wire):
    row.kind = _TRUNCATED if wire > captured else _MALFORMED


@jit
def _tcp_checksum(data, row, end):
    addresses = row.network + 12 if row.ip_version == 4 else row.network + 8
    size = 8 if row.ip_version == 4 else 32
    length = np.int64(end - row.transport)
    constant = np.uint64(_swap(6)) + _sum(data, addresses, addresses + size)
    pseudo = constant + np.uint64(_swap(length & 0xFFFF)) + np.uint64(_swap(length >> 16))
    if (pseudo + _sum(data, row.transport, end)) % np.uint64(0xFFFF) == np.uint64(0):
        return _OK
    if _u16(data, row.network + (2 if row.ip_version == 4 else 4)) == 0:
        return _PARTIAL
    field = _u16(data, row.transport + 16)
    return _PARTIAL if field == _fold(pseudo) or field == _fold(constant) else _BAD


@jit
def _tcp(data, row, at, end, captured_end, captured, wire, verify):
    if at + 20 > end:
        row.kind = _MALFORMED
        return
    if at + 20 > captured_end:
        _cut(row, captured, wire)
        return
    row.source_port, row.destination_port = _u16(data, at), _u16(data, at + 2)
    row.seq, row.ack = unsigned(data, at + 4, 4), unsigned(data, at + 8, 4)
    row.flags, row.window = data[at + 13], _u16(data, at + 14)
    header = np.int64(data[at + 12]) >> 4 << 2
    payload = at + header
    if header < 20 or payload > end:
        row.kind = _MALFORMED
        return
    if payload > captured_end:
        _cut(row, captured, wire)
        return
    row.kind = _TCP
    row.payload, row.wire_payload_length = payload, end - payload
    row.payload_length = min(end, captured_end) - payload
    row.short = 1 if end > captured_end else 0
    if verify and end <= captured_end:
        row.checksum = _tcp_checksum(data, row, end)


@jit
def _udp(data, row, at, end, captured_end, captured, wire):
    if at + 8 > end:
        row.kind = _MALFORMED
        return
    if at + 8 > captured_end:
        _cut(row, captured, wire)
        return
    row.source_port, row.destination_port = _u16(data, at), _u16(data, at + 2)
    stop = at + _u16(data, at + 4)
    if stop < at + 8 or stop > end:
        row.kind = _MALFORMED
        return
    payload = at + 8
    if row.destination_port == ROCE_PORT:
        payload += BTH_BYTES
        if payload + ICRC_BYTES > stop:
            row.kind = _MALFORMED
            return
        if payload > captured_end:
            _cut(row, captured, wire)
            return
        row.kind = _ROCE
        flags = np.int64(data[at + 9])
        row.opcode, row.solicited, row.pad = data[at + 8], flags >> 7, flags >> 4 & 3
        row.dest_qp, row.psn = unsigned(data, at + 13, 3), unsigned(data, at + 17, 3)
        row.ack_request = data[at + 16] >> 7
        last = stop - ICRC_BYTES
    else:
        row.kind = _UDP
        last = stop
    row.checksum = _ABSENT if _u16(data, at + 6) == 0 else 0
    row.payload, row.wire_payload_length = payload, last - payload
    row.payload_length = min(last, captured_end) - payload
    row.short = 1 if stop > captured_end else 0


@jit
def _ipv4(data, row, at, captured_end, wire_end, captured, wire):
    """Return the positions of the transport header and of the packet's end; -1 and 0 if decoding stops here."""
    if at + 20 > captured_end:
        _cut(row, captured, wire)
        return np.int64(-1), np.int64(0)
    header = (np.int64(data[at]) & 15) << 2
    if data[at] >> 4 != 4 or header < 20:
        row.kind = _MALFORMED
        return np.int64(-1), np.int64(0)
    row.ip_version, row.network, row.tos, row.protocol = 4, at, data[at + 1], data[at + 9]
    row.source_low, row.destination_low = unsigned(data, at + 12, 4), unsigned(data, at + 16, 4)
    total = _u16(data, at + 2)
    end = at + total if total else max(captured_end, wire_end)
    if end < at + header or end > max(captured_end, wire_end):
        row.kind = _MALFORMED
        return np.int64(-1), np.int64(0)
    if at + header > captured_end:
        _cut(row, captured, wire)
        return np.int64(-1), np.int64(0)
    if _sum(data, at, at + header) % np.uint64(0xFFFF) == np.uint64(0):
        row.ip_checksum = _OK
    else:
        row.ip_checksum = _PARTIAL if _u16(data, at + 10) == 0 or total == 0 else _BAD
    if _u16(data, at + 6) & 0x3FFF:
        row.kind = _FRAGMENT
        return np.int64(-1), np.int64(0)
    return at + header, end


@jit
def _jumbo(data, at, stop):
    """Return the length in the jumbo payload option of the hop-by-hop header data[at:stop], 0 without one."""
    at += 2
    while at + 2 <= stop:
        if data[at] == 0:
            at += 1
            continue
        if data[at] == 0xC2 and data[at + 1] == 4 and at + 6 <= stop:
            return np.int64(unsigned(data, at + 2, 4))
        at += 2 + np.int64(data[at + 1])
    return np.int64(0)


@jit
def _ipv6(data, row, at, captured_end, wire_end, captured, wire):
    """As `_ipv4`."""
    if at + 40 > captured_end:
        _cut(row, captured, wire)
        return np.int64(-1), np.int64(0)
    if data[at] >> 4 != 6:
        row.kind = _MALFORMED
        return np.int64(-1), np.int64(0)
    row.ip_version, row.network, row.tos, row.ip_checksum = 6, at, _u16(data, at) >> 4 & 0xFF, _ABSENT
    row.source_high, row.source_low = unsigned(data, at + 8, 8), unsigned(data, at + 16, 8)
    row.destination_high, row.destination_low = unsigned(data, at + 24, 8), unsigned(data, at + 32, 8)
    limit = max(captured_end, wire_end)
    length = _u16(data, at + 4)
    protocol = np.int64(data[at + 6])
    begin = at + 40
    end = begin + length if length else limit
    place = begin
    while protocol == 0 or protocol == 43 or protocol == 44 or protocol == 60 or protocol == 135:
        row.protocol = protocol
        if place + 8 > min(end, limit):
            row.kind = _MALFORMED
            return np.int64(-1), np.int64(0)
        if place + 8 > captured_end:
            _cut(row, captured, wire)
            return np.int64(-1), np.int64(0)
        if protocol == 44:
            if _u16(data, place + 2) & 0xFFF9:
                row.kind = _FRAGMENT
                return np.int64(-1), np.int64(0)
            stop = place + 8
        else:
            stop = place + 8 + 8 * np.int64(data[place + 1])
        if protocol == 0 and length == 0 and stop <= captured_end:
            jumbo = _jumbo(data, place, stop)
            end = begin + jumbo if jumbo else end
        protocol = np.int64(data[place])
        place = stop
    row.protocol = protocol
    if place > end or end > limit:
        row.kind = _MALFORMED
        return np.int64(-1), np.int64(0)
    return place, end


@jit
def _link(data, row, start, captured_end, captured, wire, link_type):
    """Return the position of the IP header and its EtherType, 0 for the second if there is none."""
    at = start
    kind = np.int64(0)
    if link_type == _ETHERNET:
        at += 14
    elif link_type == _SLL:
        at += 16
    elif link_type == _SLL2:
        at += 20
    elif link_type in (_NULL, _LOOP):
        at += 4
    elif link_type not in (_RAW, _RAW_BSD, _IPV4, _IPV6):
        row.kind = _UNKNOWN_LINK
        return at, kind
    linked = link_type in (_ETHERNET, _SLL, _SLL2)
    if at > captured_end or (at == captured_end and not linked):
        _cut(row, captured, wire)
        return at, kind
    if link_type == _ETHERNET:
        row.ethernet_destination, row.ethernet_source = unsigned(data, start, 6), unsigned(data, start + 6, 6)
        kind = _u16(data, start + 12)
    elif link_type == _SLL:
        kind = _u16(data, start + 14)
    elif link_type == _SLL2:
        kind = _u16(data, start)
    elif link_type == _IPV4 or (link_type != _IPV6 and data[at] >> 4 == 4):
        kind = np.int64(0x0800)
    elif link_type == _IPV6 or data[at] >> 4 == 6:
        kind = np.int64(0x86DD)
    while kind == 0x8100 or kind == 0x88A8 or kind == 0x9100 or kind == 0x9200:
        row.ethertype = kind
        if at + 4 > captured_end:
            _cut(row, captured, wire)
            return at, np.int64(0)
        if row.vlan_depth == 0:
            row.vlan = _u16(data, at) & 0xFFF
        row.vlan_depth += 1
        kind = _u16(data, at + 2)
        at += 4
    row.ethertype = kind
    return at, kind


@jit
def decode(data, starts, lengths, wire_lengths, link_types, verify, rows):
    """Fill `rows`, which hold zeros: see `packets.reference.decode`."""
    for number in range(len(starts)):
        row = rows[number]
        start, captured = starts[number], np.int64(lengths[number])
        wire, captured_end = np.int64(wire_lengths[number]), start + captured
        if start < 0 or captured < 0 or captured_end > len(data):
            row.kind = _MALFORMED
            continue
        at, kind = _link(data, row, start, captured_end, captured, wire, np.int64(link_types[number]))
        if kind == 0x0800:
            at, end = _ipv4(data, row, at, captured_end, start + wire, captured, wire)
        elif kind == 0x86DD:
            at, end = _ipv6(data, row, at, captured_end, start + wire, captured, wire)
        else:
            continue
        if at < 0:
            continue
        row.transport = at
        if row.protocol == 6:
            _tcp(data, row, at, end, captured_end, captured, wire, verify)
        elif row.protocol == 17:
            _udp(data, row, at, end, captured_end, captured, wire)


@jit
def gather(data, starts, lengths, out):
    """Copy payloads one behind the other: see `packets.gather`."""
    at = 0
    for number in range(len(starts)):
        start, length = starts[number], lengths[number]
        if start < 0 or length < 0 or start + length > len(data) or at + length > len(out):
            break
        out[at : at + length] = data[start : start + length]
        at += length
    return at
