"""RDMA WRITE messages reassembled from packets in PSN order, with gaps where packets were lost.

Offsets in a message come from its first packet (RETH, PSN) or its last (NCCL puts the message size into the immediate
data), never from counting captured packets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packets.batch import Bytes
from packets.compiled import Kernel
from rocev2.headers import Frames
from rocev2.opcodes import WRITE_FIRST, WRITE_LAST, WRITE_LAST_IMM, WRITE_MIDDLE, WRITE_ONLY, WRITE_ONLY_IMM


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """One RDMA WRITE, or its captured part."""

    frames: Frames
    """Its captured packets in PSN order; `payload` indexes `data`."""
    data: Bytes
    """Payloads of all packets of the flow."""
    bytes: int
    """Captured payload bytes."""
    flag: int | None
    """LL flag; None unless all packets carry the same."""
    order: int
    """Position in the capture of its earliest packet."""
    last_order: int
    """Position in the capture of its latest packet."""
    first_psn: int
    """PSN of the first captured packet."""
    last_psn: int
    """PSN of the last captured packet."""
    first: int | None
    """PSN of its first packet; None if that is lost."""
    last: int | None
    """PSN of its last packet; None if unknown."""
    address: int
    """Remote virtual address, 0 if the first packet is lost."""
    rkey: int
    """Remote key, 0 if the first packet is lost."""
    length: int | None
    """Bytes of the whole message; None if the first packet is lost."""
    immediate: int
    """Immediate data; -1 if it has none, or its last packet is lost."""
    ended: bool
    """Whether its last packet was captured."""
    single: bool
    """Whether it is a WRITE_ONLY: one packet with its own address."""

    @property
    def payload(self) -> Bytes:
        """The payloads, concatenated."""
        runs = [self.data[place : place + size] for _, place, size in self.pieces(0, self.first_psn, 0)]
        return runs[0] if len(runs) == 1 else np.concatenate(runs)

    def packet(self, place: int) -> Bytes:
        """Return the payload of captured packet number `place`, from 0."""
        frame = self.frames[place]
        return self.data[frame["payload"] : frame["payload"] + frame["size"]]

    def runs(self) -> list[tuple[int, int]]:
        """Return the captured PSNs as inclusive ranges."""
        if self.last_psn - self.first_psn + 1 == len(self.frames):
            return [(self.first_psn, self.last_psn)]
        psn = self.frames["psn"]
        breaks = np.flatnonzero(np.diff(psn) > 1)
        starts, stops = psn[np.append(0, breaks + 1)], psn[np.append(breaks, -1)]
        return list(zip(starts.tolist(), stops.tolist(), strict=True))

    def pieces(
        self, origin: int, psn: int, mtu: int, fits: NDArray[np.bool_] | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (offset, position in `data`, size) of the payloads; adjacent ones are joined.

        Args:
            origin: offset of the packet with this `psn`.
            psn: unwrapped PSN.
            mtu: bytes from one packet to the next; 0 to take no account of offsets.
            fits: packets to yield, None for all.
        """
        offsets, places, sizes = self.offsets(origin, psn, mtu), self.frames["payload"], self.frames["size"]
        if fits is not None and not fits.all():
            offsets, places, sizes = offsets[fits], places[fits], sizes[fits]
        if not len(sizes):
            return
        apart = places[1:] != places[:-1] + sizes[:-1]
        if mtu:
            apart |= offsets[1:] != offsets[:-1] + sizes[:-1]
        starts = np.append(0, np.flatnonzero(apart) + 1)
        lengths = np.add.reduceat(sizes, starts)
        yield from zip(offsets[starts].tolist(), places[starts].tolist(), lengths.tolist(), strict=True)

    def offsets(self, origin: int, psn: int, mtu: int) -> NDArray[np.int64]:
        """Return the offset of each packet; the arguments are those of `pieces`."""
        offsets: NDArray[np.int64] = origin + (self.frames["psn"] - psn) * mtu
        return offsets


def _number_messages(
    opcode: NDArray[np.uint8],
    psn: NDArray[np.int64],
    size: NDArray[np.int64],
    length: NDArray[np.uint32],
    numbers: NDArray[np.int64],
) -> int:
    """Number the messages that packets belong to; return the path MTU, 0 if there is no first or middle packet.

    Args:
        opcode: of WRITE packets of one flow, in PSN order.
        psn: unwrapped.
        size: bytes of the payload.
        length: of the RETH.
        numbers: output: ascending from 0; -1 if opcode or length do not fit at that place.
    """
    mtu = count = 0
    is_open = False
    first = last = whole = -1  # of the open message, -1 where not known
    for row in range(len(psn)):
        number, bytes_ = int(psn[row]), int(size[row])
        gap = row > 0 and number != psn[row - 1] + 1
        if is_open and ((last >= 0 and number > last) or (last < 0 and gap)):
            is_open = False
        is_mtu = bytes_ in (256, 512, 1024, 2048, 4096) and mtu in (0, bytes_)
        numbers[row] = -1
        if opcode[row] in (WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMM):
            is_open = False
            stated = int(length[row])
            if opcode[row] != WRITE_FIRST:
                if bytes_ != stated or bytes_ > 4096:
                    continue
            else:
                if not is_mtu or stated <= bytes_:
                    continue
                mtu, first, whole, last = bytes_, number, stated, number + (stated + bytes_ - 1) // bytes_ - 1
                is_open = True
            numbers[row] = count
            count += 1
            continue
        if opcode[row] == WRITE_MIDDLE:
            if not is_mtu:
                continue
            mtu = bytes_
            if is_open and last >= 0 and number >= last:
                continue
        else:
            if not 0 < bytes_ <= (mtu if mtu else 4096):
                continue
            if is_open and first >= 0 and (number != last or bytes_ != whole - (number - first) * mtu):
                continue
        if not is_open:
            is_open = True
            first = last = whole = -1
            count += 1
        numbers[row] = count - 1
        if opcode[row] != WRITE_MIDDLE:
            is_open = False
    return mtu


number_messages = Kernel(_number_messages, "rocev2.kernels:number_messages")


def cut(frames: Frames, data: Bytes) -> tuple[list[Write], int | None]:
    """Split the WRITE packets of one flow, in PSN order, into messages.

    Packets whose opcode or length does not fit at their place are ignored.

    Returns:
        The messages, and the path MTU: the payload size of first and middle packets, None if there are none.
    """
    numbers = np.empty(len(frames), np.int64)
    opcode, psn, size, length = (np.ascontiguousarray(frames[name]) for name in ("opcode", "psn", "size", "length"))
    mtu = number_messages(opcode, psn, size, length, numbers) or None
    if len(numbers) and numbers.min() < 0:
        frames, numbers = frames[numbers >= 0], numbers[numbers >= 0]
    if not len(frames):
        return [], mtu
    starts = np.append(0, np.flatnonzero(np.diff(numbers)) + 1)
    stops = np.append(starts[1:], len(frames))
    flag = np.ascontiguousarray(frames["flag"])
    flags = np.minimum.reduceat(flag, starts)
    flags[flags != np.maximum.reduceat(flag, starts)] = 0
    order = np.ascontiguousarray(frames["order"])
    columns = [np.add.reduceat(frames["size"], starts), flags, np.minimum.reduceat(order, starts)]
    columns += [np.maximum.reduceat(order, starts)]
    heads, tails = frames[starts], frames[stops - 1]
    columns += [heads[name] for name in ("opcode", "psn", "size", "length", "address", "rkey")]
    columns += [tails[name] for name in ("opcode", "psn", "immediate")]
    writes = []
    for start, stop, *row in zip(starts.tolist(), stops.tolist(), *(c.tolist() for c in columns), strict=True):
        total, mark, early, late, kind, first, bytes_, whole, address, rkey, last_kind, last_psn, immediate = row
        single = kind in (WRITE_ONLY, WRITE_ONLY_IMM)
        begun = single or kind == WRITE_FIRST
        ended = single or last_kind in (WRITE_LAST, WRITE_LAST_IMM)
        last = last_psn if ended else first + -(-whole // bytes_) - 1 if begun else None
        writes.append(
            Write(
                frames[start:stop], data, total, mark or None, early, late, first, last_psn, first if begun else None,
                last, address, rkey, whole if begun else None, immediate, ended, single,
            )
        )  # fmt: skip
    return writes, mtu
