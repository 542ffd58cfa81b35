"""When training steps were announced: from the times that a core is driven with. Pure."""

from __future__ import annotations

from collections import OrderedDict

_KEPT = 4096
"""Steps whose times are remembered, the newest ones."""
_WINDOW = 32
"""Steps that the mean time of a step is of: a slow node hears of several steps in one moment, and then of none."""


class StepTimes:
    """Times at which the steps of one group were first heard of."""

    def __init__(self) -> None:
        """Start without any step."""
        self.now = 0.0
        """Newest time that was told."""
        self._newest = 0
        self._first: int | None = None
        self._announced: OrderedDict[int, float] = OrderedDict()

    def begin(self, step: int) -> None:
        """Begin after `step`: later ones will be announced (again)."""
        for known in [known for known in self._announced if known > step]:
            del self._announced[known]
        self._newest = step
        self._first = None  # what passes between two epochs is no step's duration

    def tell(self, now: float | None) -> float:
        """Note the time `now`, and return the newest one that was told."""
        self.now = max(self.now, now) if now is not None else self.now
        return self.now

    def announced(self, step: int, now: float) -> None:
        """Note that a rank told of `step`; of those before it that nobody told of, too."""
        if step <= self._newest:
            return
        for known in range(max(self._newest + 1, step - _KEPT + 1), step + 1):
            self._announced[known] = now
        while len(self._announced) > _KEPT:
            self._announced.popitem(last=False)
        self._newest = step
        self._first = step if self._first is None else self._first

    def since(self, step: int) -> float | None:
        """Return when `step` was announced, or of a forgotten one when the oldest remembered was; None: never."""
        if step > self._newest or not self._announced:
            return None
        return self._announced.get(step, next(iter(self._announced.values())))

    @property
    def step_seconds(self) -> float:
        """Mean time from one step of this epoch to the next, 0 where it is not known."""
        if self._first is None or self._first == self._newest:
            return 0.0
        oldest = max(self._first, self._newest - _WINDOW)
        return (self._announced[self._newest] - self._announced[oldest]) / (self._newest - oldest)
