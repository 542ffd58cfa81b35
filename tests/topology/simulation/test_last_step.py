"""The last step is a recovery point though the shadow node, or what it had of that step, is lost at the very end."""

from __future__ import annotations

from typing import Any

import pytest

from shadow_rx.status.events import StepReplicated
from tests.topology.simulation.simulated_job import World, small_job
from topology.fabric.unreliable_side_channel import UnreliableSideChannel
from topology.simulation.links import Impairments
from topology.simulation.ring_simulation import LinkPlan

LAST = 4


def lose_the_last_step(world: World, newest: int) -> None:
    """Start the shadow node again with the steps up to `newest` on storage."""
    for step in [step for step in world.points if step > newest]:
        del world.points[step]
        world.published.pop(step, None)
    world.restart_shadow()


def check_the_end(world: World) -> StepReplicated:
    world.ring.end()
    world.check_published()
    assert set(world.published.values()) == {None}
    assert world.status().replica_step == LAST
    return world.points[LAST]


@pytest.mark.parametrize("newest", [LAST - 1, LAST - 3, 0])
def test_a_shadow_that_dies_after_the_last_records(newest: int) -> None:
    world = World(small_job())
    try:
        world.ring.begin(world.fresh_trainers(), 1)
        world.train(LAST)
        assert sorted(world.points) == [1, 2, 3, 4]
        lose_the_last_step(world, newest)
        check_the_end(world)
        assert sorted(world.points) == [*range(1, newest + 1), LAST]
    finally:
        world.close()


@pytest.mark.parametrize("calls", range(8))
def test_a_shadow_that_dies_once_more_while_it_is_told(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any of the calls that tell it the last step."""
    world = World(small_job())
    try:
        world.ring.begin(world.fresh_trainers(), 1)
        world.train(LAST)
        lose_the_last_step(world, LAST - 1)
        left = iter(range(calls, -1, -1))

        def die(*_: object) -> None:
            if next(left, None) == 0:
                lose_the_last_step(world, LAST - 1)

        for name in ("attach", "record_step", "upload_state"):
            call = getattr(UnreliableSideChannel, name)

            def call_and_die(*args: Any, call: Any = call, **options: Any) -> Any:
                reply = call(*args, **options)
                die()
                return reply

            monkeypatch.setattr(UnreliableSideChannel, name, call_and_die)
        check_the_end(world)
    finally:
        world.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_shadow_that_loses_replicas_and_dies_behind_a_bad_side_channel(seed: int) -> None:
    world = World(small_job(), seed, LinkPlan(replica=Impairments(loss=0.05)))
    try:
        world.ring.begin(world.fresh_trainers(), 1)
        world.side_channel.fault_probability = 0.1
        world.train(LAST)
        lose_the_last_step(world, seed % LAST)
        check_the_end(world)
    finally:
        world.close()
