"""NCCL's control writes: a receiver announces buffers to the sender (clear to send, struct ncclIbSendFifo).

A receiver writes entries into the sender's FIFO before data may come: address, size, keys, number of requests, tag,
index. The index counts from 1, so that it is the step that the buffer is for, plus one; the tag is the rank of the
sender. The layout changed with NCCL's versions; each has zeros or a small number where another has a key or an address.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_MOST_REQUESTS = 8  # NCCL_NET_IB_MAX_RECVS
_MOST_ROOM = 1 << 40


class Layout(NamedTuple):
    """Where the fields of an entry are."""

    version: str
    """First NCCL version that has it."""
    fields: struct.Struct
    """Address, size, remote keys (4 bytes for each device that NCCL bonds), requests, tag, index, padding."""


LAYOUTS = (
    Layout("2.18", struct.Struct("<Qi4sIIQ0s")),
    Layout("2.20", struct.Struct("<Qi8sII4xQ24s")),
    Layout("2.24", struct.Struct("<QQ16sIIQ16s")),
    Layout("2.30", struct.Struct("<QQ32sIIQ0s")),
)


VERSIONS = tuple(layout.version for layout in LAYOUTS)
MOST_BYTES = _MOST_REQUESTS * max(layout.fields.size for layout in LAYOUTS)
"""Largest payload of a control write."""


class Announcement(NamedTuple):
    """A receive buffer."""

    address: int
    size: int
    """Bytes of the buffer; for LL the size of a slot."""
    rkey: int
    """Key of the first device."""
    tag: int
    """Rank of the sender of the data (that is, of the receiver of this write)."""
    step: int
    """Step that the buffer is for."""


def announcements(payload: bytes) -> list[Announcement]:
    """Return the entries of a control write's payload; the empty list when it is none, or of more than one layout."""
    found = [entries for layout in LAYOUTS if (entries := _read(payload, layout))]
    return found[0] if len(found) == 1 else []


def _read(payload: bytes, layout: Layout) -> list[Announcement]:
    count, rest = divmod(len(payload), layout.fields.size)
    if rest or not 0 < count <= _MOST_REQUESTS:
        return []
    entries = []
    for address, room, keys, requests, tag, index, padding in layout.fields.iter_unpack(payload):
        # An index beyond 2^48 or no room at all is data that looks like an entry by chance.
        plausible = requests == count and 0 < room < _MOST_ROOM and 0 < index < 1 << 48 and address
        if not plausible or any(padding):
            return []
        entries.append(Announcement(address, room, int.from_bytes(keys[:4], "little"), tag, index - 1))
    return entries


def announce(version: str, entry: Announcement) -> bytes:
    """Return the payload of a control write with one entry, in the layout of a version of `VERSIONS`."""
    fields = LAYOUTS[VERSIONS.index(version)].fields
    return fields.pack(
        entry.address, entry.size, entry.rkey.to_bytes(4, "little"), 1, entry.tag, entry.step + 1, b""
    )  # fmt: skip
