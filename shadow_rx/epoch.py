"""One incarnation of a group's communicator: its buffers and records, and what they say about its steps."""

from __future__ import annotations

from dataclasses import dataclass

from jobspec.layout import Layout
from jobspec.reasons import GapReason
from shadow_rx.assembler import Assembler
from shadow_rx.description import OptimizerPlan
from shadow_rx.diagnosis import diagnose, disagreement, unknown_layout
from shadow_rx.records import RecordBook
from shadow_rx.status import Gap

SHOWN_GAPS = 256
"""Most steps of one epoch that are explained at a time."""


@dataclass
class Epoch:
    """Everything that begins and ends with one incarnation; steps of two epochs never share anything."""

    number: int
    """The epoch, from 1."""
    layout: Layout
    """Layout that the trainer announced."""
    optimizer: OptimizerPlan
    """Optimizer that the trainer announced."""
    assembler: Assembler
    """Bytes of the steps that are being collected."""
    book: RecordBook
    """Records of the steps that are not applied."""
    lost: Gap | None = None
    """The step that can never be applied, None while there is none."""

    @property
    def ready(self) -> bool:
        """Whether all bytes and all records of the oldest step are there."""
        step = self.assembler.next_step
        return self.assembler.slot(step).complete and not self.book.missing(step)

    def verdict(self) -> Gap | None:
        """Return why the oldest step can never be applied, None while it still can."""
        step = self.assembler.next_step
        if not self.book.missing(step):
            unusable = disagreement(self.book, step) or unknown_layout(self.assembler, self.book, step)
            if unusable is not None:
                return unusable
        elif self.book.refused_step is not None and self.book.refused_step <= step:
            return diagnose(self.assembler, self.book, step)
        return self._blocked(step)

    def _blocked(self, step: int) -> Gap | None:
        """Return the gap of the oldest step when its holes can no longer be filled.

        A rank enters step t + 1 only when its bytes of step t were acknowledged, so that once bytes of step
        t + window are seen no copy of a byte of step t is on its way any more; and bytes that were dropped
        do not come again.
        """
        assembler = self.assembler
        if assembler.overrun is None or assembler.slot(step).complete:
            return None
        oldest, newest = assembler.overrun
        if oldest <= step or newest >= step + assembler.window:
            return diagnose(assembler, self.book, step)
        return None

    def explain(self, step: int) -> Gap:
        """Return why `step`, from the oldest that is not applied on, is no recovery point."""
        if self.lost is not None:
            if step == self.lost.step:
                return self.lost
            detail = f"step {self.lost.step} was lost ({self.lost.reason}); a new epoch has to attach"
            return Gap(step, GapReason.RESYNC_PENDING, detail)
        gap = diagnose(self.assembler, self.book, step)
        if gap is not None:
            return gap
        base = self.assembler.next_step
        blocking = diagnose(self.assembler, self.book, base) if step > base else None
        if blocking is not None:
            return Gap(step, blocking.reason, f"waits for step {base}: {blocking.detail}")
        detail = f"waits for the state before step {self.assembler.first_step} to be uploaded"
        return Gap(step, GapReason.RESYNC_PENDING, detail)

    def pending_bytes(self) -> dict[int, int]:
        """Return how many bytes of each step in the window were placed; steps without any are left out."""
        first = self.assembler.next_step
        steps = range(first, first + self.assembler.window)
        return {step: count for step in steps if (count := self.assembler.slot(step).received_bytes)}

    def explain_until(self, last: int) -> list[Gap]:
        """Explain the steps that are not applied, up to `last`; of very many the first and the newest."""
        first = self.assembler.next_step
        if last < first:
            return []
        steps = [first, *range(max(first + 1, last - SHOWN_GAPS + 2), last + 1)]
        return [self.explain(step) for step in steps]

    def unfinished(self, trained: int) -> list[Gap]:
        """Return the gaps that the epoch leaves when it ends; `trained` is the newest announced step."""
        last = max(trained, self.assembler.newest_touched)
        if self.assembler.overrun is not None:
            # Of the steps beyond the window only one can be unannounced; a damaged position may name any.
            last = max(last, min(trained + 1, self.assembler.overrun[1]))
        gaps: list[Gap] = []
        for gap in self.explain_until(last):
            if gap.reason is GapReason.LOST_BYTES and gap is not self.lost and self.book.missing(gap.step):
                # Not all ranks finished the step: its bytes were cut off, not lost.
                detail = f"epoch {self.number} ended before the step did: {gap.detail}"
                gap = Gap(gap.step, GapReason.FLOW_RESET, detail, gap.missing)
            gaps.append(gap)
        return gaps
