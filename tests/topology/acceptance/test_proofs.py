"""What the main job must show, in the simulation: originals untouched, one gradient replicated, faults reported."""

from __future__ import annotations

from collections import Counter

import pytest

from checkmate_common.stream.ring import Phase
from checkmate_common.stream.schedule import step_plan
from p4src.names import Table
from packets.frame import parse_frame
from tests.topology.simulation.simulated_job import World, reference_states, small_job
from topology.compare import first_difference
from topology.fabric.participants import switch_port
from topology.simulation.event_loop import SwitchPort

STEPS = 3


class Tap:
    """Keeps all frames by place and direction."""

    def __init__(self) -> None:
        self.frames: dict[tuple[SwitchPort, str], list[bytes]] = {}

    def __call__(self, place: SwitchPort, direction: str, frame: bytes, now: float) -> None:
        self.frames.setdefault((place, direction), []).append(frame)

    def all(self, direction: str, switch_ports: set[SwitchPort]) -> Counter[bytes]:
        return Counter(
            f
            for (place, way), frames in self.frames.items()
            if way == direction and place in switch_ports
            for f in frames
        )


def run(world: World) -> None:
    try:
        world.ring.begin(world.fresh_trainers(), epoch=1)
        world.train(STEPS)
        world.ring.end()
        world.check_published()
    finally:
        world.close()


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_every_ring_size_and_mtu(ranks: int, mtu: int) -> None:
    job = small_job(ranks, hidden=(41,), mtu=mtu)
    tap = Tap()
    world = World(job, seed=ranks, tap=tap)
    run(world)
    assert world.status().replica_step == STEPS
    assert set(world.published.values()) == {None}
    assert world.ranks_differ is None
    assert first_difference(reference_states(job, ranks, STEPS)[STEPS], world.states[STEPS]) is None
    # Sizes that do not divide by the number of ranks, in several buckets.
    layout = world.ring.trainers[0].layout
    assert len(layout.buckets) > 1
    assert any(bucket.elements % ranks for bucket in layout.buckets)
    assert max(len(frame) for frames in tap.frames.values() for frame in frames) <= mtu + 14

    # Replicas carry one gradient and its frame headers, whatever the number of ranks.
    headers = sum(
        frame.header_bytes
        for flow in job.flows
        for frame in step_plan(flow.shape, layout).frames
        if (frame.phase, frame.hop) == (Phase.ALL_GATHER, 0)
    )
    replicas = [parse_frame(frame) for frame in tap.frames[world.shadow_place, "out"]]
    payload = sum(len(replica.segment.payload) for replica in replicas if replica is not None)
    assert payload == STEPS * (layout.nbytes + headers)

    # Every original leaves as it came, and nothing else reaches a rank.
    hosts = {switch_port(job, job.host(name)) for name in world.group.ring}
    assert tap.all("in", hosts) == tap.all("out", hosts)


def test_nothing_is_replicated_without_the_tag_and_ranks_see_no_difference() -> None:
    job = small_job(3)
    tagged, plain = Tap(), Tap()
    world = World(job, seed=5, tap=tagged, resync=False)
    run(world)
    silent = World(job, seed=5, tap=plain, resync=False)
    # Replication off: no flow is installed, all else is the same.
    table = silent.switch.device._core.tables[Table.REPLICATE]  # type: ignore[union-attr]
    for entry in table.entries():
        table.delete(entry.match, entry.priority)
    run(silent)
    assert (world.shadow_place, "out") in tagged.frames
    assert (silent.shadow_place, "out") not in plain.frames, "the shadow received something"
    hosts = {switch_port(job, job.host(name)) for name in world.group.ring}
    for place in hosts:
        assert tagged.frames[place, "out"] == plain.frames[place, "out"], "replication changed what a rank receives"
    assert silent.status().replica_step == 0
    assert first_difference(world.states[STEPS], silent.states[STEPS]) is None

    # And every replica stems from a tagged original.
    tags = [parse_frame(frame) for place in hosts for frame in tagged.frames[place, "in"]]
    assert sum(t is not None and t.segment.dscp == job.dscp.primary for t in tags) == len(
        tagged.frames[world.shadow_place, "out"]
    )
