"""Observes a simulated run: checks every state, recovery point and step number against the expected states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from checkmate_common.recovery.point import RecoveryPoint
from jobspec.model import Job
from nccl_emu.errors import SideChannelError
from nccl_emu.shadow_client.side_channel import SideChannel
from nccl_emu.training.trainer import DataParallelTrainer
from shadow_rx.publish.snapshot import to_recovery_point
from shadow_rx.status.events import Event, StepLost, StepNotStored, StepReplicated, StepResynced, StepStored
from shadow_rx.status.group_status import Gap
from topology.acceptance.record import RunRecord, StepNumbers
from topology.acceptance.step_state import StepState, point_difference, step_state


class RunObserver:
    """Writes what it finds to the record of a run."""

    def __init__(self, job: Job, expected: Mapping[int, StepState], record: RunRecord) -> None:
        """Observe a run.

        Args:
            job: the job, with one group.
            expected: state after each step of a run without faults.
            record: receives the results.
        """
        self.epoch = 0
        """Number of the current epoch; 0 before the first."""
        self.stored: set[tuple[int, int]] = set()
        """(epoch, step) of every recovery point reported as durable."""
        self.gaps: dict[int, Gap] = {}
        """First reason reported for each step, in its epoch."""
        self.repaired: set[int] = set()
        """Steps with bytes from the redundant hop only."""
        self.resynced: set[int] = set()
        """Steps whose state the trainer uploaded."""
        self._job, self._expected, self._record = job, expected, record

    def forget_gaps(self, first: int) -> None:
        """Forget the gaps of the steps from `first` on."""
        self.gaps = {step: gap for step, gap in self.gaps.items() if step < first}

    def is_resolved(self, step: int) -> bool:
        """Return whether a step of the current epoch is on storage or its reason is known."""
        return (self.epoch, step) in self.stored or step in self.gaps

    def on_event(self, event: Event) -> None:
        """Process an event of the shadow node; compare recovery points in memory."""
        if isinstance(event, StepReplicated):
            self._compare(to_recovery_point(event.snapshot), event.report.epoch, event.report.step, "in memory")
            if event.report.repaired_bytes:
                self.repaired.add(event.report.step)
        elif isinstance(event, StepStored):
            newer = [step for epoch, step in self.stored if epoch == event.epoch and step > event.step]
            if newer:
                self._record.wrong.append(f"epoch {event.epoch}: step {event.step} was stored after step {max(newer)}")
            self.stored.add((event.epoch, event.step))
        elif isinstance(event, StepResynced):
            self.resynced.add(event.step)
        elif isinstance(event, StepLost | StepNotStored):
            self.gaps.setdefault(event.gap.step, event.gap)

    def check_training(self, trainers: Sequence[DataParallelTrainer]) -> None:
        """Compare the state of all ranks, which have just applied the same step."""
        found = self._expected[trainers[0].step].difference(step_state(trainers))
        if self._record.training is None and found is not None:
            self._record.training = f"epoch {self.epoch}, {found}"

    def sample_status(self, channel: SideChannel, step: int) -> None:
        """Record the three step numbers after `step`; compare the newest recovery point read over the side channel."""
        group = self._job.groups[0].name
        try:
            status = channel.status(group)
            numbers = StepNumbers(step, status.trained_step, status.replica_step, status.durable_step)
            self._record.numbers.append(numbers)
            if status.replica_step and status.epoch == self.epoch:
                point = channel.recovery_point(group, status.replica_step)
                self._compare(point, point.manifest.epoch, status.replica_step, "of the side channel")
        except SideChannelError as error:
            if error.code != "UNAVAILABLE":  # the node is down
                raise

    def _compare(self, point: RecoveryPoint, epoch: int, step: int, where: str) -> None:
        self._record.verified += 1
        expected = self._expected.get(step)
        found = point_difference(expected, point, self._job, epoch) if expected is not None else "it was never trained"
        if found is not None:
            self._record.wrong.append(f"epoch {epoch}, step {step}, {where}: {found}")
