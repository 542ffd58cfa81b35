"""Checks a run's store: every recovery point is read back and compared with the expected state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from checkmate_common.recovery.point import RecoveryPointError
from jobspec.model import Job
from shadow_rx.store.api import open_store
from topology.acceptance.record import RunRecord
from topology.acceptance.step_state import StepState, point_difference


def check_store(
    root: Path, job: Job, expected: Mapping[int, StepState], durable: Iterable[tuple[int, int]], record: RunRecord
) -> set[int]:
    """Compare every recovery point of a store with the expected state; return the steps that can be read.

    Args:
        root: the store.
        job: the job, with one group.
        expected: state after each step of a run without faults.
        durable: (epoch, step) of each point reported as durable. All must be present: nothing is ever deleted.
        record: receives the errors found.
    """
    group, there = job.groups[0].name, set[tuple[int, int]]()
    try:
        reader = open_store(root)
    except RecoveryPointError as error:
        record.wrong += [f"the store cannot be opened: {error}"] if any(durable) else []
        return set()
    for epoch in reader.epochs(group):
        for step in () if epoch.superseded else epoch.steps:
            try:
                point = reader.point(group, step, epoch.epoch)
            except RecoveryPointError as error:
                record.wrong.append(f"epoch {epoch.epoch}, step {step}, in the store: cannot be read: {error}")
                continue
            record.verified += 1
            known = expected.get(step)
            found = point_difference(known, point, job, epoch.epoch) if known is not None else "it was never trained"
            if found is not None:
                record.wrong.append(f"epoch {epoch.epoch}, step {step}, in the store: {found}")
            there.add((epoch.epoch, step))
    missing = sorted(set(durable) - there)
    record.wrong += [
        f"epoch {epoch}, step {step}: was called durable and is not in the store" for epoch, step in missing
    ]
    return {step for _, step in there}
