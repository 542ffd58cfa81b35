"""A run in the seeded simulation: trained with faults, checked, and restarted from the newest durable step."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from nccl_emu.errors import EmulatorError
from topology.acceptance.plan import RunLength, RunPlan, draw_plan
from topology.acceptance.record import ReportedGap, RunRecord
from topology.acceptance.scenarios import Scenario
from topology.acceptance.simulated_run.fault_simulation import FaultSimulation
from topology.acceptance.step_state import reference_states
from topology.acceptance.store_check import check_store
from topology.errors import TestbedError

FABRIC = "simulation"


def run_simulated(scenario: Scenario, seed: int, length: RunLength) -> RunRecord:
    """Run a scenario with a seed; equal arguments give equal histories. Raises nothing: errors are in the record."""
    started = time.monotonic()
    record = RunRecord(scenario.name, FABRIC, seed, length.steps)
    try:
        with tempfile.TemporaryDirectory(prefix="checkmate-") as folder:
            plan = draw_plan(scenario, seed, length)
            record.left_out = dict(plan.unused)
            _run(plan, Path(folder) / "store", record)
    except Exception as error:  # one run of thousands must not end the others
        record.error = f"{type(error).__name__}: {error}"
    record.seconds = time.monotonic() - started
    return record


def _run(plan: RunPlan, root: Path, record: RunRecord) -> None:
    torch.set_num_threads(1)
    expected = reference_states(plan.job, plan.seed, plan.length.total)
    run = FaultSimulation(plan, expected, root, record)
    try:
        run.begin()
        run.train(plan.length.steps)
        run.end(orderly=plan.orderly)
        record.at_end = record.numbers[-1] if record.numbers else None
        durable = check_store(root, plan.job, expected, run.observer.stored, record)
        for step in range(1, plan.length.steps + 1):
            gap = run.explain(step) if step not in durable else None
            if gap is not None and gap.detail:
                # The temporary folder's name would make records of equal seeds differ.
                record.reported.append(ReportedGap(step, gap.reason.value, gap.detail.replace(str(root), "store")))
            elif step not in durable:
                record.unexplained.append(step)
        run.count()
        _restart(run, record)
        check_store(root, plan.job, expected, run.observer.stored, record)
    finally:
        run.close()


def _restart(run: FaultSimulation, record: RunRecord) -> None:
    """Restart the job from the newest durable recovery point alone and train on; links stay impaired."""
    before, record.training = record.training, None
    try:
        point = run.newest_durable()
        record.restarted_from = point.manifest.step if point is not None else 0
        run.begin(point)
        run.train(run.plan.length.total)
        run.end()
        record.restart = record.training
    except (EmulatorError, TestbedError) as error:
        record.restart = f"{type(error).__name__}: {error}"
    finally:
        record.training = before
