"""The in-process fabric: the simulation with embedded switches, P4Runtime and the side channel over real gRPC."""

from __future__ import annotations

import io
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from jobspec.model import Group, Job
from jobspec.model import ShadowNode as ShadowSpec
from jobspec.recovery_point import read_recovery_point
from jobspec.sidechannel.side_channel_pb2 import Status
from nccl_emu.digits import Digits
from nccl_emu.fan_out import FanOutSideChannel
from nccl_emu.reporter import Reporter
from nccl_emu.restore import restore_trainer
from nccl_emu.side_channel import GrpcSideChannel
from nccl_emu.step_meter import StepMeter
from nccl_emu.trainer import DataParallelTrainer
from shadow_rx.core import ShadowCore
from shadow_rx.event_log import EventLog
from shadow_rx.node import ShadowNode
from shadow_rx.publisher import DirectPublisher
from shadow_rx.service import serve as serve_shadow
from shadow_rx.store import RecoveryStore
from topology.fabric import OnStep, TrainingPlan
from topology.faults import Fault, FaultyLink
from topology.inproc_switch import InprocSwitch
from topology.links import Impairments, Link
from topology.port_captures import PortCaptures
from topology.ring_simulation import RingSimulation, ShadowHost
from topology.roles import Roles, RunFiles, Track, place_of
from topology.simulation import Place, Simulation
from topology.switch_events import EventPlan, SwitchEvent
from topology.switch_keeper import SwitchKeeper

_PATIENCE_S = 30.0
"""Seconds that the controller may take to make a switch ready."""


class InprocFabric:
    """Everything in one process and in virtual time; the same cores as on a real network."""

    name = "inproc"

    def __init__(
        self, job: Job, out: Path, seed: int, faults: Sequence[Fault] = (), events: Sequence[SwitchEvent] = ()
    ) -> None:
        """Prepare the fabric.

        Args:
            job: the job.
            out: folder for captures, events and checkpoints.
            seed: of ISNs, source ports and faults.
            faults: damage, in the first epoch, to what the first shadow node is sent.
            events: what happens to the switch in the first epoch; the fabric then has a controller of its own.
        """
        self.job = job
        self.targets: dict[str, str] = {}
        self.happened: list[str] = []
        self._roles = Roles(job)
        self._files = RunFiles(out, self._roles)
        self._out = out
        self._seed = seed
        self._faults = faults
        self._plan = EventPlan(events)
        self._keeper: SwitchKeeper | None = None
        self._rng = random.Random(f"events/{seed}")
        self._stack = ExitStack()
        self._shadows: dict[str, GrpcSideChannel] = {}

    def __enter__(self) -> Self:
        """Start switches and shadow nodes."""
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop switches and shadow nodes."""
        self._stack.close()

    def _start(self) -> None:
        torch.set_num_threads(1)  # as rank and shadow processes do
        stack = self._stack
        self._switches = {switch.name: self._start_switch(switch.name) for switch in self.job.switches}
        captures = PortCaptures(self._out, self._roles.places)
        stack.callback(captures.close)
        if self._plan:
            [switch] = self._switches.values()
            keeper = SwitchKeeper(self.job, switch.address, switch.standby_address, _PATIENCE_S)
            self._keeper = stack.enter_context(keeper)
        forward = {name: switch.forward for name, switch in self._switches.items()}
        self._simulation = Simulation(forward, captures.tap)
        for trunk in self.job.trunks:
            one, other = (Place(*end) for end in trunk.ends)
            self._simulation.join(one, other, self._clean_link(), self._clean_link())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="checkmate-")))
        for index, spec in enumerate(self._roles.shadows):
            self._start_shadow(spec, f"unix:{folder}/shadow-{index}.sock")
        self._digits = Digits.load()

    def _start_switch(self, name: str) -> InprocSwitch:
        switch = InprocSwitch(self.job.switch_named(name).device_id, standby=self._plan.needs_standby)
        self._stack.callback(switch.close)
        self.targets[name] = switch.address
        return switch

    def _start_shadow(self, spec: ShadowSpec, address: str) -> None:
        stack, simulation = self._stack, self._simulation
        events = EventLog(self._files.events(spec.name))
        stack.callback(events.close)
        publisher = DirectPublisher(RecoveryStore(self._files.checkpoints(spec.name)))
        node = ShadowNode(ShadowCore(self.job, spec.name), lambda: simulation.now, publisher, events)
        stack.callback(node.close)
        server = serve_shadow(node, address)
        stack.callback(server.stop)
        self._shadows[spec.name] = GrpcSideChannel(server.address)
        stack.callback(self._shadows[spec.name].close)
        simulation.attach(place_of(self.job, spec), ShadowHost(node), self._clean_link(), self._clean_link())

    def _clean_link(self) -> Link:
        return Link(Impairments(), random.Random(self._seed))

    def train(self, plan: TrainingPlan, on_step: OnStep) -> float:
        """Train one epoch; see `Fabric.train`."""
        groups = self.job.groups
        trainers = [[self._trainer(group, rank, plan) for rank in range(len(group.ring))] for group in groups]
        seed = f"{self._seed}/{plan.epoch}"  # new processes: ISNs and ports of their own
        rings = [RingSimulation(self.job, g, self._simulation, self._side_channel(g), seed) for g in groups]
        self._damage(plan, trainers[0][0])
        with ExitStack() as stack:
            reporters = [
                [Reporter(self._files.rank_logs(plan.logs, group), rank, plan.epoch, io.StringIO())
                 for rank in range(len(group.ring))] for group in groups
            ]  # fmt: skip
            for reporter in (one for of_group in reporters for one in of_group):
                stack.callback(reporter.close)
            for ring, members in zip(rings, trainers, strict=True):
                ring.begin(members, plan.epoch)
            meters = [[StepMeter(n, t) for n, t in zip(ring.nodes, ring.trainers, strict=True)] for ring in rings]
            for step in range(plan.first_step, plan.last_step + 1):
                before = self._frames()
                # All groups have their all-reduce on the network at the same time.
                for ring in rings:
                    ring.compute(step)
                for ring, measured, told in zip(rings, meters, reporters, strict=True):
                    ring.finish(step)
                    for rank, trainer in enumerate(ring.trainers):
                        state = trainer.state_safetensors()
                        result = measured[rank].result(state, self._simulation.now)
                        told[rank].step(result, state if rank == 0 else None)
                losses = [trainer.loss for ring in rings for trainer in ring.trainers]
                on_step(step, sum(losses) / len(losses))
                if plan.epoch == 1:
                    self._arm(step, self._frames() - before)
            for ring in rings:
                ring.end()
        return sum(of_group[0].accuracy() for of_group in trainers) / len(groups)

    def settle(self, step: int) -> dict[Track, Status]:
        """Return the shadows' status: in virtual time everything has arrived when training returns."""
        return {(group, shadow): self._shadows[shadow].wait_for_step(group, step, 0.0)
                for group, shadow in self._roles.tracks}  # fmt: skip

    def _frames(self) -> int:
        return sum(switch.frames for switch in self._switches.values())

    def _arm(self, step: int, frames: int) -> None:
        """Let what is due after `step`, which had so many frames, happen within the next one."""
        for event in self._plan.due(step):
            assert self._keeper is not None
            [switch] = self._switches.values()
            # In virtual time steps pass faster than a controller hears of connections.
            self._keeper.await_prepared(len(self.job.flows))
            switch.arm(event, self._rng.randint(1, max(1, frames // 2)), self._keeper, self._note)

    def _note(self, event: SwitchEvent, address: str) -> None:
        assert self._keeper is not None
        [name] = self.targets
        self.targets[name] = address
        self.happened.append(self._keeper.outcome(event, name, address))

    def _side_channel(self, group: Group) -> FanOutSideChannel:
        return FanOutSideChannel([self._shadows[name] for name in group.shadows])

    def _damage(self, plan: TrainingPlan, trainer: DataParallelTrainer) -> None:
        """Put the faults on the way to the first shadow node in the first epoch, and nothing there later."""
        spec = self._roles.shadows[0]
        link = self._clean_link()
        if plan.epoch == 1 and self._faults:
            link = FaultyLink(link, self.job, spec, trainer.layout, plan.first_step, self._faults, self._seed)
        self._simulation.replace_downlink(place_of(self.job, spec), link)

    def _trainer(self, group: Group, rank: int, plan: TrainingPlan) -> DataParallelTrainer:
        if not plan.resume_from:
            return DataParallelTrainer(self.job, group, rank, self._seed, self._digits)
        return restore_trainer(read_recovery_point(plan.resume_from[group.name]), self.job, group, rank, self._digits)
