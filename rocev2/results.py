"""What decoding a capture gives: all-reduces with proven elements, and summaries of everything else."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocev2.dtypes import numpy_dtype


@dataclass(frozen=True, slots=True)
class MissingPsn:
    """A range of packets of an all-reduce that the capture lacks."""

    dest_qp: int
    """Destination queue pair."""
    first: int
    """First lost PSN."""
    last: int
    """Last lost PSN, inclusive; less than `first` when the range wraps around."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One all-reduce and the proven part of its reduced tensor."""

    index: int
    """Position in order of time, from 0."""
    ranks: int
    """Ranks of the ring."""
    channels: int
    """NCCL channels that carry it."""
    protocol: str
    """NCCL protocol, ``LL``."""
    dtype: str | None
    """Element type as the caller named it; it is not on the wire."""
    elements: int
    """Elements of `dtype`, of 4 bytes where it is None. LL sends whole lines of 8 bytes, so that the wire cannot tell
    a last line with less from a full one: the count includes such padding unless the caller gave the sizes."""
    covered: NDArray[np.bool_]
    """Which elements are proven, shape (elements,)."""
    data: bytes
    """Little-endian bytes of the tensor; those of elements that are not covered are zero and mean nothing."""
    missing_psn: tuple[MissingPsn, ...]
    """Packets of this all-reduce (both phases) that the capture lacks."""
    conflicts: int
    """Elements that two all-gather messages disagree on (then not covered), or one and a p2p message."""
    from_p2p: int
    """Elements known only from a p2p message."""
    first_packet: int
    """Number of its first packet in the capture."""
    last_packet: int
    """Number of its last packet in the capture."""

    @property
    def complete(self) -> bool:
        """Whether every element is proven."""
        return bool(self.covered.all())

    @property
    def tensor(self) -> bytes | None:
        """The little-endian bytes of the whole reduced tensor, None unless complete."""
        return self.data if self.complete else None

    @property
    def sha256(self) -> str | None:
        """SHA-256 (hex) of the whole reduced tensor's bytes, None unless complete."""
        return sha256(self.data).hexdigest() if self.complete else None

    @property
    def missing_elements(self) -> list[tuple[int, int]]:
        """Half-open element ranges that are not proven."""
        edges = np.flatnonzero(np.diff(np.concatenate(([True], self.covered, [True])).astype(np.int8)))
        return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]

    def to_numpy(self) -> NDArray[Any]:
        """Return the elements, shape (elements,); those that are not covered are zero.

        bfloat16, which numpy does not know, comes as its uint16 bits; without `dtype` the elements are uint32.
        """
        return np.frombuffer(self.data, numpy_dtype(self.dtype))


@dataclass(frozen=True, slots=True)
class P2pMessage:
    """A plain (NCCL Simple) message, which may repeat a part of a reduced tensor."""

    dest_qp: int
    """Destination queue pair."""
    first_packet: int
    """Number of its first packet in the capture."""
    last_packet: int
    """Number of its last packet in the capture."""
    bytes: int
    """Message size, as far as known."""
    outcome: str
    """Comparison with the all-gather: ``supplies``, ``agrees``, ``conflict``, ``ambiguous`` or ``unrelated``."""
    all_reduce: int | None
    """Index of the all-reduce that it belongs to."""
    start: int | None
    """Byte offset in the reduced tensor where it belongs (or, at a conflict, where its length would put it)."""
    differing: int = 0
    """Elements that differ from the all-gather, at a conflict."""


@dataclass(frozen=True, slots=True)
class MessageSummary:
    """How many messages of one kind one queue pair received."""

    dest_qp: int
    """Destination queue pair."""
    kind: str
    """``LL``, ``control``, ``completion``, ``plain``, ``empty`` or ``fragment`` (its beginning is lost)."""
    count: int
    """Number of messages."""
    bytes: int
    """Their payload bytes."""


@dataclass(frozen=True, slots=True)
class QueuePairSummary:
    """One direction of a reliable connection: requests to one destination queue pair."""

    source: str
    """IP address of the sender."""
    destination: str
    """IP address of the receiver."""
    udp_source: int
    """UDP source port, which both directions of a connection share."""
    dest_qp: int
    """Destination queue pair."""
    packets: int
    """Number of packets."""
    payload_bytes: int
    """Their payload bytes."""
    opcodes: dict[str, int]
    """Opcode name -> number of packets."""
    lost: tuple[tuple[int, int], ...]
    """Lost PSN ranges (first, last), inclusive; at most the first 1000 of them."""
    duplicates: int
    """Retransmissions equal to the first copy."""
    conflicting: int
    """Retransmissions that differ from the first copy; their PSN counts as lost."""
    reordered: int
    """Packets out of order in the capture."""
    role: str
    """``LL``, ``control``, ``plain``, ``mixed``, ``requests`` (others than WRITE) or ``acknowledgements``."""
    rank: int | None
    """Ring index of the sender, if known."""
    channel: int | None
    """NCCL channel, if known."""


@dataclass(frozen=True, slots=True)
class DecodedCapture:
    """Everything found in a capture."""

    file: str
    """Name of the capture."""
    packets: int
    """All packets of the capture."""
    rocev2_packets: int
    """Packets to UDP port 4791, usable or not."""
    other: dict[str, int]
    """Frames that are not RoCEv2, by name."""
    marks: dict[str, int]
    """What else was seen: datagrams, CNPs, NAKs, wrong iCRCs, cut frames, unknown opcodes ..., by name."""
    all_reduces: tuple[AllReduce, ...]
    """All-reduces in order of time."""
    p2p: tuple[P2pMessage, ...]
    """Plain messages of hosts of a ring."""
    messages: tuple[MessageSummary, ...]
    """Messages by queue pair and kind."""
    queue_pairs: tuple[QueuePairSummary, ...]
    """All flows."""
    unresolved: int = 0
    """Data messages that belong to no proven all-reduce: other collectives, or damaged ones."""
    open: int = 0
    """Rings, and loops of all-reduces, whose place is not proven; `notes` say why."""
    notes: tuple[str, ...] = field(default=())
    """What could not be proven, and why, in sentences."""

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``checkmate replay --json``."""
        return {
            "file": self.file,
            "packets": self.packets,
            "rocev2_packets": self.rocev2_packets,
            "other": dict(self.other),
            "all_reduces": [_all_reduce_json(item) for item in self.all_reduces],
            "open": self.open,
            "notes": list(self.notes),
        }


def _all_reduce_json(item: AllReduce) -> dict[str, Any]:
    return {
        "index": item.index,
        "ranks": item.ranks,
        "channels": item.channels,
        "protocol": item.protocol,
        "dtype": item.dtype,
        "elements": item.elements,
        "covered": int(item.covered.sum()),
        "complete": item.complete,
        "sha256": item.sha256,
        "missing_elements": [[start, stop] for start, stop in item.missing_elements],
        "missing_psn": [{"dest_qp": m.dest_qp, "first": m.first, "last": m.last} for m in item.missing_psn],
    }
