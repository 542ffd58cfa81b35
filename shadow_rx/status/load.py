"""How busy a shadow node is, and how many nodes would be enough. Pure arithmetic on durations.

Utilisation law (Denning and Buzen, "The Operational Analysis of Queueing Network Models", ACM Computing Surveys 10(3),
1978): utilisation = work per step / time between steps. A stage whose utilisation is above 1 falls further and
further behind; n nodes that share the work evenly have 1/n of it each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shadow_rx.status.histogram import Distribution, Histogram

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


class LoadMeter:
    """Measures how busy a shadow node is with one group; durations are passed in."""

    def __init__(self, base_every: int) -> None:
        """Measure for a job that wants a base snapshot every `base_every` steps (1: each step is one)."""
        self._base_every = base_every
        self._busy = 0.0
        self._apply = Mean()
        self._write_seconds, self._write_bytes = Mean(), Mean()
        self._wanted_bytes = 0.0
        self._applied, self._written = Histogram(), Histogram()
        self.overloaded = False
        """Whether it was overloaded when last checked."""

    def worked(self, seconds: float) -> None:
        """Add time that the node worked on the group."""
        self._busy += seconds

    def replicated(self, gradient_bytes: int, state_bytes: int) -> None:
        """Note that a step became a recovery point, with all the work since the one before."""
        self._apply.add(self._busy)
        self._applied.add(self._busy)
        self._busy = 0.0
        # What the store gets of a step: a gradient, and now and then the state.
        logged = gradient_bytes if self._base_every > 1 else 0
        self._wanted_bytes = logged + state_bytes / max(1, self._base_every)

    def wrote(self, nbytes: int, seconds: float) -> None:
        """Note a write to storage; one without bytes only prepared a later one."""
        self._write_seconds.add(seconds)
        self._write_bytes.add(nbytes)
        self._written.add(seconds)

    def load(self, step_seconds: float) -> Load:
        """Return work and time of one step, of which one comes every `step_seconds` seconds."""
        rate = self._write_bytes.value
        store = self._wanted_bytes * self._write_seconds.value / rate if rate > 0 else 0.0
        return Load(step_seconds, self._apply.value, store)

    @property
    def apply_seconds(self) -> Distribution:
        """How long the node worked on each step."""
        return self._applied.read()

    @property
    def store_seconds(self) -> Distribution:
        """How long each write took."""
        return self._written.read()
