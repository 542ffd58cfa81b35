"""Decoding the headers of a batch, compiled or in plain Python."""

from __future__ import annotations

import numpy as np

from packets import reference
from packets.batch import PacketBatch
from packets.compiled import Kernel, count_input
from packets.headers import HEADER, Headers


def _example() -> tuple[object, ...]:
    batch = PacketBatch.of([b"\0"])
    rows: Headers = np.zeros(1, HEADER)
    return batch.data, batch.starts, batch.lengths, batch.wire_lengths, batch.link_types, False, rows


decode_rows = Kernel(reference.decode, "packets.kernels:decode", _example)
"""See `packets.reference.decode`."""


def decode(batch: PacketBatch, *, verify: bool = True) -> Headers:
    """Return a row of `packets.headers.HEADER` for each packet.

    Args:
        batch: packets of any link type, however damaged.
        verify: whether TCP checksums are verified, which reads every byte of the payload.
    """
    rows: Headers = np.zeros(len(batch), HEADER)
    decode_rows(batch.data, batch.starts, batch.lengths, batch.wire_lengths, batch.link_types, verify, rows)
    count_input(int(batch.lengths.sum(dtype=np.int64)))
    return rows
