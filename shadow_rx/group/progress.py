"""How a group's replica advances: complete steps are applied and published, uploaded states joined. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from jobspec.reasons import GapReason
from shadow_rx.apply.model import Replay, digest_difference
from shadow_rx.apply.upload import PreparedState
from shadow_rx.group.diagnosis import diagnose, disagreement, unknown_layout
from shadow_rx.group.epoch import Epoch
from shadow_rx.group.state import GroupState
from shadow_rx.publish.snapshot import Snapshot, confirmed_parts
from shadow_rx.status.group_status import Gap, StateUploaded, StepReplicated, StepReport, StepResynced
from shadow_rx.trainer.changes import carried_over
from shadow_rx.trainer.rank_step import RankStep

EXPLAINED = 4096
"""Most steps that one loss is reported for, the newest ones."""


class GroupProgress(GroupState):
    """What becomes of the steps of a group; `shadow_rx.group.replica` says what comes in."""

    def _advance(self, now: float | None) -> None:
        """Apply every step that is ready, in order; notice when the oldest one can no longer become so."""
        current = self._epoch
        if current is not None and current.uploaded is not None:
            self._join(current, current.uploaded, now)
        while current is not None and current.lost is None:
            gap = current.verdict()
            if gap is None:
                if not current.ready or self._replay is None:
                    return
                gap = self._apply(current, self._replay, now)
            if gap is not None:
                self._lose(current, gap)

    def _apply(self, current: Epoch, replay: Replay, now: float | None) -> Gap | None:
        """Apply one complete step and publish it, or leave the state of the step before and say why."""
        step = current.assembler.next_step
        slot = current.assembler.slot(step)
        records = current.book.get(step)
        unknown = self._accounts.before(step, current.book, records, current.timeline.at(step).optimizer)
        if unknown is not None:
            return unknown
        change, constants = current.timeline.begins(step), self._accounts.constants
        try:
            if change is not None:
                # A replay of its own, so that the one of the step before is there should this step fail.
                before = current.timeline.at(step - 1).optimizer
                replay, constants = carried_over(change, before, self._base, constants)
            replay.apply(slot.memory, slot.plan.bucket_offsets, records[0].update)
            tensors = replay.snapshot()
            differs = digest_difference(records, replay, tensors)
        except Exception as error:  # whatever torch raises, the step before stays valid
            self._undo(replay)
            return Gap(step, GapReason.DIGEST_MISMATCH, f"the optimizer step cannot be replayed: {error}")
        if differs is not None:
            self._undo(replay)
            return Gap(step, GapReason.DIGEST_MISMATCH, f"the {differs}")
        applied_at = now if now is not None else slot.complete_at or 0.0
        report = StepReport(
            current.number, step, slot.received_bytes, slot.first_byte_at, slot.complete_at, applied_at,
            repaired_bytes=slot.repaired_bytes, peer_bytes=slot.peer_bytes,
        )  # fmt: skip
        self._replay, self._accounts.constants = replay, constants
        self._base, self._applied = tensors, step
        self._publish(current, records, report, slot.gradient())
        current.assembler.release()
        current.requests.progressed()
        return None

    def _undo(self, replay: Replay) -> None:
        if replay is self._replay:
            replay.restore(self._base)

    def _publish(self, current: Epoch, records: Sequence[RankStep], report: StepReport, gradient: bytes | None) -> None:
        """Make the present state, which is that after the report's step, a recovery point.

        Not where an object of the trainer's state is not accounted for; the shadow goes on from the state all the same.
        """
        in_force = current.timeline.at(report.step)
        gap = self._accounts.after(report.step, current.book, records, in_force.layout, self._base)
        if gap is not None:
            current.book.release(report.step)
            self._report_loss(current, gap)
            return
        snapshot = Snapshot(
            self._job.name, self._group.name, current.number, report.step, in_force.layout, in_force.optimizer,
            tuple(records), self._base, gradient, self._accounts.constants, confirmed_parts(records),
        )  # fmt: skip
        self._held.append(snapshot)
        self.history.replicated(report)
        self.count(replicated_steps=1, repaired_bytes=report.repaired_bytes, peer_bytes=report.peer_bytes)
        current.book.release(report.step)
        self._events.append(StepReplicated(snapshot, report))

    def _join(self, current: Epoch, step: int, now: float | None) -> None:
        """Publish the uploaded state of `step` once all ranks' records of it are there, or give it up."""
        gap: Gap | None = None
        if current.book.missing(step) or current.book.unlisted(step):
            # Where the next step is complete already this one's records are late by a step: they were lost.
            if not (current.lost is None and current.ready):
                return
            gap = current.explain(step)
        else:
            gap = disagreement(current.book, step) or unknown_layout(current.assembler, current.book, step)
            optimizer = current.timeline.at(step).optimizer
            gap = gap or self._accounts.before(step, current.book, current.book.get(step), optimizer)
            gap = gap or self._digest_gap(current, step)
            if gap is not None:
                # Nothing may follow from a state that is not the ranks'.
                self._replay = None
        current.uploaded = None
        if gap is None:
            report = StepReport(current.number, step, 0, None, None, now if now is not None else 0.0)
            self._publish(current, current.book.get(step), report, None)
            return
        self._report_loss(current, gap)
        if self._replay is None and current.lost is None:
            detail = f"the state that was uploaded of step {step} is not the ranks'"
            self._lose(current, Gap(current.assembler.next_step, GapReason.RESYNC_PENDING, detail))

    def _lose(self, current: Epoch, gap: Gap) -> None:
        current.lost = gap
        if not current.resyncs:
            current.book.drop()
        self._report_loss(current, gap)

    # ---- uploaded states ----

    def _take_state(self, current: Epoch, state: PreparedState) -> None:
        plan = state.plan
        self._replay, self._base, self._applied = state.replay, state.tensors, plan.step
        self._accounts.constants = state.constants
        uploaded = StateUploaded(
            self._group.name, current.number, plan.step, plan.layout, plan.optimizer, self._base, state.constants
        )
        self._events.append(uploaded)

    def _usable(self, current: Epoch, step: int, final: bool) -> bool:
        """Tell whether the state after `step` lets the shadow go on."""
        if self.history.is_replicated(step):
            return False
        collecting = current.assembler.next_step
        if current.lost is not None:
            return current.resyncs and step >= max(current.lost.step, collecting - 1)
        return step >= collecting and (final or (current.resyncs and current.overtaken))

    def _resync(self, current: Epoch, state: PreparedState, now: float | None) -> None:
        """Go on from a state; what was collected of later steps stays."""
        first, step = current.oldest, state.plan.step
        if current.lost is None and first < step:
            gap = diagnose(current.assembler, current.book, first)
            self._lose(current, gap or Gap(first, GapReason.RESYNC_PENDING, f"the state after step {step} came first"))
        for lost in range(max(first, step - EXPLAINED), step):
            self._report_loss(current, current.explain(lost))
        if current.uploaded is not None:
            self._report_loss(current, current.explain(current.uploaded))
        current.lost = None
        current.assembler.skip_to(step + 1)
        current.book.release(step - 1)
        current.requests.adopted(step)
        current.uploaded = step
        self._take_state(current, state)
        self._events.append(StepResynced(self._group.name, current.number, step, first))
        self.count(resyncs=1)
