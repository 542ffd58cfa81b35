"""The in-process fabric: the simulation with the embedded switch, P4Runtime and the side channel over real gRPC."""

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

from jobspec.model import Job
from jobspec.recovery_point import read_recovery_point
from jobspec.sidechannel.side_channel_pb2 import Status
from nccl_emu.digits import Digits
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
from softswitch.p4rt.device import Device
from softswitch.p4rt.server import serve as serve_switch
from topology.fabric import OnStep, TrainingPlan
from topology.faults import Fault, FaultyLink
from topology.links import Impairments, Link
from topology.port_captures import PortCaptures
from topology.ring_simulation import RingSimulation, ShadowHost
from topology.simulation import Simulation


class InprocFabric:
    """Everything in one process and in virtual time; the same cores as on a real network."""

    name = "inproc"

    def __init__(self, job: Job, out: Path, seed: int, faults: Sequence[Fault] = ()) -> None:
        """Prepare the fabric.

        Args:
            job: the job, with one group and one shadow node.
            out: folder for captures, events and checkpoints.
            seed: of ISNs, source ports and faults.
            faults: damage to replicas in the first epoch.
        """
        self.job = job
        self.target = ""
        self._group = job.groups[0]
        self._shadow_spec = job.shadow(self._group.shadows[0])
        self._out = out
        self._seed = seed
        self._faults = faults
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start switch and shadow."""
        torch.set_num_threads(1)  # as rank and shadow processes do
        job, stack = self.job, self._stack
        device = Device(job.switch.device_id)
        server = serve_switch(device)
        stack.callback(server.close)
        self.target = server.address
        captures = PortCaptures(self._out, {port: f"{job.switch.name}-eth{port}" for port in _used_ports(job)})
        stack.callback(captures.close)
        self._simulation = Simulation(lambda port, frame, now: device.inject(port, frame, int(now * 1e6)), captures.tap)
        publisher = DirectPublisher(RecoveryStore(self._out / "checkpoints"))
        core = ShadowCore(job, self._shadow_spec.name)
        events = EventLog(self._out / "events.jsonl")
        stack.callback(events.close)
        self._shadow = ShadowNode(core, lambda: self._simulation.now, publisher, events)
        stack.callback(self._shadow.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="checkmate-"))
        shadow_server = serve_shadow(self._shadow, f"unix:{folder}/shadow.sock")
        stack.callback(shadow_server.stop)
        self._side_channel = GrpcSideChannel(shadow_server.address)
        stack.callback(self._side_channel.close)
        clean = Impairments()
        self._replica_link = Link(clean, random.Random(self._seed))
        self._simulation.attach(
            self._shadow_spec.port, ShadowHost(self._shadow), Link(clean, random.Random(self._seed)), self._replica_link
        )
        self._digits = Digits.load()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop switch and shadow."""
        self._stack.close()

    def train(self, plan: TrainingPlan, on_step: OnStep) -> float:
        """Train one epoch; see `Fabric.train`."""
        ranks = range(len(self._group.ring))
        trainers = [self._trainer(rank, plan) for rank in ranks]
        seed = f"{self._seed}/{plan.epoch}"  # new processes: ISNs and ports of their own
        ring = RingSimulation(self.job, self._group, self._simulation, self._side_channel, seed)
        link = self._replica_link
        if plan.epoch == 1 and self._faults:
            link = FaultyLink(
                link, self.job, self._shadow_spec, trainers[0].layout, plan.first_step, self._faults, self._seed
            )
        self._simulation.replace_downlink(self._shadow_spec.port, link)
        with ExitStack() as stack:
            reporters = [Reporter(plan.logs, rank, plan.epoch, io.StringIO()) for rank in ranks]
            for reporter in reporters:
                stack.callback(reporter.close)
            ring.begin(trainers, plan.epoch)
            meters = [StepMeter(node, trainer) for node, trainer in zip(ring.nodes, trainers, strict=True)]
            for step in range(plan.first_step, plan.last_step + 1):
                ring.compute(step)
                ring.finish(step)
                for rank, trainer in enumerate(trainers):
                    state = trainer.state_safetensors()
                    result = meters[rank].result(state, self._simulation.now)
                    reporters[rank].step(result, state if rank == 0 else None)
                on_step(step, sum(trainer.loss for trainer in trainers) / len(trainers))
            ring.end()
        return trainers[0].accuracy()

    def settle(self, step: int) -> Status:
        """Return the shadow's status: in virtual time everything has arrived when training returns."""
        return self._side_channel.wait_for_step(self._group.name, step, 0.0)

    def _trainer(self, rank: int, plan: TrainingPlan) -> DataParallelTrainer:
        if plan.resume_from is None:
            return DataParallelTrainer(self.job, self._group, rank, self._seed, self._digits)
        return restore_trainer(read_recovery_point(plan.resume_from), self.job, self._group, rank, self._digits)


def _used_ports(job: Job) -> list[int]:
    group = job.groups[0]
    return [*(job.host(name).port for name in group.ring), *(job.shadow(name).port for name in group.shadows)]
