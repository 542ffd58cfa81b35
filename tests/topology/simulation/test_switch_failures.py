"""A switch that restarts, or is replaced, in the middle of training.

Training is never changed, a wrong checkpoint never published, every step verified or explained.
"""

from __future__ import annotations

import random

import pytest

from checkmate_common.recovery.reasons import GapReason
from checkmate_common.sidechannel.side_channel_pb2 import Status
from jobspec.model import Job
from tests.topology.simulation.simulated_job import World, reference_states, small_job
from tests.topology.simulation.test_seeded_faults import mixed_links
from topology.compare import first_difference
from topology.simulation.ring_simulation import LinkPlan
from topology.simulation.switch_pair import Failure, SwitchPair

STEPS = 4
SEEDS_PER_TEST = 4


class Trial:
    """One seed: a job whose switch fails at a random moment."""

    def __init__(
        self, seed: int, *, failover: bool, restore: bool = True, calm: bool = False, resync: bool = False
    ) -> None:
        rng = random.Random(f"switch/{seed}")
        self.seed, self.calm = seed, calm
        self.job = small_job(rng.choice([2, 3, 4]), mtu=rng.choice([1500, 9000]), channels=rng.choice([1, 1, 2]))
        links = LinkPlan() if calm else mixed_links(rng, spare_replicas=True)
        self.pair = SwitchPair(self.job, seed, restore)
        # Without resync: what is verified here was replicated, by the switch that is under test.
        self.world = World(self.job, seed, links, make_switch=lambda job: self.pair, resync=resync)
        self._failure = Failure(0, None if failover else 10 ** rng.uniform(-3, 0.5), torn=not calm and seed % 2 == 1)
        self._rng = rng

    def run(self) -> Status:
        """Train, check what must hold whatever happens, and return where the shadow is at the end."""
        world, pair = self.world, self.pair
        try:
            early = not self.calm and self.seed % 8 == 0
            if early:
                self._arm(8)  # while the connections are made
            world.ring.begin(world.fresh_trainers(), epoch=1)
            before = pair.frames
            world.train(1)
            if not early:
                self._arm(2 * (pair.frames - before))
            world.train(STEPS)
            world.ring.end()
            world.check_published()
            status = world.status()
            self.unknown = pair.unknown_isn()
        finally:
            world.close()
        self._check(status)
        return status

    def _arm(self, within: int) -> None:
        self._failure.at_frame = self._rng.randint(1, within)
        self.pair.arm(self._failure)

    def _check(self, status: Status) -> None:
        world, context = self.world, f"seed {self.seed}: {self._failure}: {status}"
        assert self.pair.has_failed, context
        assert world.ranks_differ is None, context
        reference = reference_states(self.job, self.seed, STEPS)[STEPS]
        assert first_difference(reference, world.states[STEPS]) is None, context
        assert set(world.published.values()) <= {None}, f"a wrong checkpoint: {world.published}, {context}"
        assert status.trained_step == STEPS, context
        explained = {gap.step: GapReason(gap.reason) for gap in status.gaps if gap.detail}
        for step in range(status.replica_step + 1, STEPS + 1):
            assert step in explained, f"step {step} is neither verified nor explained, {context}"

    @property
    def lost_replica(self) -> bool:
        """Whether the switch died with a replica in its hands."""
        ports = {self.job.shadow(name).port for name in self.job.groups[0].shadows}
        return any(port in ports for port, _ in self.pair.torn)


@pytest.mark.parametrize("failover", [False, True], ids=["restart", "failover"])
@pytest.mark.parametrize("block", range(5))
def test_training_goes_on_and_every_step_is_verified_or_explained(block: int, failover: bool) -> None:
    dropped = 0
    for seed in range(block * SEEDS_PER_TEST, (block + 1) * SEEDS_PER_TEST):
        trial = Trial(seed, failover=failover)
        status = trial.run()
        dropped += trial.pair.dropped
        if trial.pair.lost_start:
            continue  # the controller cannot restore what the switch took with it; `run` has seen that it is reported
        # Whatever the switch forwards after its restoration it can place.
        assert trial.unknown == 0, f"seed {seed}: {status}"
        if not trial.lost_replica:
            # What did not arrive at its rank either is sent again, and replicated then.
            assert status.replica_step == STEPS, f"seed {seed}: {status}"
    assert (dropped > 0) is not failover, "frames meet a dead switch only where nothing stands by"


@pytest.mark.parametrize("failover", [False, True], ids=["restart", "failover"])
@pytest.mark.parametrize("seed", range(2))
def test_without_flow_base_the_rest_is_reported_and_nothing_is_wrong(seed: int, failover: bool) -> None:
    """The same with a controller that restores everything but the connections."""
    trial = Trial(seed, failover=failover, restore=False, calm=True)
    status = trial.run()
    assert trial.unknown > 0
    assert status.replica_step < STEPS, status
    reasons = {gap.step: gap.reason for gap in status.gaps}
    assert reasons[status.replica_step + 1] == GapReason.LOST_BYTES, status
    resynced = Trial(seed, failover=failover, restore=False, calm=True, resync=True)
    assert resynced.run().replica_step == STEPS, "the trainer's state needs no switch"


@pytest.mark.parametrize("failover", [False, True], ids=["restart", "failover"])
def test_ranks_that_reconnect_afterwards_are_followed_again(failover: bool) -> None:
    """Entries of the old connections are still there: they must not give the new ones a position."""
    job: Job = small_job(3)
    pair = SwitchPair(job, 0)
    world = World(job, 0, make_switch=lambda _: pair)
    try:
        world.ring.begin(world.fresh_trainers(), epoch=1)
        pair.arm(Failure(40, None if failover else 0.01))
        world.train(2)
        assert pair.has_failed
        old = {start.src_port for start in pair.core.journal.starts()}
        world.ring.crash(silent=True)
        world.ring.begin(world.fresh_trainers(), epoch=2)
        assert not old & {start.src_port for start in pair.core.journal.starts()}
        world.train(STEPS)
        world.ring.end()
        world.check_published()
        status = world.status()
        assert pair.unknown_isn() == 0
    finally:
        world.close()
    assert status.replica_step == STEPS, status
    assert set(world.published.values()) == {None}
