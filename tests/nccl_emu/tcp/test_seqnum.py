"""Sequence arithmetic against plain integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_emu.tcp import seq_add, seq_diff
from nccl_emu.tcp.seqnum import SEQ_MODULUS, to_position, to_seq

seqs = st.integers(0, SEQ_MODULUS - 1)
near_half = st.integers(-(1 << 31), (1 << 31) - 1)


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (0, 0xFFFFFFFF, 1),
        (0xFFFFFFFF, 0, -1),
        (5, 0xFFFFFFF0, 21),
        (0x7FFFFFFF, 0, 0x7FFFFFFF),
        (0x80000000, 0, -0x80000000),
    ],
)
def test_distance_crosses_the_wrap(a: int, b: int, distance: int) -> None:
    assert seq_diff(a, b) == distance


@given(seqs, near_half)
def test_add_and_diff_are_inverse(seq: int, distance: int) -> None:
    assert seq_diff(seq_add(seq, distance), seq) == distance


@given(seqs, st.integers(0, 1 << 40), near_half)
def test_positions_survive_the_wire_anywhere_in_a_long_stream(initial: int, near: int, distance: int) -> None:
    position = near + distance
    seq = to_seq(initial, position)
    assert 0 <= seq < SEQ_MODULUS
    assert to_position(initial, seq, near) == position
