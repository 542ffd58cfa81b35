"""BTH opcodes and the extended headers that follow each (IBTA volume 1, table 38)."""

from __future__ import annotations

RETH, IMM, AETH, ATOMIC_ETH, ATOMIC_ACK, DETH = 1, 2, 4, 8, 16, 32
_BYTES = {RETH: 16, IMM: 4, AETH: 4, ATOMIC_ETH: 28, ATOMIC_ACK: 8, DETH: 8}

SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(6)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(6, 12)
READ_REQUEST = 0x0C
ACKNOWLEDGE = 0x11
UD_SEND_ONLY = 0x64
CNP = 0x81

KNOWN: dict[int, int] = {
    SEND_FIRST: 0, SEND_MIDDLE: 0, SEND_LAST: 0, SEND_LAST_IMM: IMM, SEND_ONLY: 0, SEND_ONLY_IMM: IMM,
    WRITE_FIRST: RETH, WRITE_MIDDLE: 0, WRITE_LAST: 0, WRITE_LAST_IMM: IMM, WRITE_ONLY: RETH,
    WRITE_ONLY_IMM: RETH | IMM, READ_REQUEST: RETH, 0x0D: AETH, 0x0E: 0, 0x0F: AETH, 0x10: AETH, ACKNOWLEDGE: AETH,
    0x12: AETH | ATOMIC_ACK, 0x13: ATOMIC_ETH, 0x14: ATOMIC_ETH, 0x16: 0, 0x17: 0,
    UD_SEND_ONLY: DETH, UD_SEND_ONLY + 1: DETH | IMM, CNP: 0,
}  # fmt: skip
"""Opcode to the set of its extended headers. The IETH of SEND with invalidate (0x16, 0x17) is left in the payload."""

NAMES: dict[int, str] = {
    SEND_FIRST: "SEND_FIRST", SEND_MIDDLE: "SEND_MIDDLE", SEND_LAST: "SEND_LAST", SEND_LAST_IMM: "SEND_LAST_IMM",
    SEND_ONLY: "SEND_ONLY", SEND_ONLY_IMM: "SEND_ONLY_IMM", WRITE_FIRST: "WRITE_FIRST", WRITE_MIDDLE: "WRITE_MIDDLE",
    WRITE_LAST: "WRITE_LAST", WRITE_LAST_IMM: "WRITE_LAST_IMM", WRITE_ONLY: "WRITE_ONLY",
    WRITE_ONLY_IMM: "WRITE_ONLY_IMM", READ_REQUEST: "READ_REQUEST", 0x0D: "READ_RESPONSE_FIRST",
    0x0E: "READ_RESPONSE_MIDDLE", 0x0F: "READ_RESPONSE_LAST", 0x10: "READ_RESPONSE_ONLY", ACKNOWLEDGE: "ACK",
    0x12: "ATOMIC_ACK", 0x13: "COMPARE_SWAP", 0x14: "FETCH_ADD", 0x16: "SEND_LAST_INV", 0x17: "SEND_ONLY_INV",
    UD_SEND_ONLY: "UD_SEND_ONLY", UD_SEND_ONLY + 1: "UD_SEND_ONLY_IMM", CNP: "CNP",
}  # fmt: skip

WRITES = frozenset(range(WRITE_FIRST, WRITE_ONLY_IMM + 1))
"""RDMA WRITE requests of reliable connections."""
REQUESTS = frozenset((*range(READ_REQUEST + 1), 0x13, 0x14, 0x16, 0x17))
"""All requests of reliable connections: they count the requester's PSN; responses repeat the other side's."""

_EXTENDED = {opcode: sum(size for part, size in _BYTES.items() if parts & part) for opcode, parts in KNOWN.items()}


def extended_header_bytes(opcode: int) -> int:
    """Return how many bytes follow the BTH before the payload, for an opcode of `KNOWN`."""
    return _EXTENDED[opcode]
