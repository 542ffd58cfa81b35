"""Checksums and hashes over bytes, named as in BMv2; the generated code calls them."""

from __future__ import annotations

import zlib
from binascii import crc_hqx


def sum16(data: bytes) -> int:
    """Return the ones' complement sum of big-endian 16-bit words, an odd last byte padded with 0 (RFC 1071).

    A big integer in base 2**16 is congruent to the sum of its digits modulo 65535; of the two representations
    of 0, 0 is the sum of all-zero data only.
    """
    total = int.from_bytes(data, "big") << 8 * (len(data) & 1)
    return total % 65535 or (65535 if total else 0)


def csum16(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    return 65535 - sum16(data)


def crc32(data: bytes) -> int:
    """Return CRC-32 (ISO-HDLC: polynomial 0x04c11db7, reflected, initial and final value 0xffffffff)."""
    return zlib.crc32(data)


def crcccitt(data: bytes) -> int:
    """Return CRC-16/CCITT-FALSE (polynomial 0x1021, not reflected, initial value 0xffff)."""
    return crc_hqx(data, 0xFFFF)


def _crc16_table() -> tuple[int, ...]:
    table: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0xA001 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_CRC16 = _crc16_table()


def crc16(data: bytes) -> int:
    """Return CRC-16/ARC (polynomial 0x8005, reflected, initial and final value 0)."""
    crc = 0
    for byte in data:
        crc = crc >> 8 ^ _CRC16[(crc ^ byte) & 0xFF]
    return crc


def identity(data: bytes) -> int:
    """Return the first 8 bytes (or all, if fewer) as a big-endian number: BMv2's `identity`."""
    return int.from_bytes(data[:8], "big")


def xor16(data: bytes) -> int:
    """Return the exclusive or of big-endian 16-bit words, an odd last byte padded with 0: BMv2's `xor16`."""
    result = 0
    for start in range(0, len(data), 2):
        result ^= int.from_bytes(data[start : start + 2].ljust(2, b"\0"), "big")
    return result
