"""A hundred seeds of mixed faults.

Training is never changed, a wrong checkpoint never published, every gap explained, and the run ends verified.
"""

from __future__ import annotations

import random

import pytest

from checkmate_common.recovery.reasons import GapReason
from tests.topology.simulation.simulated_job import World, reference_states, small_job
from topology.compare import first_difference
from topology.simulation.links import Impairments
from topology.simulation.ring_simulation import LinkPlan

SEEDS = 100
SEEDS_PER_TEST = 10
STEPS = 6


def mixed_links(rng: random.Random, *, spare_replicas: bool) -> LinkPlan:
    """Return random impairments; where `spare_replicas`, the link to the shadow is clean."""

    def draw(scale: float, bits: int = 1) -> Impairments:
        def chance(most: float) -> float:
            return rng.choice([0.0, rng.uniform(0, most)]) * scale

        return Impairments(
            loss=chance(0.05),
            duplicate=chance(0.05),
            reorder=chance(0.1),
            corrupt=chance(0.03),
            corrupt_bits=bits,
            delay=rng.uniform(1e-6, 5e-4),
            jitter=rng.uniform(0, 5e-3),
            rate=10 ** rng.uniform(8, 11),
        )

    # Several flips at a time can pass TCP's checksum: behind the switch only the frames' CRC finds them.
    return LinkPlan(uplink=draw(1), downlink=draw(1), replica=draw(0 if spare_replicas else 0.5, bits=3))


@pytest.mark.parametrize("block", range(SEEDS // SEEDS_PER_TEST))
def test_mixed_faults(block: int) -> None:
    verified = 0
    for seed in range(block * SEEDS_PER_TEST, (block + 1) * SEEDS_PER_TEST):
        verified += run_seed(seed)
    # Half of the seeds have a clean link to the shadow; TCP repairs all that is lost before the switch. The others
    # have at least the last step, whose state is uploaded if need be.
    assert verified >= SEEDS_PER_TEST // 2 * (STEPS + 1)


def run_seed(seed: int) -> int:
    """Run one seed; return how many steps were verified. The assertions name the seed that reproduces a failure."""
    rng = random.Random(f"faults/{seed}")
    job = small_job(rng.choice([2, 3, 4]), mtu=rng.choice([1500, 9000]), channels=rng.choice([1, 1, 2]))
    clean = seed % 2 == 0
    if rng.random() < 0.5:
        job = job.model_copy(update={"digests": True})
    world = World(job, seed, mixed_links(rng, spare_replicas=clean))
    restarts = set() if clean else {step for step in range(1, STEPS) if rng.random() < 0.2}
    try:
        world.ring.begin(world.fresh_trainers(), epoch=1)
        if not clean:
            world.side_channel.fault_probability = rng.choice([0.0, 0.1, 0.3])
        for step in range(1, STEPS + 1):
            world.ring.compute(step)
            if step in restarts:
                world.simulation.run_for(rng.uniform(0, 2e-3))
                world.restart_shadow()
            world.ring.finish(step)
            world.note(step)
        world.side_channel.fault_probability = 0.0
        world.ring.end()
        world.check_published()
        status = world.status()
    finally:
        world.close()
    context = f"seed {seed}, restarts {restarts}: {status}"
    assert world.ranks_differ is None, context
    assert first_difference(reference_states(job, seed, STEPS)[STEPS], world.states[STEPS]) is None, context
    assert set(world.published.values()) <= {None}, f"a wrong checkpoint was published: {world.published}, {context}"
    assert status.trained_step == STEPS, context
    assert status.replica_step == STEPS, context
    explained = {gap.step: GapReason(gap.reason) for gap in status.gaps if gap.detail}
    for step in range(1, STEPS + 1):
        assert step in world.published or step in explained, f"step {step} is neither verified nor explained, {context}"
    if clean:
        assert len(world.published) == STEPS, context
    return len(world.published)
