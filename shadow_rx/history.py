"""A group's past: which steps are recovery points, which are on storage, and which were lost and why.

The present history is a single line: when an epoch begins at step f, steps from f on of earlier epochs are
no longer part of it (they will be trained again).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeVar

from jobspec.reasons import GapReason
from shadow_rx.coverage import Coverage
from shadow_rx.status import Gap, StepReport

T = TypeVar("T")
_KEPT = 4096
"""Steps for which gaps and reports are remembered; the oldest are forgotten first."""


class History:
    """Steps of one group over all its epochs."""

    def __init__(self) -> None:
        """Start without any step."""
        self._replicated = Coverage()
        self._stored: dict[int, int] = {}
        self._unstored: OrderedDict[int, Gap] = OrderedDict()
        self._lost: OrderedDict[int, Gap] = OrderedDict()
        self._reports: OrderedDict[int, StepReport] = OrderedDict()
        self._epochs: list[tuple[int, int]] = []

    def begin(self, epoch: int, first_step: int) -> None:
        """Begin an epoch: what earlier ones reached from `first_step` on leaves the history."""
        self._replicated.remove_from(first_step)
        for table in (self._stored, self._unstored, self._reports):
            for step in [step for step in table if step >= first_step]:
                del table[step]
        self._epochs = [(old, first) for old, first in self._epochs if first < first_step]
        self._epochs.append((epoch, first_step))

    def _epoch_of(self, step: int) -> int | None:
        """Return the epoch that `step` of the present history belongs to."""
        return next((epoch for epoch, first in reversed(self._epochs) if first <= step), None)

    def replicated(self, report: StepReport) -> None:
        """Note that a step became a recovery point, not yet on storage."""
        step = report.step
        self._replicated.add(step, step + 1)
        self._lost.pop(step, None)
        _remember(self._reports, step, report)
        _remember(self._unstored, step, Gap(step, GapReason.OVERLOAD, "is not written to storage yet"))

    def lost(self, gap: Gap) -> None:
        """Note that a step cannot become a recovery point (unless a later epoch trains it again)."""
        _remember(self._lost, gap.step, gap)

    def stored(self, epoch: int, step: int) -> None:
        """Note that a recovery point is on storage; one that left the history is ignored."""
        if self._epoch_of(step) == epoch and step in self._replicated:
            self._stored[step] = epoch
            self._unstored.pop(step, None)

    def not_stored(self, epoch: int, gap: Gap) -> None:
        """Note that a recovery point could not be written."""
        if self._epoch_of(gap.step) == epoch and gap.step in self._unstored:
            self._unstored[gap.step] = gap

    def removed(self, epoch: int, step: int) -> None:
        """Note that a recovery point was deleted from storage, as newer ones are there."""
        if self._stored.get(step) == epoch:
            del self._stored[step]

    def is_replicated(self, step: int) -> bool:
        """Tell whether `step` is a recovery point of the present history."""
        return step in self._replicated

    @property
    def replica_step(self) -> int:
        """Newest recovery point, 0 without."""
        return self._replicated.last() or 0

    @property
    def durable_step(self) -> int:
        """Newest recovery point on storage, 0 without."""
        return max(self._stored, default=0)

    def stored_epoch(self, step: int) -> int | None:
        """Return the epoch under which `step` is on storage, None when it is not."""
        return self._stored.get(step)

    def storage_gap(self, step: int) -> Gap | None:
        """Return why a recovery point is not on storage; None when it is, or was."""
        return self._unstored.get(step)

    def loss(self, step: int) -> Gap | None:
        """Return why `step` was lost, None when it was not."""
        return self._lost.get(step)

    def losses(self) -> Iterator[Gap]:
        """Yield all lost steps that are remembered."""
        yield from self._lost.values()

    def storage_gaps(self) -> Iterator[Gap]:
        """Yield the recovery points that are newer than the newest one on storage, with the reason."""
        durable = self.durable_step
        yield from (gap for step, gap in self._unstored.items() if step > durable)

    def reports(self) -> list[StepReport]:
        """Return the reports of the steps that are remembered, oldest first."""
        return [self._reports[step] for step in sorted(self._reports)]


def _remember(table: OrderedDict[int, T], step: int, value: T) -> None:
    table[step] = value
    table.move_to_end(step)
    while len(table) > _KEPT:
        table.popitem(last=False)
