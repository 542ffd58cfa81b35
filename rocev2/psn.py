"""Packet sequence numbers: 24-bit numbers of one queue pair, unwrapped to integers that only grow."""

from __future__ import annotations

from collections.abc import Iterable

MODULUS = 1 << 24
HALF = MODULUS >> 1


def unwrap(psn: int, near: int) -> int:
    """Return the integer congruent to `psn` modulo 2^24 that is nearest to `near`, the lower one of two.

    At most 2^23 PSNs may be outstanding (IBTA 9.7.2), so the nearest is the true one.
    """
    return near + ((psn - near + HALF - 1) % MODULUS) - (HALF - 1) if psn != near % MODULUS else near


def wrap(unwrapped: int) -> int:
    """Return the 24-bit PSN of an unwrapped one."""
    return unwrapped % MODULUS


def gaps(seen: Iterable[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """Return the parts of first..last that are not in `seen` (ascending); all ranges are inclusive."""
    missing: list[tuple[int, int]] = []
    expected = first
    for low, high in seen:
        if low > last:
            break
        if low > expected:
            missing.append((expected, low - 1))
        expected = max(expected, high + 1)
    if expected <= last:
        missing.append((expected, last))
    return missing
