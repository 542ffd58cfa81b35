"""Runs with a redundant hop: losses on the way to the shadow are repaired, and what cannot be is reported."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from jobspec.model import RedundancySpec
from tests.program import run_program
from tests.topology.simulation.simulated_job import World, reference_states, small_job
from topology.compare import first_difference
from topology.simulation.links import Impairments
from topology.simulation.ring_simulation import LinkPlan

EXAMPLE = Path(__file__).parents[3] / "examples" / "redundant.yaml"
SEEDS = 16
STEPS = 4


def _run_seed(seed: int, hops: list[int]) -> tuple[int, int]:
    """Return how many steps were verified, and how many bytes were repaired, with a lossy link to the shadow."""
    rng = random.Random(f"redundant/{seed}")
    job = small_job(3, channels=rng.choice([1, 2]), redundancy=RedundancySpec(hops=hops))
    replica = Impairments(
        loss=rng.uniform(0.02, 0.05), duplicate=0.02, reorder=rng.choice([0.0, 0.1]), corrupt=rng.choice([0, 0.01]),
        corrupt_bits=3, delay=1e-5, jitter=1e-4,
    )  # fmt: skip
    world = World(job, seed, LinkPlan(replica=replica))
    try:
        world.ring.begin(world.fresh_trainers(), epoch=1)
        world.train(STEPS)
        world.ring.end()
        world.check_published()
        reports = world.shadow.core.group(world.group.name).ledger.history.reports()
    finally:
        world.close()
    assert world.ranks_differ is None, seed
    assert first_difference(reference_states(job, seed, STEPS)[STEPS], world.states[STEPS]) is None, seed
    assert set(world.published.values()) <= {None}, f"seed {seed}: a wrong checkpoint: {world.published}"
    return len([r for r in reports if r.replica_bytes]), sum(r.repaired_bytes for r in reports)


def test_most_steps_of_lossy_links_are_repaired() -> None:
    repaired = verified = alone = compared = 0
    for seed in range(SEEDS):
        steps, count = _run_seed(seed, [0, 1])
        verified += steps
        repaired += count
        if seed % 4 == 0:
            alone += _run_seed(seed, [0])[0]
            compared += steps
    assert repaired > 0
    assert verified >= 0.9 * SEEDS * STEPS
    assert alone < compared, "the same links without the redundant hop"


@pytest.mark.parametrize("fault", ["drop-replica", "flip-replica-bit", "forge-replica-bit"])
def test_one_damaged_replica_costs_nothing(tmp_path: Path, fault: str) -> None:
    summary, done = _testbed(tmp_path, f"{fault}:3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "shadow == trainer: 4/4 iterations, restart identical"
    assert summary["repaired_bytes"] > 0
    assert summary["tagged_payload_bytes"] == 2 * summary["replica_payload_bytes"]
    assert f"step 3: {summary['repaired_bytes']:,} lost bytes were repaired from a redundant hop" in done.stdout
    assert "repaired bytes in 1 steps" in (tmp_path / "report.html").read_text()


def test_what_both_copies_lost_is_reported(tmp_path: Path) -> None:
    summary, done = _testbed(tmp_path, "drop-both:3")
    assert done.returncode == 1, done.stderr
    assert summary["mismatched_iterations"] == summary["repaired_bytes"] == 0
    gap = next(gap for gap in summary["gaps"] if gap["step"] == 3)
    assert gap["reason"] == "lost_bytes"
    assert "nor in the redundant copy of flow" in gap["detail"]


def _testbed(out: Path, fault: str) -> tuple[dict, subprocess.CompletedProcess[str]]:  # type: ignore[type-arg]
    words = ("--fabric", "inproc", "--out", out, "--iterations", "4", "--fault", fault)
    done = run_program("testbed", "run", EXAMPLE, *words)
    return json.loads((out / "summary.json").read_text()), done
