"""How NCCL's protocols put data on the wire: what a decoder must know of each.

LL (prims_ll.h): lines of 16 bytes, four data, four flag, four data, four flag; the flag is the step plus one, and the
buffer is a ring of 8 slots, one per step. Simple (prims_simple.h): the data as they are. LL128 (lines of 128 bytes, the
last 8 the flag) would be a third class here: it needs its own `line_bytes`, `flag` and `data`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from packets.batch import Bytes

STEPS = 8
"""Slots of a receive buffer (NCCL_STEPS)."""


class WireProtocol(Protocol):
    """One of NCCL's protocols."""

    name: str
    line_bytes: int
    """Bytes of a line on the wire; messages are whole lines."""
    line_data: int
    """Data bytes of a line."""
    slot_bytes: int
    """Wire bytes of a slot of the receive buffer: the largest message."""

    def flag(self, payload: Bytes) -> int | None:
        """Return the flag of a payload, None when it is not of this protocol."""

    def data(self, payload: Bytes) -> Bytes:
        """Return the data bytes of a payload of whole lines, little endian as in memory."""


class LowLatency:
    """LL: every 8 bytes are 4 data and 4 flag."""

    name = "LL"
    line_bytes = 16
    line_data = 8
    slot_bytes = 65536  # 8 lines per thread * 512 threads * 16 bytes (DEFAULT_LL_BUFFSIZE / NCCL_STEPS)

    def flag(self, payload: Bytes) -> int | None:
        """Return the flag of a payload; None unless all lines carry the same, which is never 0."""
        size = len(payload)
        if size == 0 or size % 8:
            return None
        flags = payload.view("<u4")[1::2]
        value = int(flags[0])
        return value if value and flags[-1] == value and bool((flags == value).all()) else None

    def data(self, payload: Bytes) -> Bytes:
        """Return the data bytes; that the flags are right is for `flag` to say."""
        return np.ascontiguousarray(payload.view("<u4")[0::2]).view(np.uint8)


class Simple:
    """Simple: plain data; nothing in a packet says which step it belongs to."""

    name = "Simple"
    line_bytes = 1
    line_data = 1
    slot_bytes = 131072  # NCCL_P2P net chunk size of the captures that this was built on

    def flag(self, payload: Bytes) -> int | None:
        """Return 0: any payload will do."""
        return 0

    def data(self, payload: Bytes) -> Bytes:
        """Return the payload as it is."""
        return payload


LL: WireProtocol = LowLatency()
SIMPLE: WireProtocol = Simple()
