"""BTH opcodes and the extended headers that follow each (IBTA volume 1, table 38)."""

from __future__ import annotations

RETH, IMM, AETH, ATOMIC_ETH, ATOMIC_ACK, DETH, RDETH, IETH = 1, 2, 4, 8, 16, 32, 64, 128
_BYTES = {RETH: 16, IMM: 4, AETH: 4, ATOMIC_ETH: 28, ATOMIC_ACK: 8, DETH: 8, RDETH: 4, IETH: 4}

SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(6)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(6, 12)
READ_REQUEST, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY, ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE = range(0x0C, 0x13)
COMPARE_SWAP, FETCH_ADD, RESYNC, SEND_LAST_INV, SEND_ONLY_INV = range(0x13, 0x18)
UC, RD, UD = 0x20, 0x40, 0x60
"""Transport, the upper three bits of an opcode: unreliable connection, reliable and unreliable datagram."""
UD_SEND_ONLY, UD_SEND_ONLY_IMM = UD | SEND_ONLY, UD | SEND_ONLY_IMM
CNP = 0x81

_OPERATIONS: tuple[tuple[str, int], ...] = (
    ("SEND_FIRST", 0), ("SEND_MIDDLE", 0), ("SEND_LAST", 0), ("SEND_LAST_IMM", IMM), ("SEND_ONLY", 0),
    ("SEND_ONLY_IMM", IMM), ("WRITE_FIRST", RETH), ("WRITE_MIDDLE", 0), ("WRITE_LAST", 0), ("WRITE_LAST_IMM", IMM),
    ("WRITE_ONLY", RETH), ("WRITE_ONLY_IMM", RETH | IMM), ("READ_REQUEST", RETH), ("READ_RESPONSE_FIRST", AETH),
    ("READ_RESPONSE_MIDDLE", 0), ("READ_RESPONSE_LAST", AETH), ("READ_RESPONSE_ONLY", AETH), ("ACK", AETH),
    ("ATOMIC_ACK", AETH | ATOMIC_ACK), ("COMPARE_SWAP", ATOMIC_ETH), ("FETCH_ADD", ATOMIC_ETH), ("RESYNC", 0),
    ("SEND_LAST_INV", IETH), ("SEND_ONLY_INV", IETH),
)  # fmt: skip
_RESPONSES = frozenset((READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY, ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE))


def _table() -> tuple[dict[int, int], dict[int, str]]:
    parts, names = {CNP: 0}, {CNP: "CNP"}
    for operation, (name, headers) in enumerate(_OPERATIONS):
        if operation != RESYNC:
            parts[operation], names[operation] = headers, name
        if operation <= WRITE_ONLY_IMM:
            parts[UC | operation], names[UC | operation] = headers, "UC_" + name
        if operation <= RESYNC:
            datagram = RDETH | (0 if operation in _RESPONSES else DETH)
            parts[RD | operation], names[RD | operation] = headers | datagram, "RD_" + name
        if operation in (SEND_ONLY, SEND_ONLY_IMM):
            parts[UD | operation], names[UD | operation] = headers | DETH, "UD_" + name
    return parts, names


KNOWN, NAMES = _table()
"""Opcode to the set of its extended headers; opcode to its name (reliable connections without prefix)."""

WRITES = frozenset(range(WRITE_FIRST, WRITE_ONLY_IMM + 1))
"""RDMA WRITE requests of reliable connections."""
FIRSTS = frozenset((SEND_FIRST, SEND_MIDDLE, WRITE_FIRST, WRITE_MIDDLE, READ_FIRST, READ_MIDDLE))
"""Packets of reliable connections whose payload is as long as the path MTU."""
ENDS = frozenset((WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM))
REQUESTS = frozenset((*range(READ_REQUEST + 1), COMPARE_SWAP, FETCH_ADD, SEND_LAST_INV, SEND_ONLY_INV)) | frozenset(
    UC | operation for operation in range(WRITE_ONLY_IMM + 1)
)
"""All requests of connections: they count the requester's PSN; responses repeat the other side's."""

_EXTENDED = {opcode: sum(size for part, size in _BYTES.items() if parts & part) for opcode, parts in KNOWN.items()}


def extended_header_bytes(opcode: int) -> int:
    """Return how many bytes follow the BTH before the payload, for an opcode of `KNOWN`."""
    return _EXTENDED[opcode]


def unknown(opcode: int) -> str:
    """Return what to call an opcode that is not in `KNOWN`."""
    if opcode >= 0xC0:
        return f"vendor opcode 0x{opcode:02x}"
    return f"XRC opcode 0x{opcode:02x}" if opcode >= 0xA0 else f"unknown opcode 0x{opcode:02x}"
