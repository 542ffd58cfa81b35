"""The logs of an epoch over all tracks, and the comparison of a restarted epoch with the uninterrupted one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from checkmate_common.recovery.point import RecoveryPoint, RecoveryPointError
from checkmate_common.sidechannel.side_channel_pb2 import Status
from shadow_rx.store.export import write_point
from topology.compare import first_difference
from topology.epoch_logs import EpochLogs, read_epoch
from topology.fabric.base import TrainingPlan
from topology.fabric.participants import Track
from topology.fabric.run_files import RunFiles
from topology.results import Iteration, RestartResult


@dataclass(frozen=True)
class Epoch:
    """An epoch with the logs of all tracks."""

    last_step: int
    """Last step that was trained."""
    tracks: tuple[EpochLogs, ...]
    """Logs of each track: by group, then shadow node, in the job's order."""

    @classmethod
    def read(cls, files: RunFiles, plan: TrainingPlan, statuses: Mapping[Track, Status]) -> Self:
        """Read the files of the epoch that `plan` trained; `statuses` are those at its end."""
        found = (read_epoch(files, plan.logs, track, plan.epoch, status) for track, status in statuses.items())
        return cls(plan.last_step, tuple(found))

    def iterations(self) -> tuple[Iteration, ...]:
        """Compare every recovery point with the trainer's state: rows by step, then group, then shadow node."""
        start = min(one.start_time for one in self.tracks)
        rows = [row for one in self.tracks for row in one.iterations(start)]
        return tuple(sorted(rows, key=lambda row: row.step))  # stable: groups and shadows keep their order

    def ranks_equal(self) -> bool:
        """Return whether all ranks of each group held byte-equal state after every step."""
        return all(one.ranks_equal() for one in self.tracks)

    def of_group(self, group: str) -> list[EpochLogs]:
        """Return the logs of `group` with each of its shadow nodes."""
        return [one for one in self.tracks if one.group == group]

    def restore(self, group: str, step: int, folder: Path) -> Path | None:
        """Write the recovery point of `step` to `folder`, from the first shadow node that has it.

        Returns:
            `folder`, or None if no shadow node has the point.
        """
        for one in self.of_group(group):
            try:
                point = one.recovery_point(step)
            except RecoveryPointError:
                continue  # reported by the comparison of all steps
            if point is not None:
                write_point(point, folder)
                return folder
        return None


def compare_restart(first: Epoch, second: Epoch | None, from_step: int, missing: Sequence[str]) -> RestartResult:
    """Compare the final states of all groups.

    Args:
        first: the uninterrupted epoch.
        second: the restarted one, None if there was no recovery point to restart from.
        from_step: step that was restarted from.
        missing: groups without a recovery point of that step.
    """
    groups = list(dict.fromkeys(one.group for one in first.tracks))
    if second is None:
        whose = f" of group {', '.join(missing)}" if len(groups) > 1 else ""
        return RestartResult(0, (), False, f"there is no recovery point of step {from_step}{whose} to restart from")
    for group in groups:
        difference = _final_difference(first.of_group(group), second.of_group(group), first.last_step)
        if difference is not None:
            where = f"group {group}: " if len(groups) > 1 else ""
            return RestartResult(from_step, second.iterations(), False, f"{where}{difference}")
    return RestartResult(from_step, second.iterations(), True)


def _final_difference(first: Sequence[EpochLogs], second: Sequence[EpochLogs], last: int) -> str | None:
    difference = first_difference(first[0].trainer_state(last), second[0].trainer_state(last))
    for before, after in zip(first, second, strict=True):
        one, two = before.recovery_point(last), after.recovery_point(last)
        if difference is None and one is not None and two is not None:
            difference = _records_differ(one, two)
    return difference


def _records_differ(one: RecoveryPoint, two: RecoveryPoint) -> str | None:
    """Compare the ranks' records: schedule, data position, random number states."""
    for a, b in zip(one.manifest.records, two.manifest.records, strict=True):
        if a != b:
            return f"rank {a.rank}: {a.objects} against {b.objects}"
    raw = {name for name in {**one.tensors, **two.tensors} if name.startswith("rank/")}
    for name in sorted(raw):
        ours, theirs = one.tensors.get(name), two.tensors.get(name)
        if ours is None or theirs is None or not bool((ours == theirs).all()):
            return f"{name} differs"
    return None
