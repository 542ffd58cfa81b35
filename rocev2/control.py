"""NCCL's control writes: a receiver announces a buffer to the sender (struct ncclIbSendFifo of NCCL's net_ib.cc, 2.18).

A receiver writes entries of 32 bytes into the sender's FIFO before data may come: address, size, rkey, number of
requests, tag, index. The index counts from 1, so that it is the step that the buffer is for, plus one; the tag is the
rank of the sender.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

ENTRY_BYTES = 32
_MOST_REQUESTS = 8  # NCCL_NET_IB_MAX_RECVS


class Announcement(NamedTuple):
    """A receive buffer."""

    address: int
    size: int
    """Bytes of the buffer; for LL the size of a slot."""
    rkey: int
    tag: int
    """Rank of the sender of the data (that is, of the receiver of this write)."""
    step: int
    """Step that the buffer is for."""


def announcements(payload: bytes) -> list[Announcement]:
    """Return the entries of a control write's payload; the empty list when it is none."""
    size = len(payload)
    if not size or size % ENTRY_BYTES:
        return []
    count = size // ENTRY_BYTES
    entries = []
    for address, room, rkey, requests, tag, index in struct.iter_unpack("<QiIIIQ", payload):
        # An index beyond 2^48 or no room at all is data that looks like an entry by chance.
        if requests != count or count > _MOST_REQUESTS or room <= 0 or not 0 < index < 1 << 48 or not address:
            return []
        entries.append(Announcement(address, room, rkey, tag, index - 1))
    return entries
