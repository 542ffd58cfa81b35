"""32-bit sequence numbers to stream positions.

The switch rewrites a replica's sequence number to seq - ISN mod 2^32, so the SYN has 0 and the stream's
first payload byte 1 (RFC 9293, section 3.4: the SYN takes one number). Streams are longer than 2^32 bytes,
so the number alone does not identify a byte; together with a position that is known to be near it does.
"""

from __future__ import annotations

_MODULUS = 1 << 32


def unwrap(sequence: int, reference: int, modulus: int = _MODULUS) -> int:
    """Return the stream position of the byte numbered `sequence` that is nearest to position `reference`.

    The answer is exact while the true position is less than 2^31 bytes away from the reference, in either
    direction. It is negative where the nearest candidate lies before the stream's first byte: no byte of
    the stream is meant.

    Args:
        sequence: TCP sequence number of a payload byte of a replica, 0..2^32-1.
        reference: a position of the same connection, at least 0.
        modulus: of sequence numbers, a power of two; half of it is how far away the true position may be.
    """
    half = modulus >> 1
    delta = (sequence - 1 - reference + half) % modulus - half
    return reference + delta
