"""What a run left in its store: every recovery point is read again and compared with the truth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from checkmate_common.recovery.point import RecoveryPointError
from jobspec.model import Job
from shadow_rx.store.api import open_store
from topology.acceptance.record import RunRecord
from topology.acceptance.truth import StepTruth, point_difference


def check_store(
    root: Path, job: Job, truth: Mapping[int, StepTruth], promised: Iterable[tuple[int, int]], record: RunRecord
) -> set[int]:
    """Read every recovery point of a store; return the steps that can be recovered.

    Args:
        root: the store.
        job: the job, with one group.
        truth: what training must give, by step.
        promised: epoch and step of what was called durable: each must be there, as nothing is ever deleted.
        record: takes what is wrong.
    """
    group, there = job.groups[0].name, set[tuple[int, int]]()
    try:
        reader = open_store(root)
    except RecoveryPointError as error:
        record.wrong += [f"the store cannot be opened: {error}"] if any(promised) else []
        return set()
    for epoch in reader.epochs(group):
        for step in () if epoch.superseded else epoch.steps:
            try:
                point = reader.point(group, step, epoch.epoch)
            except RecoveryPointError as error:
                record.wrong.append(f"epoch {epoch.epoch}, step {step}, in the store: cannot be read: {error}")
                continue
            record.verified += 1
            known = truth.get(step)
            found = point_difference(known, point, job, epoch.epoch) if known is not None else "it was never trained"
            if found is not None:
                record.wrong.append(f"epoch {epoch.epoch}, step {step}, in the store: {found}")
            there.add((epoch.epoch, step))
    gone = sorted(set(promised) - there)
    record.wrong += [f"epoch {epoch}, step {step}: was called durable and is not in the store" for epoch, step in gone]
    return {step for _, step in there}
