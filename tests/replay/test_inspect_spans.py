"""Spans against a plain set of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from replay.inspect_spans import MAX_SPANS, Spans

PIECES = st.lists(st.tuples(st.integers(-50, 50), st.integers(-1, 12)), max_size=40)


@given(PIECES)
def test_spans_are_what_a_set_says(pieces: list[tuple[int, int]]) -> None:
    spans, seen, repeated = Spans(), set[int](), 0
    for start, size in pieces:
        spans.add(start, start + size)
        new = set(range(start, start + size))
        repeated += len(new & seen)
        seen |= new
    assert spans.repeated == repeated
    if not seen:
        assert (spans.first, spans.stop, spans.missing, spans.gaps()) == (None, None, 0, [])
        return
    missing = set(range(min(seen), max(seen))) - seen
    assert (spans.first, spans.stop, spans.missing) == (min(seen), max(seen) + 1, len(missing))
    gaps = spans.gaps()
    assert {number for start, stop in gaps for number in range(start, stop)} == missing
    assert all(stop < start for (_, stop), (start, _) in pairwise(gaps))


def test_endless_gaps_take_no_endless_memory() -> None:
    spans = Spans()
    for number in range(3 * MAX_SPANS):
        spans.add(10 * number, 10 * number + 9)
    assert len(spans.gaps()) == MAX_SPANS - 1
    assert spans.missing == 3 * MAX_SPANS - 1
    assert spans.first == 0
