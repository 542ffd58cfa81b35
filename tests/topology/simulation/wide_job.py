"""Small jobs with several switches, groups and shadow nodes, and a simulated network that a job is installed on."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from controlplane.desired import desired_state
from controlplane.target import Target
from jobspec.checks import problems_of
from jobspec.model import Job
from nccl_emu.training.digits import Digits
from nccl_emu.training.trainer import DataParallelTrainer
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode
from softswitch.p4rt.device import Device
from softswitch.p4rt.server import ServerHandle, serve
from topology.compare import first_difference
from topology.fabric.local_side_channel import LocalSideChannel
from topology.fabric.participants import switch_port
from topology.simulation.event_loop import Forward, Simulation, SwitchPort, Tap
from topology.simulation.links import Impairments, Link
from topology.simulation.ring_simulation import RingSimulation, ShadowHost


def wide_job(
    hosts: Sequence[str],
    shadows: Sequence[str],
    rings: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    trunks: Sequence[tuple[str, str]] = (),
    channels: int = 1,
) -> Job:
    """Return a sound job.

    Args:
        hosts: the switch of each host.
        shadows: the switch of each shadow node.
        rings: for each group the hosts of its ring and its shadow nodes, by number.
        trunks: pairs of switches.
        channels: of each ring.
    """
    used: dict[str, int] = {}

    def port(switch: str) -> int:
        used[switch] = used.get(switch, 0) + 1
        return used[switch]

    plain: dict[str, Any] = {
        "version": 1,
        "name": "wide",
        "hosts": [
            {"name": f"r{i}", "switch": s, "port": port(s), "mac": f"02:00:00:00:01:{i:02x}", "ip": f"10.0.0.{10 + i}"}
            for i, s in enumerate(hosts)
        ],
        "shadows": [
            {"name": f"sh{i}", "switch": s, "port": port(s), "mac": f"02:00:00:00:02:{i:02x}",
             "ip": f"10.0.1.{100 + i}", "rid": 1 + i} for i, s in enumerate(shadows)
        ],
        "trunks": [{"between": [a, b], "ports": [port(a), port(b)]} for a, b in trunks],
        "groups": [
            {"name": f"dp{g}", "id": g, "ring": [f"r{i}" for i in ring], "channels": channels,
             "shadows": [f"sh{i}" for i in mine]} for g, (ring, mine) in enumerate(rings)
        ],
        "workload": {"hidden": [21], "batch_size": 24, "bucket_bytes": 1200, "dropout": 0.1},
    }  # fmt: skip
    plain["switches"] = [{"name": name, "device_id": i + 1, "ports": n} for i, (name, n) in enumerate(used.items())]
    job = Job.model_validate(plain)
    assert problems_of(job) == []
    return job


class WideWorld:
    """A simulated network with all switches, groups and shadow nodes of a job."""

    def __init__(self, job: Job, seed: int = 0, tap: Tap | None = None) -> None:
        torch.set_num_threads(1)
        self.job = job
        self.seed = seed
        self._servers: list[ServerHandle] = []
        self.simulation = Simulation({s.name: self._switch(s.name) for s in job.switches}, tap)
        for trunk in job.trunks:
            one, other = trunk.ends
            self.simulation.add_trunk(SwitchPort(*one), SwitchPort(*other), _link(), _link())
        self.shadows: dict[str, LocalSideChannel] = {}
        for spec in job.shadows:
            node = ShadowNode(ShadowCore(job, spec.name), lambda: self.simulation.now)
            self.simulation.attach(switch_port(job, spec), ShadowHost(node), _link(), _link())
            self.shadows[spec.name] = LocalSideChannel(node)
        self.rings = [
            RingSimulation(job, group, self.simulation, [self.shadows[n] for n in group.shadows], seed)
            for group in job.groups
        ]
        self.states: dict[str, Mapping[str, torch.Tensor]] = {}

    def _switch(self, name: str) -> Forward:
        spec = self.job.switch_named(name)
        device = Device(spec.device_id)
        self._servers.append(serve(device))
        with Target.connect(self._servers[-1].address, spec.device_id, election_id=1) as target:
            target.install(desired_state([self.job], name))
        return lambda port, frame, now: device.inject(port, frame, int(now * 1e6))

    def run(self, steps: int) -> None:
        """Train all groups at the same time for `steps` steps, then close everything."""
        digits = Digits.load()
        try:
            for ring in self.rings:
                ranks = range(len(ring.group.ring))
                ring.begin([DataParallelTrainer(self.job, ring.group, r, self.seed, digits) for r in ranks], epoch=1)
            for step in range(1, steps + 1):
                for ring in self.rings:
                    ring.compute(step)
                for ring in self.rings:
                    ring.finish(step)
            for ring in self.rings:
                ring.end()
                self.states[ring.group.name] = ring.trainers[0].state_tensors()
        finally:
            for server in self._servers:
                server.close()

    def difference(self, group: str, shadow: str, step: int) -> str | None:
        """Compare a shadow node's newest recovery point, which must be of `step`, with the trainer's final state."""
        point = self.shadows[shadow].recovery_point(group)
        assert point.manifest.step == step
        return first_difference(self.states[group], point.tensors)


def _link() -> Link:
    return Link(Impairments(), random.Random(0))
