"""RDMA WRITE messages rebuilt from packets in PSN order, with the holes that losses leave.

Offsets in a message come from its first packet (RETH, PSN) or its last (NCCL puts the message size into the immediate
data), never from counting the packets that happen to be there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rocev2.opcodes import (
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_LAST_IMM,
    WRITE_MIDDLE,
    WRITE_ONLY,
    WRITE_ONLY_IMM,
)
from rocev2.queue_pair import Request

_MTUS = frozenset((256, 512, 1024, 2048, 4096))


class Piece(NamedTuple):
    """The payload of one packet of a message."""

    psn: int
    order: int
    payload: bytes


@dataclass(slots=True, eq=False)
class Write:
    """One RDMA WRITE, or what is left of it."""

    pieces: list[Piece]
    """Its packets, in PSN order."""
    first: int | None = None
    """PSN of its first packet, None when that is lost."""
    last: int | None = None
    """PSN of its last packet, None when not known."""
    address: int = 0
    rkey: int = 0
    length: int | None = None
    """Bytes of the message."""
    immediate: int = -1
    """Immediate data, -1 when it has none or that is lost."""
    ended: bool = False
    """Whether its last packet is there."""
    single: bool = False
    """Whether it is a WRITE_ONLY: one packet with an address of its own."""

    @property
    def order(self) -> int:
        """Position in the capture of its earliest packet."""
        return min(piece.order for piece in self.pieces)

    @property
    def bytes(self) -> int:
        """Payload bytes that are there."""
        return sum(len(piece.payload) for piece in self.pieces)


@dataclass(slots=True)
class MessageBuilder:
    """Cuts the packets of one queue pair into messages."""

    mtu: int | None = None
    """Path MTU: the payload size of first and middle packets; None before one was seen."""
    odd: int = 0
    """Packets whose opcode or length does not fit their place; not used."""
    _open: Write | None = field(default=None)
    _expected: int | None = None

    def feed(self, request: Request) -> list[Write]:
        """Take the next packet in PSN order; return the messages that end before it or with it."""
        psn, order, opcode = request[:3]
        done: list[Write] = []
        gap = self._expected is not None and psn != self._expected
        self._expected = psn + 1
        current = self._open
        if current is not None and (
            (current.last is not None and psn > current.last) or (current.last is None and gap)
        ):
            done.append(current)
            current = self._open = None
        piece = Piece(psn, order, request.payload)
        if opcode in (WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMM):
            self.flush_into(done)
            self._begin(piece, request, done)
            return done
        if not self._fits(current, request):
            self.odd += 1
            return done
        if current is None:
            current = self._open = Write([])
        current.pieces.append(piece)
        if opcode != WRITE_MIDDLE:
            current.ended = True
            current.last = psn
            current.immediate = request.immediate
            self.flush_into(done)
        return done

    def flush_into(self, done: list[Write]) -> None:
        """End the open message, if any, and append it to `done`."""
        if self._open is not None:
            done.append(self._open)
            self._open = None

    def _begin(self, piece: Piece, request: Request, done: list[Write]) -> None:
        psn, size = request.psn, len(request.payload)
        write = Write([piece], psn, None, request.address, request.rkey, request.length, request.immediate)
        if request.opcode != WRITE_FIRST:
            if size != request.length or size > 4096:
                self.odd += 1
                return
            write.last, write.ended, write.single = psn, True, True
            done.append(write)
            return
        if size not in _MTUS or request.length <= size or self.mtu not in (None, size):
            self.odd += 1
            return
        self.mtu = size
        write.last = psn + -(-request.length // size) - 1
        self._open = write

    def _fits(self, current: Write | None, request: Request) -> bool:
        """Return whether a MIDDLE or LAST packet can be where it is."""
        psn, size = request.psn, len(request.payload)
        if request.opcode == WRITE_MIDDLE:
            if size not in _MTUS or self.mtu not in (None, size):
                return False
            self.mtu = size
            return current is None or current.last is None or psn < current.last
        assert request.opcode in (WRITE_LAST, WRITE_LAST_IMM)
        if not 0 < size <= (self.mtu or 4096):
            return False
        if current is None or current.length is None or current.first is None:
            return True
        return psn == current.last and size == current.length - (psn - current.first) * (self.mtu or 0)
