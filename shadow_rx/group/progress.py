"""How a group goes on: complete steps are applied and published, uploaded states joined, losses noted. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from checkmate_common.recovery.reasons import GapReason
from jobspec.model import Flow
from shadow_rx.apply.state import AppliedState
from shadow_rx.apply.upload import PreparedState
from shadow_rx.errors import wrong_state
from shadow_rx.group.diagnosis import diagnose, disagreement, unknown_layout
from shadow_rx.group.epoch import Epoch
from shadow_rx.group.ledger import Ledger
from shadow_rx.publish.snapshot import Snapshot, confirmed_parts
from shadow_rx.status.events import StateUploaded, StepResynced
from shadow_rx.status.group_status import Gap, StepReport
from shadow_rx.trainer.declared import StateCheck
from shadow_rx.trainer.rank_step import RankStep

EXPLAINED = 4096
"""Most steps that one loss is reported for, the newest ones."""


class Progress:
    """The current epoch of a group, and where it is between collecting, applying and publishing."""

    def __init__(self, job: str, group: str, flows: Sequence[Flow], check: StateCheck, ledger: Ledger) -> None:
        """Follow `group` of `job`, whose replicas arrive on `flows`.

        Args:
            job: name of the job.
            group: name of the group.
            flows: those of its flows that this node is sent.
            check: decides whether a step's objects are all accounted for.
            ledger: takes what becomes of the steps.
        """
        self._job, self._group, self._flows = job, group, flows
        self._check = check
        self._ledger = ledger
        self.epoch: Epoch | None = None
        """The current epoch, None before the first attach."""
        self.state = AppliedState()
        """The state that the newest applied step has led to."""
        self.trained = 0
        """Newest step that the ranks announced."""

    def present(self, epoch: int) -> Epoch:
        """Return the current epoch.

        Raises:
            ShadowError: it is another one than `epoch`.
        """
        if self.epoch is None:
            raise wrong_state("epoch", f"group {self._group!r} has not attached yet")
        if epoch != self.epoch.number:
            raise wrong_state("epoch", f"{epoch} is not the current epoch {self.epoch.number}")
        return self.epoch

    def begin(self, epoch: Epoch, *, keep_state: bool) -> None:
        """Replace the current epoch by `epoch`; note the steps that it leaves incomplete."""
        if self.epoch is not None:
            self._ledger.lost(self.epoch.number, self.epoch.unfinished(self.trained))
        self.epoch = epoch
        if not keep_state:
            self.state.clear()

    # ---- questions ----

    def explain(self, step: int) -> Gap | None:
        """Return why `step` is no recovery point on storage; None when it is, or was until newer came."""
        history, current = self._ledger.history, self.epoch
        if history.is_replicated(step):
            return history.storage_gap(step)
        if current is not None and (step >= current.oldest or step == current.uploaded):
            if step <= max(self.trained, current.assembler.newest_seen):
                return current.explain(step)
            unannounced = Gap(step, GapReason.SIDE_CHANNEL_MISSING, "has not been announced by any rank")
            return history.loss(step) or unannounced
        loss = history.loss(step)
        return loss or Gap(step, GapReason.RESYNC_PENDING, "lies before the steps that this shadow was told of")

    def settled(self, step: int) -> bool:
        """Tell whether `step` is a recovery point, or can never be one in the current epoch."""
        if self._ledger.history.is_replicated(step):
            return True
        current = self.epoch
        if current is None or step == current.uploaded:
            return False
        if current.lost is not None:
            # A state of a step that lies before the bytes that are collected would be of no use any more.
            return not current.resyncs or step < max(current.lost.step, current.assembler.next_step - 1)
        return step < current.assembler.next_step

    @property
    def state_from(self) -> int | None:
        """The trainer is asked for its state after a step from this one on; None while none is needed."""
        current = self.epoch
        if current is None or not current.resyncs or self.unknown_flows():
            return None
        if current.lost is None:
            if not self.state.usable or not current.overtaken:
                return None
        elif current.lost.reason is GapReason.UNKNOWN_LAYOUT:
            return None  # the next step's bytes could not be placed either
        return max(current.oldest, current.assembler.next_step - 1, current.requests.earliest)

    def unknown_flows(self) -> list[Flow]:
        """Return the flows whose connection in the current epoch was not announced."""
        current = self.epoch
        return [flow for flow in self._flows if current is not None and current.assembler.port_of(flow.id) is None]

    # ---- steps ----

    def advance(self, now: float | None) -> None:
        """Apply every step that is ready, in order; notice when the oldest one can no longer become so."""
        current = self.epoch
        if current is not None and current.uploaded is not None:
            self._join(current, current.uploaded, now)
        while current is not None and current.lost is None:
            gap = current.verdict()
            if gap is None:
                if not current.ready or not self.state.usable:
                    return
                gap = self._apply(current, now)
            if gap is not None:
                self._lose(current, gap)

    def _apply(self, current: Epoch, now: float | None) -> Gap | None:
        """Apply one complete step and publish it, or leave the state of the step before and say why."""
        step = current.assembler.next_step
        slot = current.assembler.slot(step)
        records = current.book.get(step)
        unknown = self._check.before(step, current.book.listed(step), current.timeline.at(step).optimizer)
        if unknown is not None:
            return unknown
        problem = self.state.apply(slot, step, records, current.timeline)
        if problem is not None:
            return Gap(step, GapReason.DIGEST_MISMATCH, problem)
        applied_at = now if now is not None else slot.complete_at or 0.0
        report = StepReport(
            current.number, step, slot.received_bytes, slot.first_byte_at, slot.complete_at, applied_at,
            repaired_bytes=slot.repaired_bytes, peer_bytes=slot.peer_bytes,
        )  # fmt: skip
        self._publish(current, records, report, slot.gradient())
        current.assembler.release()
        current.requests.progressed()
        return None

    def _publish(self, current: Epoch, records: Sequence[RankStep], report: StepReport, gradient: bytes | None) -> None:
        """Make the current state, which is that after the report's step, a recovery point.

        Not where an object of the trainer's state is not accounted for; the shadow goes on from the state all the same.
        """
        in_force, state = current.timeline.at(report.step), self.state
        listed = current.book.listed(report.step)
        gap = self._check.after(report.step, listed, in_force.layout, state.tensors, state.constants)
        if gap is not None:
            self._ledger.lost(current.number, [gap])
        else:
            snapshot = Snapshot(
                self._job, self._group, current.number, report.step, in_force.layout, in_force.optimizer,
                tuple(records), state.tensors, gradient, state.constants, confirmed_parts(records),
            )  # fmt: skip
            self._ledger.published(snapshot, report)
        current.book.release(report.step)

    def _lose(self, current: Epoch, gap: Gap) -> None:
        current.lost = gap
        if not current.resyncs:
            current.book.drop()
        self._ledger.lost(current.number, [gap])

    # ---- uploaded states ----

    def take_state(self, state: PreparedState, now: float | None, *, final: bool) -> bool:
        """Go on from a state of the current epoch where that is of use; tell whether it is.

        Args:
            state: the state.
            now: the time.
            final: no step will be trained after it: of use even where it was not asked for.

        Raises:
            ShadowError: the first step is applied already, and the state is the one before it.
        """
        plan, current = state.plan, self.present(state.plan.epoch)
        first = current.assembler.first_step
        if plan.step < first:
            if current.assembler.next_step > first:
                message = f"step {first} of epoch {plan.epoch} was applied while the state was uploaded"
                raise wrong_state("epoch", message)
            self._go_on_from(current, state)
        elif not self._is_of_use(current, plan.step, final):
            return False
        else:
            self._resync(current, state)
        self.advance(now)
        return True

    def _go_on_from(self, current: Epoch, state: PreparedState) -> None:
        plan = state.plan
        self.state.take(state)
        self._ledger.add(
            StateUploaded(
                self._group, current.number, plan.step, plan.layout, plan.optimizer, state.tensors, state.constants
            )
        )

    def _is_of_use(self, current: Epoch, step: int, final: bool) -> bool:
        if self._ledger.history.is_replicated(step):
            return False
        collecting = current.assembler.next_step
        if current.lost is not None:
            return current.resyncs and step >= max(current.lost.step, collecting - 1)
        return step >= collecting and (final or (current.resyncs and current.overtaken))

    def _resync(self, current: Epoch, state: PreparedState) -> None:
        """Go on from a state; what was collected of later steps stays."""
        first, step = current.oldest, state.plan.step
        if current.lost is None and first < step:
            gap = diagnose(current.assembler, current.book, first)
            self._lose(current, gap or Gap(first, GapReason.RESYNC_PENDING, f"the state after step {step} came first"))
        lost = [*range(max(first, step - EXPLAINED), step), *([current.uploaded] if current.uploaded else [])]
        self._ledger.lost(current.number, [current.explain(each) for each in lost])
        current.lost = None
        current.assembler.skip_to(step + 1)
        current.book.release(step - 1)
        current.requests.adopted(step)
        current.uploaded = step
        self._go_on_from(current, state)
        self._ledger.resynced(StepResynced(self._group, current.number, step, first))

    def _join(self, current: Epoch, step: int, now: float | None) -> None:
        """Publish the uploaded state of `step` once all ranks' records of it are there, or give it up."""
        if current.book.missing(step) or current.book.unlisted(step):
            # Where the next step is complete already this one's records are late by a step: they were lost.
            if not (current.lost is None and current.ready):
                return
            gap: Gap | None = current.explain(step)
        else:
            gap = self._contradiction(current, step)
            if gap is not None:
                # Nothing may follow from a state that is not the ranks'.
                self.state.reject()
        current.uploaded = None
        if gap is None:
            report = StepReport(current.number, step, 0, None, None, now if now is not None else 0.0)
            self._publish(current, current.book.get(step), report, None)
            return
        self._ledger.lost(current.number, [gap])
        if not self.state.usable and current.lost is None:
            detail = f"the state that was uploaded of step {step} is not the ranks'"
            self._lose(current, Gap(current.assembler.next_step, GapReason.RESYNC_PENDING, detail))

    def _contradiction(self, current: Epoch, step: int) -> Gap | None:
        """Return how the ranks' records of `step` contradict each other, or the state that was uploaded of it."""
        gap = disagreement(current.book, step) or unknown_layout(current.assembler, current.book, step)
        if gap is None:
            gap = self._check.before(step, current.book.listed(step), current.timeline.at(step).optimizer)
        differs = self.state.digest_difference(current.book.get(step)) if gap is None else None
        return gap if differs is None else Gap(step, GapReason.DIGEST_MISMATCH, f"the uploaded {differs}")
