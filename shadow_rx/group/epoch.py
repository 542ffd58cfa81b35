"""One incarnation of a group's communicator: its buffers and records, and what they say about its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from checkmate_common.recovery.reasons import GapReason
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.stream.layout import Layout
from jobspec.model import Flow, Group, Job
from placement.assembler import Assembler
from placement.plan import plan_slots
from shadow_rx.errors import Refusal, ShadowError
from shadow_rx.group.diagnosis import diagnose, disagreement, unknown_layout
from shadow_rx.options import ShadowOptions
from shadow_rx.status.group_status import Gap
from shadow_rx.trainer.changes import Timeline
from shadow_rx.trainer.description import OptimizerPlan, parse_optimizer
from shadow_rx.trainer.records import RecordBook

SHOWN_GAPS = 256
"""Most steps of one epoch that are explained at a time."""


_MOST_DOUBLINGS = 6
"""The distance between two states that did not help ends at 64 steps."""
_KEPT_RECORDS = 64
"""Steps before the window whose records are kept while a state is awaited: it is published with the ranks' records."""


class StateRequests:
    """Says from which step on the next uploaded state may be.

    A state costs the network a whole model. So a state after which not one step could be applied doubles the distance
    to the next one; a step that was applied sets it back to one. The shadow never stops asking.
    """

    def __init__(self) -> None:
        """Let any step do for the first state."""
        self._in_vain = 0
        self.earliest = 0
        """Earliest step of the next state."""

    def adopted(self, step: int) -> None:
        """Note that the state after `step` was taken."""
        self.earliest = step + (1 << min(self._in_vain, _MOST_DOUBLINGS))
        self._in_vain += 1

    def progressed(self) -> None:
        """Note that a step was applied."""
        self._in_vain = 0
        self.earliest = 0


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
    uploading: int | None = None
    """Step whose state is being uploaded."""
    peers: bool = False
    """Whether other shadow nodes are asked for what was lost."""
    peers_gave_up: int = 0
    """Newest step that they were asked for without success."""

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

    def change(self, message: pb.ChangeRequest, flows: Sequence[Flow], options: ShadowOptions) -> None:
        """Learn that layout or optimizer are others from a step on that is not settled yet.

        Raises:
            ShadowError: not usable, or late; or memory would not suffice.
        """
        change = self.timeline.parse(message, self.oldest)
        if change is None:
            return
        if change.layout != self.timeline.last.layout:
            need = plan_slots(change.layout, flows).nbytes * options.window
            options.check_memory("layout_json", need + self.assembler.plan.nbytes * options.window)
            try:
                self.assembler.change(change.step, change.layout)
            except MemoryError as error:
                raise ShadowError(Refusal.RESOURCE_EXHAUSTED, "layout_json", f"no memory for {need} bytes") from error
        self.book.change(change.step, change.optimizer)
        self.timeline.add(change)

    def slide(self, step: int) -> None:
        """While a state is awaited, collect from `step` on; older records are kept for a while, bytes are not.

        What follows a state that is on its way is kept: the upload may take longer than the steps of a window.
        """
        if self.uploading is not None:
            step = min(step, self.uploading + 1)
        self.assembler.skip_to(step)
        self.book.release(self.assembler.next_step - 2 - _KEPT_RECORDS)

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


def begin_epoch(
    job: Job, group: Group, flows: Sequence[Flow], message: pb.AttachRequest, layout: Layout, options: ShadowOptions
) -> Epoch:
    """Return the epoch that an attach request asks for, with the changes that it announces.

    Raises:
        ShadowError: the optimizer or a change is not usable, or memory would not suffice.
    """
    optimizer = parse_optimizer(message.optimizer, layout)
    # First without planning the frames, which takes time and memory in proportion to the gradient.
    options.check_memory("layout_json", layout.nbytes * options.window)
    bound = plan_slots(layout, flows).nbytes * options.window
    options.check_memory("layout_json", bound)
    try:
        assembler = Assembler(
            layout=layout, flows=flows, job=job.id, group=group.id, epoch=message.epoch,
            first_step=message.first_step, window=options.window,
        )  # fmt: skip
    except MemoryError as error:
        raise ShadowError(Refusal.RESOURCE_EXHAUSTED, "layout_json", f"no memory for {bound} bytes") from error
    book = RecordBook(optimizer, len(group.ring), message.first_step, options.pending_records, job.digests)
    epoch = Epoch(
        message.epoch, layout, optimizer, assembler, book,
        communicator=message.communicator, resyncs=message.uploads_on_demand,
    )  # fmt: skip
    for change in message.changes:
        epoch.change(change, flows, options)
    return epoch
