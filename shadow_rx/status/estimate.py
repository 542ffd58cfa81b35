"""How busy a shadow node is, and how many nodes would be enough. Pure arithmetic on durations.

Utilisation law (Denning and Buzen, "The Operational Analysis of Queueing Network Models", ACM Computing Surveys 10(3),
1978): utilisation = work per step / time between steps. A stage whose utilisation is above 1 falls behind for ever;
n nodes that share the work evenly have 1/n of it each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TARGET_UTILISATION = 0.9
"""How busy a node may be at most: near 1, waits grow without bound already for small variations."""
_WEIGHT = 0.2
"""Weight of the newest value in a mean: about the last ten count."""


class Mean:
    """Exponentially weighted mean; the first values count more, so that it starts from them and not from zero."""

    def __init__(self) -> None:
        """Start without a value."""
        self._value = 0.0
        self._count = 0

    def add(self, value: float) -> None:
        """Take a value."""
        self._count += 1
        self._value += (value - self._value) * max(_WEIGHT, 1 / self._count)

    @property
    def value(self) -> float:
        """The mean, 0 without values."""
        return self._value


@dataclass(frozen=True)
class Load:
    """Work and time of one step, as means over the last ones; 0 where nothing is known."""

    step_seconds: float = 0.0
    """Seconds from one trained step to the next."""
    apply_seconds: float = 0.0
    """Seconds that the node works on a step: placing its replicas and applying it."""
    store_seconds: float = 0.0
    """Seconds that storage needs to write what the job wants written of one step."""

    @property
    def apply_utilisation(self) -> float:
        """Share of the time that the node works on replicas; above 1 it falls behind."""
        return self.apply_seconds / self.step_seconds if self.step_seconds > 0 else 0.0

    @property
    def store_utilisation(self) -> float:
        """Share of the time that storage writes; above 1 it falls behind."""
        return self.store_seconds / self.step_seconds if self.step_seconds > 0 else 0.0

    @property
    def utilisation(self) -> float:
        """That of the busier stage."""
        return max(self.apply_utilisation, self.store_utilisation)

    def overloaded(self, before: bool = False) -> bool:
        """Tell whether a stage falls behind; one that did `before` does until it has time to spare again."""
        return self.utilisation > (TARGET_UTILISATION if before else 1.0)

    @property
    def nodes_needed(self) -> int:
        """Nodes of this kind, each with such storage of its own, that would keep up; at least 1.

        That is where they share the group's parameters, or the groups, evenly.
        """
        # Rounded first: 1.8 / 0.9 must be 2, whatever the last bit of the quotient says.
        return max(1, math.ceil(round(self.utilisation / TARGET_UTILISATION, 6)))

    def describe(self) -> str:
        """Return the numbers as a sentence."""
        return (
            f"a step comes every {self.step_seconds:.3g} s, is worked on for {self.apply_seconds:.3g} s and written "
            f"for {self.store_seconds:.3g} s; {self.nodes_needed} nodes would be enough"
        )


class StoreMeter:
    """Measures storage: how long writing takes, by bytes."""

    def __init__(self) -> None:
        """Start without a write."""
        self._seconds = Mean()
        self._bytes = Mean()

    def wrote(self, count: int, seconds: float) -> None:
        """Note a write of `count` bytes; one without bytes only prepared a later one."""
        self._seconds.add(seconds)
        self._bytes.add(count)

    def seconds_for(self, count: float) -> float:
        """Return how long `count` bytes take at the measured rate, 0 where none is known."""
        return count * self._seconds.value / self._bytes.value if self._bytes.value > 0 else 0.0


def bytes_per_step(gradient: int, state: int, base_every: int) -> float:
    """Return what a job's store gets per step: a gradient, and every `base_every` steps the state (1: only that)."""
    return float(state) if base_every <= 1 else gradient + state / base_every
