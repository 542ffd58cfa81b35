from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.unwrap import unwrap

positions = st.integers(0, 1 << 50)


@settings(deadline=None)
@given(positions, st.integers(-(1 << 31) + 1, (1 << 31) - 1))
def test_any_position_within_two_gibibytes_of_the_reference_is_found(reference: int, distance: int) -> None:
    position = max(0, reference + distance)
    assert unwrap((position + 1) % (1 << 32), reference) == position


def test_wrap_of_the_sequence_number() -> None:
    last = (1 << 32) - 1  # position whose sequence number is 0 again
    assert [unwrap(seq, last) for seq in (0xFFFFFFFF, 0, 1, 2)] == [last - 1, last, last + 1, last + 2]
    assert unwrap(0xFFFFFFFF, last + 5) == last - 1, "a late segment from before the wrap"


def test_a_number_before_the_first_byte_is_negative() -> None:
    assert unwrap(0, 0) == -1
    assert unwrap(0xFFFFFFF0, 10) < 0
