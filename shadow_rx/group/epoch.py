"""One incarnation of a group's communicator: its buffers and records, and what they say about its steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobspec.layout import Layout
from jobspec.reasons import GapReason
from placement.assembler import Assembler
from shadow_rx.group.diagnosis import diagnose, disagreement, unknown_layout
from shadow_rx.group.resync import KEPT_RECORDS, StateRequests
from shadow_rx.status.group_status import Gap
from shadow_rx.trainer.changes import Timeline
from shadow_rx.trainer.description import OptimizerPlan
from shadow_rx.trainer.records import RecordBook

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
    communicator: str = ""
    """What the trainer calls this incarnation, empty where it gives it no name."""
    resyncs: bool = False
    """Whether the trainer uploads its state when it is asked."""
    requests: StateRequests = field(default_factory=StateRequests)
    """When it is asked next."""
    uploaded: int | None = None
    """Step whose state was uploaded and which waits for the records of its ranks."""
    coming: int | None = None
    """Step whose state is being uploaded."""
    peers: bool = False
    """Whether other shadow nodes are asked for what was lost."""
    peers_gave_up: int = 0
    """Newest step that they were asked for in vain."""

    def __post_init__(self) -> None:
        """Begin the timeline of layout and optimizer with what the trainer attached with."""
        self.timeline = Timeline(self.assembler.first_step - 1, self.layout, self.optimizer)

    @property
    def ready(self) -> bool:
        """Whether all bytes and all records of the oldest step are there."""
        return self._is_ready(self.assembler.next_step)

    def _is_ready(self, step: int) -> bool:
        return self.assembler.slot(step).complete and not self.book.missing(step)

    @property
    def oldest(self) -> int:
        """Oldest step that is neither applied nor given up for good."""
        return self.assembler.next_step if self.lost is None else self.lost.step

    @property
    def awaits_peers(self) -> bool:
        """Whether another shadow node may still fill the holes of the oldest step."""
        step = self.assembler.next_step
        return self.peers and step > self.peers_gave_up and not self.assembler.slot(step).complete

    @property
    def overtaken(self) -> bool:
        """Whether a newer step has all bytes, or all records, that the oldest one lacks: they are late by a whole step.

        Bytes of one flow take one way, and records of one rank too, so that they are rather lost than late. The step
        may still be completed (by a redundant copy, a late record) until the state of a later one is there.
        """
        if self.awaits_peers:
            return False
        first = self.assembler.next_step
        newer = range(first + 1, first + self.assembler.window)
        if not self.assembler.slot(first).complete:
            return any(self.assembler.slot(step).complete for step in newer)
        return bool(self.book.missing(first)) and any(self._is_ready(step) for step in newer)

    def slide(self, step: int) -> None:
        """While a state is awaited, collect from `step` on; older records are kept for a while, bytes are not.

        What follows a state that is on its way is kept: the upload may take longer than the steps of a window.
        """
        if self.coming is not None:
            step = min(step, self.coming + 1)
        self.assembler.skip_to(step)
        self.book.release(self.assembler.next_step - 2 - KEPT_RECORDS)

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

        A rank enters step t + 1 only when its bytes of step t, redundant hops included, were acknowledged, so that
        once bytes of step t + window are seen no copy of a byte of step t is on its way any more; and bytes that
        were dropped do not come again.
        """
        assembler = self.assembler
        if assembler.overrun is None or assembler.slot(step).complete or self.awaits_peers:
            return None
        oldest, newest = assembler.overrun
        if oldest <= step or newest >= step + assembler.window:
            return diagnose(assembler, self.book, step)
        return None

    def explain(self, step: int) -> Gap:
        """Return why `step` is no recovery point: one from the oldest on that is not applied, or the uploaded one."""
        if step == self.uploaded:
            absent, unlisted = self.book.missing(step), self.book.unlisted(step)
            if absent or not unlisted:
                detail = f"its state was uploaded, but there is no record of rank {', '.join(map(str, absent))}"
                return Gap(step, GapReason.SIDE_CHANNEL_MISSING, detail)
            detail = f"its state was uploaded, but rank {', '.join(map(str, unlisted))} must list its state objects"
            return Gap(step, GapReason.UNDECLARED_STATE, detail)
        if self.lost is not None:
            if step == self.lost.step:
                return self.lost
            wanted = "the trainer has to upload its state" if self.resyncs else "a new epoch has to attach"
            detail = f"step {self.lost.step} was lost ({self.lost.reason}); {wanted}"
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
        first = self.oldest
        steps = [first, *range(max(first + 1, last - SHOWN_GAPS + 2), last + 1)] if last >= first else []
        if self.uploaded is not None and self.uploaded < first:
            steps.insert(0, self.uploaded)
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
