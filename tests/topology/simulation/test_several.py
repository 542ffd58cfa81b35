"""More than one of everything, in the simulation: each reduced byte is replicated exactly once for each shadow node."""

from __future__ import annotations

from collections import Counter

import pytest

from checkmate_common.stream.layout import Layout
from checkmate_common.stream.ring import Phase
from checkmate_common.stream.schedule import step_plan
from jobspec.model import Flow
from packets.frame import ParsedFrame, parse_frame
from tests.topology.simulation.wide_job import WideWorld, wide_job
from topology.compare import first_difference
from topology.fabric.participants import Participants, switch_port
from topology.simulation.event_loop import SwitchPort

STEPS = 2
CHAIN = (("s1", "s2"), ("s2", "s3"))
JOBS = {
    "two switches": wide_job(["s1", "s1", "s2", "s2"], ["s2"], [((0, 1, 2, 3), (0,))], trunks=[("s1", "s2")]),
    "a ring that crosses at every hop": wide_job(
        ["s1", "s2", "s1", "s2"], ["s1"], [((0, 1, 2, 3), (0,))], trunks=[("s1", "s2")], channels=2
    ),
    "two shadows that both get everything": wide_job(
        ["s1", "s1", "s2"], ["s1", "s2"], [((0, 1, 2), (0, 1))], trunks=[("s1", "s2")]
    ),
    "two shadows behind one trunk": wide_job(
        ["s1", "s1", "s2"], ["s2", "s2"], [((0, 1, 2), (0, 1))], trunks=[("s1", "s2")], channels=2
    ),
    "a chain of three, the shadow at its end": wide_job(["s1", "s2", "s3"], ["s3"], [((0, 1, 2), (0,))], trunks=CHAIN),
    "two groups share switches, trunk and a shadow": wide_job(
        ["s1", "s2", "s1", "s2"], ["s1", "s2"], [((0, 1), (0, 1)), ((2, 3), (1,))], trunks=[("s1", "s2")]
    ),
    "two groups on one switch, a shadow each": wide_job(
        ["s1"] * 4, ["s1", "s1"], [((0, 1), (0,)), ((2, 3), (1,))], channels=2
    ),
}


class Taps:
    """Keeps every frame with a payload at every switch."""

    def __init__(self) -> None:
        self.frames: dict[tuple[SwitchPort, str], list[bytes]] = {}

    def __call__(self, place: SwitchPort, direction: str, frame: bytes, now: float) -> None:
        self.frames.setdefault((place, direction), []).append(frame)

    def parsed(self, place: SwitchPort, direction: str) -> list[ParsedFrame]:
        return [p for f in self.frames.get((place, direction), []) if (p := parse_frame(f)) is not None]


@pytest.mark.parametrize("name", JOBS)
def test_each_byte_is_replicated_exactly_once(name: str) -> None:
    job, taps = JOBS[name], Taps()
    world = WideWorld(job, seed=3, tap=taps)
    world.run(STEPS)
    for group, shadow in Participants(job).tracks:
        assert world.difference(group, shadow, STEPS) is None, (group, shadow)
    layout = world.rings[0].trainers[0].layout
    for spec in job.shadows:
        replicas = taps.parsed(switch_port(job, spec), "out")
        assert all(replica.dst_ip == str(spec.ip) and replica.checksums_ok for replica in replicas)
        # By flow and stream position: no byte of any flow comes twice, none is missing.
        seen = Counter(
            (replica.segment.dst_port - spec.base_port, position)
            for replica in replicas
            for position in range(replica.segment.seq, replica.segment.seq + len(replica.segment.payload))
        )
        assert set(seen.values()) == {1}
        mine = [flow for flow in job.flows if spec in flow.shadows]
        assert {flow for flow, _ in seen} == {flow.id for flow in mine}
        assert len(seen) == STEPS * sum(_hop_0_bytes(flow, layout) for flow in mine)


@pytest.mark.parametrize("name", JOBS)
def test_replicas_begin_at_the_switch_of_the_sender_and_originals_arrive_as_they_left(name: str) -> None:
    job, taps = JOBS[name], Taps()
    WideWorld(job, seed=4, tap=taps).run(STEPS)
    shadow_ips = {str(spec.ip) for spec in job.shadows}
    hosts = [switch_port(job, host) for host in Participants(job).hosts]
    sent = Counter(frame for place in hosts for frame in taps.frames[place, "in"])
    assert sent == Counter(frame for place in hosts for frame in taps.frames[place, "out"])
    for switch in job.switches:
        made: Counter[str] = Counter()
        for place, direction in taps.frames:
            if place.switch == switch.name:
                copies = Counter(p.src_ip for p in taps.parsed(place, direction) if p.dst_ip in shadow_ips)
                if direction == "out":
                    made.update(copies)
                else:
                    made.subtract(copies)
        # What leaves for shadows and did not arrive as a replica already was made here.
        own = {str(host.ip) for host in job.hosts if job.switch_of(host) == switch}
        assert {source for source, count in made.items() if count} == own, switch.name
    for trunk in job.trunks:
        one, other = (SwitchPort(*end) for end in trunk.ends)
        assert taps.frames[one, "out"] == taps.frames[other, "in"]
        assert taps.frames[other, "out"] == taps.frames[one, "in"]


def test_groups_train_different_models_and_the_first_one_the_model_of_a_single_group() -> None:
    two = WideWorld(JOBS["two groups on one switch, a shadow each"], seed=5)
    two.run(STEPS)
    alone = WideWorld(wide_job(["s1"] * 2, ["s1"], [((0, 1), (0,))], channels=2), seed=5)
    alone.run(STEPS)
    assert first_difference(two.states["dp0"], alone.states["dp0"]) is None
    assert first_difference(two.states["dp0"], two.states["dp1"]) is not None


def test_a_broadcast_reaches_every_other_host_once_and_no_shadow() -> None:
    job, taps = wide_job(["s1", "s2", "s3", "s2"], ["s2", "s3"], [((0, 1, 2), (0, 1))], trunks=CHAIN), Taps()
    world = WideWorld(job, tap=taps)
    frame = b"\xff" * 6 + bytes.fromhex(job.hosts[1].mac.replace(":", "")) + b"\x08\x06" + bytes(46)
    world.simulation.inject(switch_port(job, job.hosts[1]), frame)
    world.simulation.run_for(1.0)
    world.run(1)
    reached = [place for (place, way), frames in taps.frames.items() if way == "out" for f in frames if f == frame]
    ends = {switch_port(job, end) for end in (*job.hosts, *job.shadows)}
    assert sorted(place for place in reached if place in ends) == sorted(
        switch_port(job, job.hosts[i]) for i in (0, 2, 3)
    )


def _hop_0_bytes(flow: Flow, layout: Layout) -> int:
    frames = step_plan(flow.shape, layout).frames
    return sum(f.header_bytes + f.payload_bytes for f in frames if (f.phase, f.hop) == (Phase.ALL_GATHER, 0))
