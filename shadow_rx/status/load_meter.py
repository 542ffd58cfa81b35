"""Measures how busy a shadow node is with each of its groups, for its driver. Pure: durations are passed in."""

from __future__ import annotations

from shadow_rx.status.estimate import Load, Mean, StoreMeter, bytes_per_step
from shadow_rx.status.histogram import Distribution, Histogram


class LoadMeter:
    """Work of one group."""

    def __init__(self, base_every: int) -> None:
        """Measure for a job that wants a base snapshot every `base_every` steps."""
        self._base_every = base_every
        self._busy = 0.0
        self._apply = Mean()
        self._store = StoreMeter()
        self._applied = Histogram()
        self._written = Histogram()
        self._wanted = 0.0
        self.overloaded = False
        """Whether it was so when last looked at."""

    def worked(self, seconds: float) -> None:
        """Note that the node worked on the group."""
        self._busy += seconds

    def replicated(self, gradient_bytes: int, state_bytes: int) -> None:
        """Note that a step became a recovery point, with all the work since the one before."""
        self._apply.add(self._busy)
        self._applied.add(self._busy)
        self._busy = 0.0
        self._wanted = bytes_per_step(gradient_bytes, state_bytes, self._base_every)

    def wrote(self, nbytes: int, seconds: float) -> None:
        """Note a write to storage."""
        self._store.wrote(nbytes, seconds)
        self._written.add(seconds)

    def load(self, step_seconds: float) -> Load:
        """Return work and time of one step, of which one comes every `step_seconds` seconds."""
        return Load(step_seconds, self._apply.value, self._store.seconds_for(self._wanted))

    @property
    def apply_seconds(self) -> Distribution:
        """How long the node worked on each step."""
        return self._applied.read()

    @property
    def store_seconds(self) -> Distribution:
        """How long each write took."""
        return self._written.read()
