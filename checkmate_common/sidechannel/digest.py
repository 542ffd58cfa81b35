"""The digests of a model's parameters, and of its optimizer's state, that ranks and shadows compare."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping


def parameter_digest(tensors: Iterable[tuple[str, bytes | memoryview]]) -> bytes:
    """Return the SHA-256 over names, lengths and little-endian bytes of parameters, in the given order.

    Args:
        tensors: (name, bytes of the contiguous tensor) pairs, in the layout's parameter order.
    """
    digest = hashlib.sha256()
    for name, data in tensors:
        label = name.encode()
        digest.update(len(label).to_bytes(4, "little") + label + len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def optimizer_digest(state: Mapping[str, bytes | memoryview]) -> bytes:
    """Return the same over an optimizer's state, in order of names; SHA-256 of nothing if there is none.

    Args:
        state: bytes of the contiguous tensors by ``optim/<parameter>/<key>``.
    """
    return parameter_digest(sorted(state.items()))
