"""Compiled forms of the loops over packets in `rocev2.headers` and `rocev2.messages`, for numba.

What `packets.decode` found lies within the packet: a GOOD packet is whole up to its iCRC.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from packets.compiled import jit
from packets.headers import ROCE_PORT, Kind
from packets.kernels import unsigned
from rocev2 import messages
from rocev2.headers import UDP, Verdict
from rocev2.opcodes import AETH, ATOMIC_ETH, DETH, IMM, KNOWN, RDETH, RETH, WRITES, extended_header_bytes

_MALFORMED, _ROCE, _TRUNCATED = int(Kind.MALFORMED), int(Kind.ROCE), int(Kind.TRUNCATED)
_FOREIGN, _CUT, _LENGTH = int(Verdict.FOREIGN), int(Verdict.CUT), int(Verdict.LENGTH)
_OPCODE, _ICRC = int(Verdict.OPCODE), int(Verdict.ICRC)
_PARTS = np.array([KNOWN.get(opcode, -1) for opcode in range(256)])
_EXTENDED = np.array([extended_header_bytes(opcode) if opcode in KNOWN else 0 for opcode in range(256)])
_FIRST_WRITE, _LAST_WRITE = min(WRITES), max(WRITES)


def _crc_tables():
    """Return tables of CRC-32 for 16 bytes at a time: row k is of a byte that k others follow."""
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for row in range(1, 16):
        tables[row] = tables[row - 1] >> 8 ^ tables[0][tables[row - 1] & 0xFF]
    return tables


_CRC = _crc_tables()

number_messages = jit(messages.number_messages.reference)


@jit
def _crc(value, data, start, stop):
    """Go on with a CRC-32 (not inverted) over `data`[start:stop]."""
    blocks = (stop - start) >> 4
    words = data[start : start + 16 * blocks].view(np.uint64)
    mask, crc = np.uint64(0xFF), np.uint64(value)
    for block in range(blocks):
        one, two = words[2 * block] ^ crc, words[2 * block + 1]
        crc = np.uint64(
            _CRC[15, one & mask]
            ^ _CRC[14, one >> np.uint64(8) & mask]
            ^ _CRC[13, one >> np.uint64(16) & mask]
            ^ _CRC[12, one >> np.uint64(24) & mask]
            ^ _CRC[11, one >> np.uint64(32) & mask]
            ^ _CRC[10, one >> np.uint64(40) & mask]
            ^ _CRC[9, one >> np.uint64(48) & mask]
            ^ _CRC[8, one >> np.uint64(56)]
            ^ _CRC[7, two & mask]
            ^ _CRC[6, two >> np.uint64(8) & mask]
            ^ _CRC[5, two >> np.uint64(16) & mask]
            ^ _CRC[4, two >> np.uint64(24) & mask]
            ^ _CRC[3, two >> np.uint64(32) & mask]
            ^ _CRC[2, two >> np.uint64(40) & mask]
            ^ _CRC[1, two >> np.uint64(48) & mask]
            ^ _CRC[0, two >> np.uint64(56)]
        )
    for place in range(start + 16 * blocks, stop):
        crc = np.uint64(_CRC[0, (crc ^ np.uint64(data[place])) & mask]) ^ crc >> np.uint64(8)
    return crc


@jit
def _icrc(data, network, ip_bytes, udp, stop, head):
    """See `rocev2.icrc.icrc`; `head` is room for 68 bytes."""
    head[:8] = 0xFF
    head[8 : 8 + ip_bytes] = data[network : network + ip_bytes]
    if ip_bytes == 20:
        for place in (1, 8, 10, 11):
            head[8 + place] = 0xFF
    else:
        head[8] |= 0x0F
        for place in (1, 2, 3, 7):
            head[8 + place] = 0xFF
    at = 8 + ip_bytes
    head[at : at + 20] = data[udp : udp + 20]
    head[at + 6] = head[at + 7] = head[at + 12] = 0xFF
    crc = _crc(np.uint64(0xFFFFFFFF), head, 0, at + 20)
    return _crc(crc, data, udp + 20, stop) ^ np.uint64(0xFFFFFFFF)


@jit
def _little(data, at):
    value = np.int64(0)
    for place in range(at + 3, at - 1, -1):
        value = value << 8 | np.int64(data[place])
    return value


@jit
def _flag(data, start, size):
    """See `rocev2.protocols.LowLatency.flag`; 0 for None."""
    if size == 0 or size & 7:
        return np.uint64(0)
    words = data[start : start + size].view(np.uint64)
    flag = words[0] >> np.uint64(32)
    differing = np.uint64(0)
    for word in words:
        differing |= word >> np.uint64(32) ^ flag
    return flag if differing == np.uint64(0) else np.uint64(0)


@jit
def read(data, starts, lengths, headers, frames):
    """See `rocev2.headers.read_rows`."""
    head = np.empty(68, np.uint8)
    for row in range(len(starts)):
        header, frame = headers[row], frames[row]
        network = header.network
        if header.kind != _ROCE:
            frame.verdict = _FOREIGN
            if header.protocol == UDP and (header.kind == _MALFORMED or header.kind == _TRUNCATED):
                at = header.transport
                if at == 0:
                    at = network + ((np.int64(data[network]) & 15) * 4 if header.ip_version == 4 else 40)
                if at + 4 <= starts[row] + lengths[row] and unsigned(data, at + 2, 2) == np.uint64(ROCE_PORT):
                    frame.verdict = _CUT if header.kind == _TRUNCATED else _LENGTH
            continue
        parts = _PARTS[header.opcode]
        if header.short or parts < 0:
            frame.verdict = _CUT if header.short else _OPCODE
            continue
        stop = header.payload + header.payload_length
        crc = _icrc(data, network, 20 if header.ip_version == 4 else 40, header.transport, stop, head)
        if crc != np.uint64(_little(data, stop)):
            frame.verdict = _ICRC
            continue
        at, begin = header.payload, header.payload + _EXTENDED[header.opcode]
        size = stop - header.pad - begin
        if size < 0:
            frame.verdict = _LENGTH
            continue
        frame.opcode, frame.payload, frame.size = header.opcode, begin, size
        frame.immediate = frame.syndrome = -1
        at += (4 if parts & RDETH else 0) + (8 if parts & DETH else 0)
        if parts & RETH:
            frame.address = unsigned(data, at, 8)
            frame.rkey = unsigned(data, at + 8, 4)
            frame.length = unsigned(data, at + 12, 4)
            at += 16
        if parts & ATOMIC_ETH:
            at += 28
        if parts & AETH:
            frame.syndrome = data[at]
            at += 4
        if parts & IMM:
            frame.immediate = _little(data, at)
        if _FIRST_WRITE <= header.opcode <= _LAST_WRITE:
            frame.flag = _flag(data, begin, size)
