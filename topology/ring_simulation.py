"""Training in the simulation: the ranks of one group, each a `RankNode` and a trainer, step by step in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jobspec.model import Group, Job
from nccl_emu.rank_node import RankNode
from nccl_emu.side_channel import SideChannel
from nccl_emu.tcp import TcpConfig
from nccl_emu.trainer import DataParallelTrainer
from shadow_rx.node import ShadowNode
from topology.errors import TestbedError
from topology.links import Impairments, Link
from topology.roles import place_of
from topology.simulation import Simulation, Stalled


@dataclass(frozen=True)
class LinkPlan:
    """Impairments by kind of link."""

    uplink: Impairments = field(default_factory=Impairments)
    """From a rank to the switch: before replication."""
    downlink: Impairments = field(default_factory=Impairments)
    """From the switch to a rank: after replication."""
    replica: Impairments = field(default_factory=Impairments)
    """From the switch to a shadow node."""


class ShadowHost:
    """A shadow node as a host of the simulation: it takes frames and sends none."""

    def __init__(self, node: ShadowNode) -> None:
        """Feed `node`."""
        self.node = node

    def on_frame(self, frame: bytes, now: float) -> None:
        """Take a replica; the node reads the simulation's clock itself."""
        self.node.on_frames([frame])

    def on_timer(self, now: float) -> None:
        """Do nothing: a shadow has no timers."""

    def next_timer(self) -> float | None:
        """Return None."""
        return None

    def take_frames(self) -> list[bytes]:
        """Return nothing."""
        return []


class RingSimulation:
    """One group's ranks on a simulated network, over all epochs of the group."""

    def __init__(
        self,
        job: Job,
        group: Group,
        simulation: Simulation,
        side_channel: SideChannel,
        seed: int | str,
        links: LinkPlan | None = None,
        tcp: TcpConfig | None = None,
        patience: float = 600.0,
    ) -> None:
        """Put the ranks' hosts on the network; nothing is sent yet.

        Args:
            job: the job.
            group: its group to simulate.
            simulation: the network, with the switch.
            side_channel: to the group's shadow node, or to all of them.
            seed: of link impairments, ISNs and source ports.
            links: impairments of the ranks' links.
            tcp: parameters of the ranks' connections.
            patience: virtual seconds that a step may take.
        """
        plan = links or LinkPlan()
        self.job = job
        self.group = group
        self.simulation = simulation
        self.nodes = [RankNode(job, group, rank, tcp) for rank in range(len(group.ring))]
        self.trainers: list[DataParallelTrainer] = []
        self.epoch = 0
        self._side_channel = side_channel
        self._patience = patience
        self._rngs = [random.Random(f"rank/{seed}/{group.name}/{rank}") for rank in range(len(group.ring))]
        for node in self.nodes:
            links_rng = random.Random(f"links/{seed}/{node.host.name}")
            simulation.attach(
                place_of(job, node.host), node, Link(plan.uplink, links_rng), Link(plan.downlink, links_rng)
            )

    def begin(self, trainers: Sequence[DataParallelTrainer], epoch: int) -> None:
        """Begin an epoch with `trainers` (one a rank, all after the same step): attach, announce the flows, connect.

        Raises:
            TestbedError: the connections do not come up.
            SideChannelError: the shadow refuses.
        """
        self.trainers = list(trainers)
        self.epoch = epoch
        if self._side_channel.attach(trainers[0].attach_request(epoch)).need_state:
            self._side_channel.upload_state(self.group.name, epoch, trainers[0].state_safetensors())
        first_step = trainers[0].step + 1
        now = self.simulation.now
        for node, rng in zip(self.nodes, self._rngs, strict=True):
            node.connect(epoch, first_step, trainers[0].layout, now, rng)
            for flow_id, source_port in node.flows_to_open():
                self._side_channel.open_flow(self.group.name, epoch, flow_id, source_port)
        for node in self.nodes:
            node.open(now)
            self.simulation.kick(place_of(self.job, node.host))
        self._run_until(lambda: all(node.connected for node in self.nodes), "the connections")

    def compute(self, step: int) -> None:
        """Let every rank compute its gradient of `step` and begin the all-reduce."""
        for trainer in self.trainers:
            trainer.compute(step)
        for node, trainer in zip(self.nodes, self.trainers, strict=True):
            node.start_all_reduce(step, trainer.buckets, self.simulation.now)
            self.simulation.kick(place_of(self.job, node.host))

    def finish(self, step: int) -> None:
        """Complete the all-reduce of `step`, let every rank apply it and tell the shadow.

        Raises:
            TestbedError: the all-reduce does not complete.
        """
        self._run_until(lambda: all(node.done for node in self.nodes), f"step {step}")
        for trainer in self.trainers:
            trainer.apply(step)
        for trainer in self.trainers:
            self._side_channel.record_step(trainer.step_record(step, self.epoch))

    def end(self) -> None:
        """Close the connections, and let what is still in flight arrive."""
        for node in self.nodes:
            node.close(self.simulation.now)
            self.simulation.kick(place_of(self.job, node.host))
        self._run_until(lambda: all(node.closed or node.error is not None for node in self.nodes), "the close")
        self.simulation.drain(1.0)

    def crash(self, *, silent: bool = False) -> None:
        """Drop all connections as crashed processes do; what is in flight stays in flight."""
        for node in self.nodes:
            node.abort(self.simulation.now, silent=silent)
            self.simulation.kick(place_of(self.job, node.host))

    def _run_until(self, condition: Callable[[], bool], what: str) -> None:
        def over() -> bool:
            return condition() or any(node.error is not None for node in self.nodes)

        try:
            self.simulation.run_until(over, self._patience)
        except Stalled as stalled:
            waiting = "; ".join(f"rank {node.rank} waits for {node.waits_for()}" for node in self.nodes)
            raise TestbedError(what, f"{stalled}; {waiting}") from stalled
        if not condition():
            errors = [f"rank {node.rank}: {node.error}" for node in self.nodes if node.error is not None]
            raise TestbedError(what, "; ".join(errors))
