"""The three step numbers of a run over time, in slots of a round width. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from topology.report.findings import is_gap, merged_ranges
from topology.report.svg import Point
from topology.results import Iteration

_SLOTS = 200
"""Approximate number of slots."""


@dataclass(frozen=True)
class Timeline:
    """The newest trained, replica and durable step at the end of every slot."""

    unit: str
    """``ms`` or ``s``."""
    width: float
    """Width of a slot in units: 1, 2 or 5 times a power of ten."""
    slots: int
    """Number of slots."""
    curves: Mapping[str, tuple[Point, ...]]
    """``trained``, ``replica`` and ``durable``: (slot, step)."""
    missing: tuple[tuple[int, int], ...]
    """(first, last) slots in which a trained step was lost and no newer one was a recovery point yet."""
    notes: Mapping[int, str]
    """Slot -> text with the steps lost in it and the reasons."""
    lost: Mapping[int, str]
    """Lost step -> reason."""


def timeline(iterations: Sequence[Iteration]) -> Timeline:
    """Return the three steps of `iterations`, a row for each step, over the time from the start to the last event."""
    trained = [(i.trained_at, i.step) for i in iterations]
    replica = [(i.published_at, i.step) for i in iterations if i.published_at is not None and i.applied]
    durable = [(i.durable_at, i.step) for i in iterations if i.durable_at is not None and i.applied]
    end = max(when for when, _ in (*trained, *replica, *durable))
    end = end if math.isfinite(end) and end > 0 else 1e-3
    unit, per_second = ("ms", 1e3) if end < 10 else ("s", 1.0)
    width = _round_up(end * per_second / _SLOTS)
    slots = math.ceil(end * per_second / width - 1e-9) + 1
    seconds = width / per_second

    def slot(when: float) -> int:
        return min(slots - 1, max(0, math.ceil(when / seconds - 1e-9)))

    lost = {i.step: i.reason or "no reason given" for i in iterations if is_gap(i)}
    notes: dict[int, list[str]] = {}
    spans: list[tuple[int, int]] = []
    for row in (i for i in iterations if is_gap(i)):
        begin = slot(row.trained_at)
        notes.setdefault(begin, []).append(f"step {row.step} lost: {lost[row.step]}")
        over = min((when for when, step in replica if step > row.step), default=end)
        spans.append((begin, max(begin, slot(over))))
    before = min((i.step for i in iterations), default=1) - 1
    curves = {
        name: _newest(times, [(index + 1e-6) * seconds for index in range(slots)], before)
        for name, times in (("trained", trained), ("replica", replica), ("durable", durable))
    }
    texts = {index: "; ".join(found) for index, found in notes.items()}
    return Timeline(unit, width, slots, curves, merged_ranges(spans), texts, lost)


def _newest(times: Iterable[tuple[float, int]], moments: Sequence[float], before: int) -> tuple[Point, ...]:
    """Return the newest step by each of `moments`, `before` if there is none yet."""
    ordered = sorted(times)
    known = [when for when, _ in ordered]
    newest = [before, *accumulate((step for _, step in ordered), max)]
    return tuple((index, float(newest[bisect_right(known, when)])) for index, when in enumerate(moments))


def _round_up(value: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is not below `value`."""
    power = 10.0 ** math.floor(math.log10(value))
    # Computed from whole numbers, so that 0.3 is not 0.30000000000000004 and steps over 0.5.
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-12))
