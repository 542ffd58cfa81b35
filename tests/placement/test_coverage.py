from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.coverage import Coverage

ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def _build(added: list[tuple[int, int]]) -> tuple[Coverage, set[int]]:
    coverage, model = Coverage(), set[int]()
    for start, end in added:
        coverage.add(start, end)
        model |= set(range(start, end))
    return coverage, model


@settings(deadline=None)
@given(ranges, st.integers(0, 40), st.integers(0, 40))
def test_equals_a_set_of_integers(added: list[tuple[int, int]], start: int, end: int) -> None:
    coverage, model = _build(added)
    assert len(coverage) == len(model)
    assert {n for n in range(45) if n in coverage} == model
    assert coverage.last() == max(model, default=None)
    assert {n for low, high in coverage.spans() for n in range(low, high)} == model
    holes = coverage.missing(start, end)
    assert {n for low, high in holes for n in range(low, high)} == set(range(start, end)) - model
    assert all(low < high for low, high in holes)
    assert all(a[1] < b[0] for a, b in pairwise(holes)), "holes are maximal"
    assert coverage.is_exactly(3, 30) == (model == set(range(3, 30)))


@settings(deadline=None)
@given(ranges, st.integers(0, 40))
def test_removing_the_upper_part(added: list[tuple[int, int]], start: int) -> None:
    coverage, model = _build(added)
    coverage.remove_from(start)
    assert {n for n in range(45) if n in coverage} == {n for n in model if n < start}
    coverage.add(50, 51)
    assert coverage.last() == 50
    assert len(coverage) == len({n for n in model if n < start}) + 1


@settings(deadline=None)
@given(ranges, st.integers(0, 40), st.integers(0, 40))
def test_removing_a_range(added: list[tuple[int, int]], start: int, end: int) -> None:
    coverage, model = _build(added)
    coverage.remove(start, end)
    model -= set(range(start, end))
    assert {n for n in range(45) if n in coverage} == model
    assert len(coverage) == len(model)
    holes = coverage.missing(0, 45)
    assert {n for low, high in holes for n in range(low, high)} == set(range(45)) - model


@settings(deadline=None)
@given(ranges, ranges)
def test_filling_tells_what_was_new(added: list[tuple[int, int]], filled: list[tuple[int, int]]) -> None:
    coverage, model = _build(added)
    for start, end in filled:
        if start < end:
            new = coverage.fill(start, end)
            assert {n for low, high in new for n in range(low, high)} == set(range(start, end)) - model
            model |= set(range(start, end))
    assert {n for n in range(45) if n in coverage} == model
    assert len(coverage) == len(model)


def test_in_order_ranges_stay_one_interval() -> None:
    coverage = Coverage()
    for start in range(0, 1000, 10):
        coverage.add(start, start + 10)
    assert coverage.is_exactly(0, 1000)
    coverage.clear()
    assert coverage.missing(5, 7) == [(5, 7)]
