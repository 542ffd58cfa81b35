"""When packets are due, without a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.send_pace import Pace, PaceKind, Pacer

STAMPS = [1_000, 1_500, 1_500, 4_000]


def due(pace: Pace, stamps: list[int], sizes: list[int] | None = None, rounds: int = 1) -> list[int]:
    pacer = Pacer(pace)
    found = []
    for number in range(rounds):
        if number:
            pacer.begin_again()
        found += [pacer.due_ns(at, size) for at, size in zip(stamps, sizes or [100] * len(stamps), strict=True)]
    return found


def test_the_recorded_pace() -> None:
    assert due(Pace(), STAMPS) == [0, 500, 500, 3_000]


@pytest.mark.parametrize(("factor", "expected"), [(2.0, [0, 250, 250, 1_500]), (0.5, [0, 1_000, 1_000, 6_000])])
def test_a_multiple_of_it(factor: float, expected: list[int]) -> None:
    assert due(Pace(PaceKind.RECORDED, factor), STAMPS) == expected


def test_packets_a_second_do_not_drift() -> None:
    found = due(Pace(PaceKind.PACKETS, 3), [7] * 300_001)
    assert found[:4] == [0, 333_333_333, 666_666_666, 1_000_000_000]
    assert found[-1] == 100_000 * 1_000_000_000


def test_bits_a_second_are_those_in_front() -> None:
    # 8000 bit/s are 1000 bytes a second.
    assert due(Pace(PaceKind.BITS, 8000), STAMPS, [1000, 500, 0, 9]) == [0, 10**9, 15 * 10**8, 15 * 10**8]


def test_a_clock_that_was_set_back_does_not_reorder() -> None:
    assert due(Pace(), [100, 200, 50, 60]) == [0, 100, 100, 110]


def test_a_repetition_follows_a_mean_gap_behind() -> None:
    assert due(Pace(), STAMPS, rounds=2) == [0, 500, 500, 3_000, 4_000, 4_500, 4_500, 7_000]
    assert due(Pace(PaceKind.PACKETS, 2), [5, 6], rounds=2) == [0, 5 * 10**8, 10**9, 15 * 10**8]
    assert due(Pace(), [5], rounds=3) == [0, 0, 0]


@given(
    st.lists(st.tuples(st.integers(0, 2**63), st.integers(0, 10_000)), min_size=1, max_size=30),
    st.sampled_from(list(PaceKind)),
    st.floats(1e-3, 1e9),
    st.integers(1, 3),
)
def test_no_packet_overtakes(packets: list[tuple[int, int]], kind: PaceKind, value: float, rounds: int) -> None:
    found = due(Pace(kind, value), [at for at, _ in packets], [size for _, size in packets], rounds)
    assert found == sorted(found)
    assert found[0] == 0


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_pace_that_never_ends_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"packets/s: expected a number above 0"):
        Pace(PaceKind.PACKETS, value)


def test_paces_in_words() -> None:
    assert str(Pace()) == "recorded pace"
    assert str(Pace(PaceKind.RECORDED, 2)) == "2 times the recorded speed"
    assert str(Pace(PaceKind.PACKETS, 1000)) == "1000 packets/s"
