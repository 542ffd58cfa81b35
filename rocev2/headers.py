"""From batches of packets to RoCEv2 headers: checks the iCRC and parses what follows the base transport header.

Formats: IBTA volume 1 chapter 9 and annex A17. Every length is checked before a field is read; no input makes `read`
raise.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packets.batch import Bytes, PacketBatch
from packets.compiled import Kernel
from packets.headers import ICRC_BYTES, ROCE_PORT, Headers, Kind
from rocev2.icrc import icrc
from rocev2.opcodes import AETH, ATOMIC_ETH, DETH, IMM, KNOWN, RDETH, RETH, WRITES, extended_header_bytes
from rocev2.protocols import LL

UDP = 17
_FIELDS = (
    "kind", "ip_version", "protocol", "short", "opcode", "pad", "payload_length", "payload", "network", "transport"
)  # fmt: skip
_RETH = struct.Struct("!QII").unpack_from


class Verdict(IntEnum):
    """How a packet is classified."""

    GOOD = 0
    """RoCEv2 with a correct iCRC."""
    FOREIGN = 1
    """Not RoCEv2."""
    CUT = 2
    """To the RoCEv2 port, truncated by the snapshot length."""
    LENGTH = 3
    """To the RoCEv2 port, with wrong lengths."""
    OPCODE = 4
    """RoCEv2 with an unknown opcode."""
    ICRC = 5
    """RoCEv2 with a wrong iCRC."""


FRAME = np.dtype(
    [
        ("verdict", "u1"),
        ("opcode", "u1"),
        ("syndrome", "i2"),  # of the AETH, -1 without
        ("rkey", "u4"),  # remote key of the RETH, 0 without
        ("length", "u4"),  # DMA length of the RETH in bytes, 0 without
        ("flag", "u4"),  # of a WRITE's payload that may be LL lines, 0 where it cannot
        ("psn", "i8"),
        ("address", "u8"),  # virtual address of the RETH, 0 without
        ("immediate", "i8"),  # as NCCL means it (little endian), -1 without
        ("payload", "i8"),  # position of the payload
        ("size", "i8"),  # its bytes, without pad bytes
        ("order", "i8"),  # position in the capture; for reports only
    ],
    align=True,
)
"""One row for each packet. Only verdict, PSN and order are valid unless the verdict is GOOD."""

Frames = NDArray[Any]
"""[n] rows of `FRAME`."""


def _read(data: Bytes, starts: NDArray[np.int64], lengths: NDArray[np.int32], headers: Headers, frames: Frames) -> None:
    """Fill in `frames`, which is zeroed."""
    view = memoryview(data)  # type: ignore[arg-type]
    ends = (starts + lengths).tolist()
    columns = zip(ends, *(headers[name].tolist() for name in _FIELDS), strict=True)
    for row, (end, kind, version, protocol, short, opcode, pad, length, payload, network, udp) in enumerate(columns):
        if kind != Kind.ROCE:
            frames[row]["verdict"] = Verdict.FOREIGN
            if protocol == UDP and kind in (Kind.MALFORMED, Kind.TRUNCATED):
                at = (udp or network + ((view[network] & 15) * 4 if version == 4 else 40)) + 2
                if at + 2 <= end and view[at : at + 2] == ROCE_PORT.to_bytes(2, "big"):
                    frames[row]["verdict"] = Verdict.CUT if kind == Kind.TRUNCATED else Verdict.LENGTH
            continue
        if short or opcode not in KNOWN:
            frames[row]["verdict"] = Verdict.CUT if short else Verdict.OPCODE
            continue
        stop = payload + length
        right = icrc(view[network : network + (20 if version == 4 else 40)], view[udp : udp + 8], view[udp + 8 : stop])
        if right != int.from_bytes(view[stop : stop + ICRC_BYTES], "little"):
            frames[row]["verdict"] = Verdict.ICRC
            continue
        at, begin = payload, payload + extended_header_bytes(opcode)
        size = stop - pad - begin
        if size < 0:
            frames[row]["verdict"] = Verdict.LENGTH
            continue
        parts = KNOWN[opcode]
        address = rkey = dma = 0
        immediate = syndrome = -1
        at += (4 if parts & RDETH else 0) + (8 if parts & DETH else 0)
        if parts & RETH:
            address, rkey, dma = _RETH(view, at)
            at += 16
        if parts & ATOMIC_ETH:
            at += 28
        if parts & AETH:
            syndrome = view[at]
            at += 4
        if parts & IMM:
            immediate = int.from_bytes(view[at : at + 4], "little")
        flag = (LL.flag(data[begin : begin + size]) or 0) if opcode in WRITES else 0
        frames[row] = (0, opcode, syndrome, rkey, dma, flag, 0, address, immediate, begin, size, 0)


read_rows = Kernel(_read, "rocev2.kernels:read")


def read(batch: PacketBatch, headers: Headers, numbers: NDArray[np.int64]) -> Frames:
    """Return a row of `FRAME` for each packet of a batch; `numbers` are their positions in the capture."""
    frames: Frames = np.zeros(len(batch), FRAME)
    read_rows(batch.data, batch.starts, batch.lengths, headers, frames)
    frames["psn"] = headers["psn"]
    frames["order"] = numbers
    return frames
