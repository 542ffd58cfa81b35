"""Sequence arithmetic modulo 2**32 (RFC 9293 section 3.4).

Inside the endpoint every place in a stream is a *position*: an int that never wraps, 0 for the SYN, 1 for the
first payload byte. Sequence numbers exist only on the wire, and these functions are the only door between
both.
"""

from __future__ import annotations

SEQ_MODULUS = 1 << 32
SEQ_MASK = SEQ_MODULUS - 1
_HALF = 1 << 31


def seq_add(seq: int, count: int) -> int:
    """Return the sequence number `count` (may be negative) after `seq`."""
    return (seq + count) & SEQ_MASK


def seq_diff(a: int, b: int) -> int:
    """Return the signed distance from `b` to `a`, in [-2**31, 2**31): positive when `a` is later."""
    return ((a - b + _HALF) & SEQ_MASK) - _HALF


def to_seq(initial: int, position: int) -> int:
    """Return the sequence number of `position` in a stream whose SYN has sequence number `initial`."""
    return (initial + position) & SEQ_MASK


def to_position(initial: int, seq: int, near: int) -> int:
    """Return the position of `seq` that is closest to the position `near`.

    It is right while the true position is less than 2**31 away from `near`, which TCP's largest window
    (2**30) grants for every segment of the connection. The result is negative for segments from before the
    SYN.
    """
    return near + ((seq - initial - near + _HALF) & SEQ_MASK) - _HALF
