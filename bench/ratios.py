"""Ratios of two measurements that are taken in turns, so that a machine whose speed drifts changes both alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """One figure of `make bench`."""

    ratio: float
    """Median over the rounds of measured / reference."""
    measured: float
    """Median of what is measured, in `unit`."""
    reference: float
    """Median of what it is compared with, in `unit`."""
    unit: str
    """Unit of both, such as "GB/s" or "s"."""
    spread: tuple[float, float]
    """Lowest and highest ratio of a round."""
    aim: float | None = None
    """The ratio that the project aims at, None where it states no aim."""
    most: bool = False
    """Whether the aim is the highest ratio that is good rather than the lowest."""

    @property
    def reached(self) -> bool:
        """Whether the aim is reached, True without one."""
        return self.aim is None or (self.ratio <= self.aim if self.most else self.ratio >= self.aim)


def in_turns(
    measured: Callable[[], float],
    reference: Callable[[], float],
    *,
    unit: str,
    rounds: int,
    aim: float | None = None,
    most: bool = False,
) -> Ratio:
    """Measure both `rounds` times in turns, after a warm-up of each that does not count.

    Args:
        measured: returns one measurement in `unit`.
        reference: the same of what it is compared with.
        unit: of both.
        rounds: at least 1.
        aim: see `Ratio`.
        most: see `Ratio`.
    """
    measured()
    reference()
    pairs = [(measured(), reference()) for _ in range(rounds)]
    ratios = [one / other for one, other in pairs]
    return Ratio(
        statistics.median(ratios),
        statistics.median(one for one, _ in pairs),
        statistics.median(other for _, other in pairs),
        unit,
        (min(ratios), max(ratios)),
        aim,
        most,
    )
