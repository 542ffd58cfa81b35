"""Ranks that reconnect while segments of their old connections are still in flight: no byte is ever placed wrongly."""

from __future__ import annotations

import random

import pytest

from checkmate_common.recovery.reasons import GapReason
from jobspec.model import Job
from nccl_emu.training.trainer import DataParallelTrainer
from packets.frame import parse_frame
from packets.segment import TcpFlags
from packets.template import FrameTemplate
from tests.topology.simulation.simulated_job import World, small_job
from topology.fabric.participants import switch_port
from topology.simulation.event_loop import SwitchPort

STEPS = 4


class Recorder:
    """Keeps every tagged original and every replica that passes the switch."""

    def __init__(self, shadow: SwitchPort, dscp: int) -> None:
        self.shadow, self.dscp = shadow, dscp
        self.originals: list[tuple[SwitchPort, bytes]] = []
        self.replicas: list[bytes] = []

    def tap(self, place: SwitchPort, direction: str, frame: bytes, now: float) -> None:
        parsed = parse_frame(frame)
        if parsed is None or parsed.segment.dscp != self.dscp:
            return
        if direction == "in":
            self.originals.append((place, frame))
        elif place == self.shadow:
            self.replicas.append(frame)


def restarted_world(seed: int) -> tuple[World, Recorder, list[DataParallelTrainer]]:
    """Return a world whose ranks have crashed in the middle of step 3, what was on the wire, and other trainers.

    The new trainers begin anew from other weights: every byte of the old connections would be wrong for them.
    """
    job = small_job(3, hidden=(24,))
    recorder = Recorder(switch_port(job, job.shadow(job.groups[0].shadows[0])), job.dscp.primary)
    world = World(job, seed, tap=recorder.tap)
    world.ring.begin(world.fresh_trainers(), epoch=1)
    world.train(2)
    world.ring.compute(3)
    # In the middle of step 3: some of its tagged segments have passed the switch, others not.
    seen = len(recorder.originals) + random.Random(seed).randint(1, 7)
    world.simulation.run_until(lambda: len(recorder.originals) >= seen, 1.0)
    world.ring.crash(silent=True)
    world.states.clear()
    world.published.clear()
    world.points.clear()
    ranks = range(len(world.group.ring))
    others = [DataParallelTrainer(job, world.group, rank, seed + 1000, world.digits) for rank in ranks]
    recorded = Recorder(recorder.shadow, recorder.dscp)
    recorded.originals, recorded.replicas = recorder.originals[:], recorder.replicas[:]
    return world, recorded, others


def is_syn(frame: bytes) -> bool:
    parsed = parse_frame(frame)
    return parsed is not None and bool(parsed.segment.flags & TcpFlags.SYN)


@pytest.mark.parametrize("seed", range(4))
def test_late_segments_of_old_connections_are_never_placed(seed: int) -> None:
    world, old, trainers = restarted_world(seed)
    rng = random.Random(seed)
    try:
        originals = [(place, frame) for place, frame in old.originals if not is_syn(frame)]
        assert len(originals) > 12
        world.ring.begin(trainers, epoch=2)
        for step in range(1, STEPS + 1):
            world.ring.compute(step)
            for place, frame in rng.choices(originals, k=15):
                world.simulation.inject(place, frame, rng.uniform(0, 5e-4))
            for frame in rng.choices(old.replicas, k=15):
                world.simulation.deliver(old.shadow, frame, rng.uniform(0, 5e-4))
            world.ring.finish(step)
            world.note(step)
        world.ring.end()
        world.check_published()
        status = world.status()
    finally:
        world.close()
    assert status.replica_step == STEPS, status
    assert set(world.published) == set(range(1, STEPS + 1))
    assert set(world.published.values()) == {None}
    assert status.discarded, "the late replicas must have been noticed"


@pytest.mark.parametrize("seed", range(4))
def test_even_a_repeated_source_port_gives_no_wrong_checkpoint(seed: int) -> None:
    """What the data plane cannot tell apart (an old segment with the new connection's port) the shadow refuses."""
    world, old, trainers = restarted_world(seed)
    rng = random.Random(seed)
    try:
        world.ring.begin(trainers, epoch=2)
        ports = {node.rank: node.flows_to_open()[0][1] for node in world.ring.nodes}
        forged = [forge(world.job, frame, ports) for _, frame in old.originals]
        for step in range(1, STEPS + 1):
            world.ring.compute(step)
            for place, frame in rng.choices(forged, k=5):
                world.simulation.inject(place, frame, rng.uniform(0, 5e-4))
            world.ring.finish(step)
            world.note(step)
        world.ring.end()
        world.check_published()
        status = world.status()
    finally:
        world.close()
    assert set(world.published.values()) <= {None}, world.published
    assert status.trained_step == STEPS
    explained = {gap.step: GapReason(gap.reason) for gap in status.gaps}
    assert set(range(status.replica_step + 1, STEPS + 1)) <= set(explained), status


def forge(job: Job, frame: bytes, ports: dict[int, int]) -> tuple[SwitchPort, bytes]:
    """Return (place, frame) of an old segment with the source port of its rank's new connection.

    It is addressed to a host that drops it unread, so that only replication sees it: the receiving rank's TCP would
    otherwise be attacked too, which is another matter.
    """
    parsed = parse_frame(frame)
    assert parsed is not None
    rank = next(i for i, name in enumerate(job.groups[0].ring) if str(job.host(name).ip) == parsed.src_ip)
    host = job.host(job.groups[0].ring[rank])
    segment = parsed.segment
    changed = type(segment)(
        ports[rank], segment.dst_port, segment.seq, segment.ack, segment.flags, segment.window, segment.payload,
        segment.dscp, segment.mss, segment.window_scale,
    )  # fmt: skip
    data = FrameTemplate(parsed.src_mac, parsed.dst_mac, parsed.src_ip, parsed.dst_ip).build(changed)
    return switch_port(job, host), data
