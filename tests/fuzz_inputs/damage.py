"""Damage to bytes that any format can suffer."""

from __future__ import annotations

import random
from collections.abc import Sequence

_EDGES = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)
_LONGEST = 64
"""Bytes that one edit changes at most, but for cuts."""


def damaged(rng: random.Random, data: bytes, words: Sequence[bytes] = (), edits: int = 4) -> bytes:
    """Return `data` with 1 to `edits` changes: bits, bytes, `words` of the format, pieces lost, doubled, exchanged."""
    result = bytearray(data)
    for _ in range(rng.randint(1, edits)):
        at = rng.randrange(len(result) + 1)
        length = rng.choice((1, 1, 2, 4, 8, rng.randint(1, _LONGEST)))
        piece = bytes(result[at : at + length])
        match rng.randrange(9):
            case 0 if at < len(result):
                result[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(result):
                result[at] = rng.choice((rng.randrange(256), *_EDGES))
            case 2:
                result[at : at + length] = b""
            case 3:
                result[at:at] = piece
            case 4:
                result[at:at] = rng.randbytes(length)
            case 5:
                result[at : at + length] = bytes([rng.choice(_EDGES)]) * length
            case 6 if words:
                result[at : at + rng.choice((0, length))] = rng.choice(words)
            case 7:
                other = rng.randrange(len(result) + 1)
                result[at : at + length] = result[other : other + length]
            case 8 if rng.random() < 0.2:
                del result[at:]
            case _:
                pass
    return bytes(result)
