"""The Internet checksum (RFC 1071) over bytes of any length."""

from __future__ import annotations

import numpy as np

_NUMPY_FROM = 512
"""Size in bytes from which numpy's sum is faster than an integer conversion."""
_U32 = np.dtype("<u4")
_U64 = np.dtype("<u8")


def sum_le(data: bytes | memoryview) -> int:
    """Return a number congruent mod 0xFFFF to the sum of `data`'s little-endian 16-bit words, zero padded.

    2**16 = 1 mod 0xFFFF, so words of any multiple of 16 bits give the same residue.
    """
    size = len(data)
    if size < _NUMPY_FROM:
        return int.from_bytes(data, "little")
    words = size >> 2
    total = int(np.add.reduce(np.frombuffer(data, _U32, words), 0, _U64))
    return total + int.from_bytes(data[words << 2 :], "little")


def swap(word: int) -> int:
    """Return a 16-bit word with its bytes swapped."""
    return (word >> 8) | ((word & 0xFF) << 8)


def sum_be(data: bytes | memoryview) -> int:
    """Return the sum of `data`'s big-endian 16-bit words mod 0xFFFF, zero padded.

    Swapping the bytes of the sum equals swapping those of each word (RFC 1071 section 2).
    """
    return swap(sum_le(data) % 0xFFFF)


def complement(total: int) -> int:
    """Return the checksum field for a positive sum of 16-bit words."""
    return 0xFFFF - (total % 0xFFFF or 0xFFFF)


def internet_checksum(header: bytes) -> int:
    """Return the checksum of a header that is not all zero, with its checksum field taken as 0."""
    return complement(sum_be(header))
