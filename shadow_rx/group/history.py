"""A group's past: which steps are recovery points, which are on storage, and which were lost and why.

The current history is a single line: when an epoch begins at step f, steps from f on of earlier epochs are
no longer part of it (they will be trained again).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import TypeVar

from checkmate_common.recovery.reasons import GapReason
from placement.coverage import Coverage
from shadow_rx.status.group_status import Gap, StepReport

T = TypeVar("T")
_KEPT = 4096
"""Steps for which gaps and reports are remembered; the oldest are forgotten first."""


class History:
    """Steps of one group over all its epochs."""

    def __init__(self) -> None:
        """Start without any step."""
        self._replicated = Coverage()
        self._stored: dict[int, int] = {}
        self._durable = 0
        self._unstored: OrderedDict[int, Gap] = OrderedDict()
        self._lost: OrderedDict[int, tuple[int, Gap]] = OrderedDict()
        self._reports: OrderedDict[int, StepReport] = OrderedDict()
        self._epochs: list[tuple[int, int]] = []
        self.lost_total: Counter[GapReason] = Counter()
        """Steps that were noted as lost, by reason."""
        self.unstored_total: Counter[GapReason] = Counter()
        """Recovery points that were noted as not written, by reason."""
        self.stored_total = 0
        """Recovery points that were noted as stored."""

    def begin(self, epoch: int, first_step: int) -> None:
        """Begin an epoch: what earlier ones reached from `first_step` on leaves the history."""
        self._replicated.remove_from(first_step)
        for table in (self._stored, self._unstored, self._reports):
            for step in [step for step in table if step >= first_step]:
                del table[step]
        self._durable = max(self._stored, default=0)
        self._epochs = [(old, first) for old, first in self._epochs if first < first_step]
        self._epochs.append((epoch, first_step))

    @property
    def epoch(self) -> int:
        """Newest epoch, 0 before the first."""
        return self._epochs[-1][0] if self._epochs else 0

    def resume(self, epoch: int, step: int) -> None:
        """Note a recovery point that was found on storage; to be called in order of epochs and steps."""
        if epoch != self.epoch:
            self.begin(epoch, step)
        self._replicated.add(step, step + 1)
        self._stored[step] = epoch
        self._durable = max(self._durable, step)

    def adopt(self, report: StepReport) -> None:
        """Note a recovery point that another shadow node gave; to be called after `resume`, with a newer one."""
        if report.epoch != self.epoch:
            self.begin(report.epoch, report.step)
        self.replicated(report)

    def resume_loss(self, epoch: int, gap: Gap) -> None:
        """Note a step that was lost before; to be called after `resume`, in order of events."""
        if gap.step not in self._replicated and self._lost.get(gap.step, (0, gap))[0] != epoch:
            _remember(self._lost, gap.step, (epoch, gap))

    def rejoin(self, epoch: int, first_step: int) -> None:
        """Learn the first step of the newest epoch, of which only stored steps are known."""
        if epoch != self.epoch:
            self.begin(epoch, first_step)
            return
        # Where the first steps of this epoch are not stored, those of an epoch before it were taken for present ones.
        for step in [step for step, of in self._stored.items() if step >= first_step and of != epoch]:
            self._replicated.remove(step, step + 1)
            del self._stored[step]
        self._durable = max(self._stored, default=0)
        self._epochs[-1] = epoch, first_step
        self._epochs = [known for known in self._epochs[:-1] if known[1] < first_step] + self._epochs[-1:]

    def _epoch_of(self, step: int) -> int | None:
        """Return the epoch that `step` of the current history belongs to."""
        return next((epoch for epoch, first in reversed(self._epochs) if first <= step), None)

    def replicated(self, report: StepReport) -> None:
        """Note that a step became a recovery point, not yet on storage."""
        step = report.step
        self._replicated.add(step, step + 1)
        self._lost.pop(step, None)
        _remember(self._reports, step, report)
        _remember(self._unstored, step, Gap(step, GapReason.OVERLOAD, "is not written to storage yet"))

    def lost(self, gap: Gap) -> bool:
        """Note that a step cannot become a recovery point (unless a later epoch trains it again).

        The first reason of an epoch stays, and so does a recovery point: tells whether the loss is news.
        """
        epoch = self.epoch
        known = self._lost.get(gap.step)
        if self.is_replicated(gap.step) or (known is not None and known[0] == epoch):
            return False
        _remember(self._lost, gap.step, (epoch, gap))
        self.lost_total[gap.reason] += 1
        return True

    def stored(self, epoch: int, step: int) -> None:
        """Note that a recovery point is on storage; one that left the history is ignored."""
        if self._epoch_of(step) == epoch and step in self._replicated:
            self.stored_total += self._stored.get(step) != epoch
            self._stored[step] = epoch
            self._durable = max(self._durable, step)
            self._unstored.pop(step, None)

    def not_stored(self, epoch: int, gap: Gap) -> None:
        """Note that a recovery point could not be written."""
        if self._epoch_of(gap.step) == epoch and gap.step in self._unstored:
            self._unstored[gap.step] = gap
            self.unstored_total[gap.reason] += 1

    def removed(self, epoch: int, step: int) -> None:
        """Note that a recovery point was deleted from storage, as newer ones are there."""
        if self._stored.get(step) == epoch:
            del self._stored[step]
            if step == self._durable:  # the oldest go first: it was the only one
                self._durable = max(self._stored, default=0)

    def is_replicated(self, step: int) -> bool:
        """Tell whether `step` is a recovery point of the current history."""
        return step in self._replicated

    @property
    def replica_step(self) -> int:
        """Newest recovery point, 0 without."""
        return self._replicated.last() or 0

    @property
    def durable_step(self) -> int:
        """Newest recovery point on storage, 0 without."""
        return self._durable

    def stored_epoch(self, step: int) -> int | None:
        """Return the epoch under which `step` is on storage, None when it is not."""
        return self._stored.get(step)

    def storage_gap(self, step: int) -> Gap | None:
        """Return why a recovery point is not on storage; None when it is, or was."""
        return self._unstored.get(step)

    def loss(self, step: int) -> Gap | None:
        """Return why `step` was lost, None when it was not."""
        known = self._lost.get(step)
        return known[1] if known else None

    def losses(self) -> Iterator[Gap]:
        """Yield all lost steps that are remembered."""
        yield from (gap for _, gap in self._lost.values())

    def storage_gaps(self) -> Iterator[Gap]:
        """Yield the recovery points that are newer than the newest one on storage, with the reason."""
        durable = self.durable_step
        yield from (gap for step, gap in self._unstored.items() if step > durable)

    def oldest_unstored(self) -> tuple[StepReport, int] | None:
        """Return the oldest remembered recovery point that is newer than the newest on storage, and how many are."""
        durable = self.durable_step
        newer = [step for step in self._reports if step > durable and step in self._replicated]
        return (self._reports[min(newer)], len(newer)) if newer else None

    def reports(self) -> list[StepReport]:
        """Return the reports of the steps that are remembered, oldest first."""
        return [self._reports[step] for step in sorted(self._reports)]


def _remember(table: OrderedDict[int, T], step: int, value: T) -> None:
    table[step] = value
    table.move_to_end(step)
    while len(table) > _KEPT:
        table.popitem(last=False)
