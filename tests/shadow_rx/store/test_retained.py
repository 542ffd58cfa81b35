"""Retention: the same as counting everything anew, at a cost that does not grow with what is kept."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from jobspec.store import Retention
from shadow_rx.group.history import History
from shadow_rx.store import retained as retained_module
from shadow_rx.store.retained import Retained, StoredObject


def counted_anew(entries: list[StoredObject], retention: Retention) -> int:
    """Return how many of `entries`, from the oldest on, may be deleted: the definition, in quadratic time."""
    bases = [index for index, entry in enumerate(entries) if entry.base]
    wanted: list[int] = []
    if retention.bases is not None and bases:
        wanted.append(bases[max(0, len(bases) - retention.bases)])
    if retention.steps is not None and bases:
        enough = [i for i in bases if len({p for e in entries[i:] for p in e.points}) >= retention.steps]
        wanted.append(enough[-1] if enough else bases[0])
    return min(wanted, default=0)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_kept_follows_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    retention = Retention(steps=rng.choice([None, 1, 3, 10]), bases=rng.choice([None, 1, 2]))
    retained, entries, step = Retained(retention), list[StoredObject](), 0
    for number in range(120):
        # Logs of several steps, bases of a step that is logged or not, failed ones, points that come again.
        step += rng.choice((0, 1, 1, 1, 2))
        points = [("g", 1, s) for s in range(max(1, step - rng.choice((0, 0, 2))), step + 1)]
        base = rng.random() < 0.3
        held = tuple(points[-1:] if base else points) if rng.random() < 0.9 else ()
        entry = StoredObject(str(number), held, base and bool(held))
        retained.add(entry)
        entries.append(entry)
        expected = counted_anew(entries, retention)
        gone, lost = [], list[Any]()
        while (oldest := retained.expendable()) is not None:
            gone.append(oldest)
            lost += retained.forget()
        assert gone == entries[:expected]
        entries = entries[expected:]
        left = {point for each in entries for point in each.points}
        assert sorted(lost) == sorted({point for each in gone for point in each.points} - left)


def lines(action: Callable[[], None]) -> int:
    """Return how many lines of the module under test `action` executes, without what the garbage collector runs."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line" and frame.f_code.co_filename == retained_module.__file__
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def one_more(retained: Retained, step: int) -> None:
    retained.add(StoredObject(f"log-{step}", (("g", 1, step),), False))
    if step % 50 == 0:
        retained.add(StoredObject(f"step-{step}", (("g", 1, step),), True))
    while retained.expendable() is not None:
        retained.forget()


def test_a_step_costs_the_same_with_many_kept() -> None:
    costs = {}
    for kept in (100, 20_000):
        retained = Retained(Retention(steps=kept))
        for step in range(1, kept + 200):
            one_more(retained, step)
        costs[kept] = [lines(partial(one_more, retained, step)) for step in range(kept + 200, kept + 300)]
    assert sorted(costs[100]) == sorted(costs[20_000])


def test_the_newest_durable_step_is_known() -> None:
    def history(steps: int) -> History:
        found = History()
        for step in range(1, steps + 1):
            found.resume(1, step)
        return found

    small, large = history(10), history(10_000)
    assert (small.durable_step, large.durable_step) == (10, 10_000)
    assert lines(partial(getattr, small, "durable_step")) == lines(partial(getattr, large, "durable_step"))
    large.removed(1, 1)
    assert large.durable_step == 10_000
    large.removed(1, 10_000)
    assert large.durable_step == 9_999
    large.begin(2, 5_000)
    assert large.durable_step == 4_999
    large.resume(2, 5_001)
    assert large.durable_step == 5_001
    large.rejoin(2, 4_000)
    assert large.durable_step == 5_001
