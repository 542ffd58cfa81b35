"""Byte strings: the tables of the P4Runtime specification, and that encoding and decoding agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softswitch.p4rt.bytestrings import decode_signed, decode_unsigned, encode_signed, encode_unsigned
from softswitch.p4rt.errors import Code, P4RuntimeError


@pytest.mark.parametrize(
    ("width", "value", "data", "canonical"),
    [
        (8, 99, b"\x63", True),
        (16, 99, b"\x00\x63", False),
        (16, 99, b"\x63", True),
        (16, 12388, b"\x30\x64", True),
        (16, 12388, b"\x00\x30\x64", False),
        (12, 99, b"\x00\x63", False),
        (12, 99, b"\x63", True),
        (12, 99, b"\x00\x00\x63", False),
    ],
)
def test_unsigned_examples_of_the_specification(width: int, value: int, data: bytes, canonical: bool) -> None:
    assert decode_unsigned(data, width, "x") == value
    assert (encode_unsigned(value) == data) is canonical


@pytest.mark.parametrize(
    ("width", "value", "data", "canonical"),
    [
        (8, 99, b"\x63", True),
        (8, -99, b"\x9d", True),
        (8, -99, b"\xff\x9d", False),
        (12, -739, b"\xfd\x1d", True),
        (16, 0, b"\x00\x00", False),
        (16, 0, b"\x00", True),
    ],
)
def test_signed_examples_of_the_specification(width: int, value: int, data: bytes, canonical: bool) -> None:
    assert decode_signed(data, width, "x") == value
    assert (encode_signed(value) == data) is canonical


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (8, b"\x01\x63"),
        (8, b""),
        (16, b"\x01\x00\x63"),
        (12, b"\x10\x63"),
        (12, b"\x01\x00\x63"),
        (12, b"\x00\x40\x63"),
    ],
)
def test_invalid_unsigned_examples_of_the_specification(width: int, data: bytes) -> None:
    with pytest.raises(P4RuntimeError, match="the thing") as caught:
        decode_unsigned(data, width, "the thing", Code.OUT_OF_RANGE)
    assert caught.value.code is Code.OUT_OF_RANGE


@pytest.mark.parametrize(("width", "data"), [(8, b"\x00\x9d"), (12, b"\x8d\x1d"), (16, b"")])
def test_invalid_signed_examples_of_the_specification(width: int, data: bytes) -> None:
    with pytest.raises(P4RuntimeError):
        decode_signed(data, width, "x")


@given(st.integers(1, 200).flatmap(lambda width: st.tuples(st.just(width), st.integers(0, (1 << width) - 1))))
def test_unsigned_round_trip_is_shortest(case: tuple[int, int]) -> None:
    width, value = case
    data = encode_unsigned(value)
    assert decode_unsigned(data, width, "x") == value
    assert len(data) == 1 or data[0] != 0
    assert decode_unsigned(b"\0\0" + data, width, "x") == value


@given(
    st.integers(1, 200).flatmap(
        lambda width: st.tuples(
            st.just(width), st.integers(-(1 << (width - 1)), (1 << (width - 1)) - 1), st.integers(0, 3)
        )
    )
)
def test_signed_round_trip_survives_sign_extension(case: tuple[int, int, int]) -> None:
    width, value, extra = case
    data = encode_signed(value)
    filler = b"\xff" if value < 0 else b"\x00"
    assert decode_signed(filler * extra + data, width, "x") == value
    if len(data) > 1:
        with pytest.raises(OverflowError):
            value.to_bytes(len(data) - 1, "big", signed=True)
