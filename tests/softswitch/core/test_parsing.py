"""The parser: select, lookahead, varbit, stacks with loops, advance, verify, and packets that end early."""

from __future__ import annotations

import pytest

from tests.softswitch.core_rig import load, only, pack, unpack

CORE = load("parsing")
TOO_SHORT, BAD_VERSION, STACK_FULL, TOO_LONG_HEADER = 1, 2, 3, 4


def head(version: int, kind: int) -> bytes:
    return pack((version, 4), (kind, 12), (0, 8), (0, 8), (0, 8))


def label(value: int, bottom: int, ttl: int) -> bytes:
    return pack((value, 20), (5, 3), (bottom, 1), (ttl, 8))


def parsed(frame: bytes) -> tuple[int, int, int, bytes]:
    """Return (error, number of labels, peeked byte, everything behind the first header)."""
    _, out = only(CORE, frame)
    _, _, error, labels, peeked = unpack(out, 4, 12, 8, 8, 8)
    return error, labels, peeked, out[5:]


LEAF, REST = b"\x12\x34", b"payload"


def test_one_two_and_three_labels_are_taken_off_the_stack() -> None:
    for count in (1, 2, 3):
        stack = [label(100 + n, n == count - 1, 64) for n in range(count)]
        frame = head(1, 1) + b"".join(stack) + LEAF + REST
        changed = label(100, count == 1, 63) + b"".join(stack[1:])
        assert parsed(frame) == (0, count, 0, changed + LEAF + REST)


def test_a_fourth_label_is_out_of_bounds_and_stays_in_the_payload() -> None:
    stack = b"".join(label(n, n == 3, 64) for n in range(4))
    assert parsed(head(1, 1) + stack + LEAF) == (STACK_FULL, 3, 0, label(0, 0, 63) + stack[4:] + LEAF)


def test_a_packet_that_ends_inside_a_header_still_goes_to_ingress() -> None:
    whole = head(1, 1) + label(1, 0, 64) + label(2, 1, 64) + LEAF
    for length in range(5, len(whole)):
        error, labels, _, rest = parsed(whole[:length])
        assert error == TOO_SHORT
        assert labels == min((length - 5) // 4, 2)
        first = b"" if labels == 0 else label(1, 0, 63)
        assert rest == first + whole[5 + 4 * min(labels, 1) : length]
    assert parsed(whole)[0] == 0


def test_a_packet_that_ends_inside_the_first_header_comes_out_as_it_was() -> None:
    assert only(CORE, b"\x10\x01\x00") == (1, b"\x10\x01\x00")
    assert only(CORE, b"") == (1, b"")


def test_a_failed_verify_stops_the_parser() -> None:
    assert parsed(head(15, 1) + REST) == (BAD_VERSION, 0, 0, REST)


@pytest.mark.parametrize("length", [0, 1, 7, 40])
def test_a_varbit_field_has_the_length_that_the_packet_says(length: int) -> None:
    data = bytes(range(length))
    frame = head(1, 2) + bytes([length]) + data + pack((0x00FF, 16)) + LEAF + REST
    expected = bytes([length]) + data + pack((0x0100, 16)) + LEAF + REST
    assert parsed(frame) == (0, 0, 0, expected)


def test_a_varbit_field_longer_than_declared_is_refused() -> None:
    body = bytes([41]) + bytes(60)
    assert parsed(head(1, 2) + body) == (TOO_LONG_HEADER, 0, 0, body)


def test_a_varbit_field_longer_than_the_packet_is_refused() -> None:
    assert parsed(head(1, 2) + b"\x10" + bytes(10)) == (TOO_SHORT, 0, 0, b"\x10" + bytes(10))


@pytest.mark.parametrize(
    ("version", "kind", "order"),
    [
        (2, 0x010, "leaf"),
        (2, 0x71F, "leaf"),
        (2, 0x020, "none"),
        (5, 0x0FF, "none"),
        (5, 0x100, "other"),
        (5, 0x103, "other"),
        (5, 0x104, "none"),
        (6, 0x000, "none"),
    ],
)
def test_select_with_masks_and_ranges(version: int, kind: int, order: str) -> None:
    """Which state was reached shows in how many bytes a packet may lack before it is too short."""
    needed = {"none": 0, "leaf": 2, "other": 4}[order]
    frame = head(version, kind) + bytes(needed)
    assert parsed(frame)[0] == 0
    if needed:
        assert parsed(frame[:-1])[0] == TOO_SHORT


def test_lookahead_reads_without_consuming() -> None:
    assert parsed(head(3, 0) + b"\xaa\x01" + LEAF + REST) == (0, 0, 0xAA, b"\xaa\x01" + LEAF + REST)
    assert parsed(head(3, 0) + b"\xab\x01" + REST) == (0, 0, 0xAB, b"\xab\x01" + REST)


def test_lookahead_beyond_the_end_is_too_short() -> None:
    assert parsed(head(3, 0) + b"\xaa") == (TOO_SHORT, 0, 0xAA, b"\xaa")
    assert parsed(head(3, 0)) == (TOO_SHORT, 0, 0, b"")


def test_advance_skips_bytes_for_good() -> None:
    assert parsed(head(4, 0) + b"\x01\x02" + LEAF + REST) == (0, 0, 0, LEAF + REST)
    assert parsed(head(4, 0) + b"\x01")[0] == TOO_SHORT
