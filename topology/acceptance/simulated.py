"""One run in the seeded simulation: with its faults, judged, then started again from the newest durable step."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from nccl_emu.errors import EmulatorError
from topology.acceptance.plan import Length, TrialPlan, draw
from topology.acceptance.record import Reported, RunRecord
from topology.acceptance.scenarios import Scenario
from topology.acceptance.stored import check_store
from topology.acceptance.truth import reference_truth
from topology.acceptance.world import AcceptanceWorld
from topology.errors import TestbedError

FABRIC = "simulation"


def run_simulated(scenario: Scenario, seed: int, length: Length) -> RunRecord:
    """Run a scenario with a seed; equal arguments give equal histories.

    Whatever goes wrong in the run is in its record: it raises nothing.
    """
    started = time.monotonic()
    record = RunRecord(scenario.name, FABRIC, seed, length.steps)
    try:
        with tempfile.TemporaryDirectory(prefix="checkmate-") as folder:
            plan = draw(scenario, seed, length)
            record.left_out = dict(plan.unused)
            _run(plan, Path(folder) / "store", record)
    except Exception as error:  # a run of thousands must not end the others, and its seed is what matters
        record.error = f"{type(error).__name__}: {error}"
    record.seconds = time.monotonic() - started
    return record


def _run(plan: TrialPlan, root: Path, record: RunRecord) -> None:
    torch.set_num_threads(1)
    truth = reference_truth(plan.job, plan.seed, plan.length.total)
    world = AcceptanceWorld(plan, truth, root, record)
    try:
        world.begin()
        world.train(plan.length.steps)
        world.end(orderly=plan.orderly)
        record.at_end = record.numbers[-1] if record.numbers else None
        durable = check_store(root, plan.job, truth, world.stored, record)
        for step in range(1, plan.length.steps + 1):
            gap = world.explanation(step) if step not in durable else None
            if gap is not None and gap.detail:
                # Without the temporary folder's name, so that equal seeds give equal records.
                record.reported.append(Reported(step, gap.reason.value, gap.detail.replace(str(root), "store")))
            elif step not in durable:
                record.unexplained.append(step)
        world.count()
        _restart(world, record)
        check_store(root, plan.job, truth, world.stored, record)
    finally:
        world.close()


def _restart(world: AcceptanceWorld, record: RunRecord) -> None:
    """Start the job again from the newest durable recovery point alone and let it go on; the links stay as they are."""
    before, record.training = record.training, None
    try:
        point = world.newest_durable()
        record.restarted_from = point.manifest.step if point is not None else 0
        world.begin(point)
        world.train(world.plan.length.total)
        world.end()
        record.restart = record.training
    except (EmulatorError, TestbedError) as error:
        record.restart = f"{type(error).__name__}: {error}"
    finally:
        record.training = before
