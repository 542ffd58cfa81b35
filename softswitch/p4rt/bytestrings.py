"""P4Runtime byte strings: unsigned and signed integers in big-endian order, written in the shortest form.

P4Runtime specification, section "Bytestrings".
"""

from __future__ import annotations

from softswitch.p4rt.errors import Code, P4RuntimeError


def decode_unsigned(data: bytes, width: int, what: str, code: Code = Code.INVALID_ARGUMENT) -> int:
    """Return the value of `data`, of type bit<width>; leading zero bytes are accepted.

    Args:
        data: big-endian bytes, at least one.
        width: bits of the P4 type, from P4Info.
        what: names the value in the error.
        code: the code of the error. The general rule of the specification is OUT_OF_RANGE; its sections on
            match fields, action parameters and packet metadata prescribe INVALID_ARGUMENT.

    Raises:
        P4RuntimeError: with `code`, when `data` is empty or its value needs more than `width` bits.
    """
    if not data:
        raise P4RuntimeError(code, f"{what}: the byte string is empty; encode 0 as one zero byte")
    value = int.from_bytes(data, "big")
    if value.bit_length() > width:
        raise P4RuntimeError(code, f"{what}: {value:#x} does not fit in {width} bits")
    return value


def encode_unsigned(value: int) -> bytes:
    """Return the shortest byte string of a value >= 0 (one zero byte for 0)."""
    return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")


def decode_signed(data: bytes, width: int, what: str, code: Code = Code.INVALID_ARGUMENT) -> int:
    """Return the value of `data`, of type int<width> in two's complement; sign extension is accepted.

    Raises:
        P4RuntimeError: with `code`, when `data` is empty or its value needs more than `width` bits.
    """
    if not data:
        raise P4RuntimeError(code, f"{what}: the byte string is empty; encode 0 as one zero byte")
    value = int.from_bytes(data, "big", signed=True)
    if not -(1 << (width - 1)) <= value < (1 << (width - 1)):
        raise P4RuntimeError(code, f"{what}: {value} does not fit in int<{width}>")
    return value


def encode_signed(value: int) -> bytes:
    """Return the shortest two's complement byte string of a value."""
    bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes((bits + 7) // 8, "big", signed=True)
