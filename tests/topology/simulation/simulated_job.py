"""A small job in the simulation, with everything that a test wants to compare."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from checkmate_common.sidechannel.side_channel_pb2 import Status
from jobspec.loader import load_job
from jobspec.model import Job
from nccl_emu.training.digits import Digits
from nccl_emu.training.trainer import DataParallelTrainer
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode
from shadow_rx.status.events import Event, StepLost, StepReplicated
from topology.compare import first_difference
from topology.fabric.participants import switch_port
from topology.fabric.unreliable_side_channel import UnreliableSideChannel
from topology.reference_run import reference_run
from topology.simulation.event_loop import Simulation, Tap
from topology.simulation.links import Link
from topology.simulation.ring_simulation import LinkPlan, RingSimulation, ShadowHost
from topology.simulation.simulated_switch import InstalledSwitch, SimulatedSwitch

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits.yaml"


def small_job(
    ranks: int = 3, *, hidden: tuple[int, ...] = (8,), mtu: int = 1500, channels: int = 1, **changes: object
) -> Job:
    """Return the example job made small: `ranks` ranks, few parameters, odd bucket sizes."""
    job = load_job(EXAMPLE)
    group = job.groups[0].model_copy(update={"ring": [host.name for host in job.hosts[:ranks]], "channels": channels})
    workload = job.workload.model_copy(
        update={"hidden": list(hidden), "batch_size": 8 * ranks, "bucket_bytes": 1200, "dropout": 0.1}
    )
    network = job.network.model_copy(update={"mtu": mtu})
    return job.model_copy(update={"groups": [group], "workload": workload, "network": network, **changes})


@dataclass
class World:
    """The simulated network, its shadow, its ranks, and the trainer's state after every step."""

    job: Job
    seed: int = 0
    links: LinkPlan = field(default_factory=LinkPlan)
    tap: Tap | None = None
    make_switch: Callable[[Job], SimulatedSwitch] = InstalledSwitch
    resync: bool = True

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        self.group = self.job.groups[0]
        self.switch = self.make_switch(self.job)
        self.simulation = Simulation({self.job.switch.name: self.switch.forward}, self.tap)
        spec = self.job.shadow(self.group.shadows[0])
        self.shadow_place = switch_port(self.job, spec)
        self.replica_link = Link(self.links.replica, random.Random(f"replica/{self.seed}"))
        self.points: dict[int, StepReplicated] = {}
        self.losses: list[StepLost] = []
        self.start_shadow()
        self.side_channel = UnreliableSideChannel(self.shadow, random.Random(f"side channel/{self.seed}"))
        self.ring = RingSimulation(
            self.job, self.group, self.simulation, [self.side_channel], self.seed, self.links, resync=self.resync
        )
        self.digits = Digits.load()
        self.states: dict[int, dict[str, torch.Tensor]] = {}
        self.published: dict[int, str | None] = {}
        self.ranks_differ: str | None = None

    def start_shadow(self) -> None:
        """Put a new shadow node in the place of the one that was there; the points of that one are on storage."""
        core = ShadowCore(self.job, self.group.shadows[0])
        points = [(point.report.epoch, step) for step, point in self.points.items()]
        core.group(self.group.name).resume(points, [(loss.epoch, loss.gap) for loss in self.losses])
        self.shadow = ShadowNode(core, lambda: self.simulation.now, observe=self._observe)
        there = Link(LinkPlan().uplink, random.Random(0))
        self.simulation.attach(self.shadow_place, ShadowHost(self.shadow), there, self.replica_link)

    def restart_shadow(self) -> None:
        """Kill the shadow node, and start it again."""
        self.start_shadow()
        self.side_channel.node = self.shadow

    def _observe(self, event: Event) -> None:
        if isinstance(event, StepReplicated):
            self.points[event.report.step] = event
        elif isinstance(event, StepLost):
            self.losses.append(event)

    def fresh_trainers(self) -> list[DataParallelTrainer]:
        return [
            DataParallelTrainer(self.job, self.group, rank, self.seed, self.digits)
            for rank in range(len(self.group.ring))
        ]

    def train(self, last: int) -> None:
        """Train up to step `last`, and compare what the shadow has published after each step."""
        for step in range(self.ring.trainers[0].step + 1, last + 1):
            self.ring.compute(step)
            self.ring.finish(step)
            self.note(step)

    def note(self, step: int) -> None:
        state = self.ring.trainers[0].state_tensors()
        self.states[step] = state
        for trainer in self.ring.trainers[1:]:
            self.ranks_differ = self.ranks_differ or first_difference(state, trainer.state_tensors())
        self.check_published()

    def check_published(self) -> None:
        """Compare the recovery points that are not compared yet with the trainer's states, bit for bit.

        The newest one is read back as a trainer would.
        """
        for step in (self.points.keys() & self.states.keys()) - self.published.keys():
            tensors = dict(self.points[step].snapshot.tensors)
            if self.shadow.core.group(self.group.name).ledger.point(step) is not None:
                point = self.side_channel.recovery_point(self.group.name, step)
                assert point.manifest.step == step
                tensors = point.tensors
            self.published[step] = first_difference(self.states[step], tensors)

    def status(self) -> Status:
        return self.side_channel.status(self.group.name)

    def close(self) -> None:
        self.switch.close()


def reference_states(job: Job, seed: int, steps: int) -> dict[int, dict[str, torch.Tensor]]:
    """Return the state after each step of a run without a network: what training must give whatever the links do."""
    torch.set_num_threads(1)
    return {step: trainers[0].state_tensors() for step, trainers in reference_run(job, job.groups[0], seed, steps)}
