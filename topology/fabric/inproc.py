"""The in-process fabric: simulated links, embedded switches; P4Runtime and the side channel over real gRPC."""

from __future__ import annotations

import io
import os
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from checkmate_common.recovery.point import read_recovery_point
from checkmate_common.sidechannel.side_channel_pb2 import Status
from checkmate_common.tls.credentials import server_credentials
from jobspec.model import Group, Job
from jobspec.model import ShadowNode as ShadowSpec
from nccl_emu.shadow_client.reporter import Reporter
from nccl_emu.shadow_client.restore import restore_trainer
from nccl_emu.shadow_client.side_channel import GrpcSideChannel
from nccl_emu.shadow_client.step_meter import StepMeter
from nccl_emu.training.digits import Digits
from nccl_emu.training.trainer import DataParallelTrainer
from shadow_rx.assembly import LogFiles, ShadowAssembly
from shadow_rx.core import ShadowCore
from shadow_rx.peers.repair import use_peers
from shadow_rx.store.storage.crypto import find_keys
from shadow_rx.store.writer import RecoveryStore
from topology.fabric.base import OnStep, TrainingPlan
from topology.fabric.inproc_switch import InprocSwitch
from topology.fabric.local_peer import LocalPeer
from topology.fabric.participants import Participants, Track, switch_port
from topology.fabric.port_captures import PortCaptures
from topology.fabric.run_files import RunFiles
from topology.fabric.run_tls import RunTls
from topology.faults import Fault, FaultyLink
from topology.processes.switch_events import EventKind, EventPlan, SwitchEvent
from topology.processes.switch_supervisor import SwitchSupervisor
from topology.simulation.event_loop import Simulation, SwitchPort
from topology.simulation.links import Impairments, Link
from topology.simulation.ring_simulation import RingSimulation, ShadowHost

_MID_STEP_S = 2e-4
"""Virtual seconds during which a step's packets are on the network."""
_SWITCH_READY_S = 30.0
"""Seconds that the controller may take to make a switch ready."""


class InprocFabric:
    """Everything in one process and in virtual time, with the same cores as on a real network."""

    name = "inproc"

    def __init__(
        self, job: Job, out: Path, seed: int, faults: Sequence[Fault] = (), events: Sequence[SwitchEvent] = (),
        *, resync: bool = True, tls: RunTls | None = None,
    ) -> None:  # fmt: skip
        """Prepare the fabric.

        Args:
            job: the job.
            out: folder for captures, events and checkpoints.
            seed: of ISNs, source ports and faults.
            faults: damage to replicas of the first shadow node in the first epoch.
            events: restarts and failovers in the first epoch; for those of the switch the fabric runs a controller.
            resync: whether rank 0 uploads its state when a shadow node asks for it.
            tls: credentials of all parties, None for plain text.
        """
        self.job = job
        self.targets: dict[str, str] = {}
        self.event_log: list[str] = []
        self._participants = Participants(job)
        self._files = RunFiles(out, self._participants)
        self._out = out
        self._seed = seed
        self._resync = resync
        self._tls = tls or RunTls(job.name)
        self._rank_channels: dict[tuple[str, str], GrpcSideChannel] = {}
        self._faults = faults
        self._plan = EventPlan(events)
        self._supervisor: SwitchSupervisor | None = None
        self._rng = random.Random(f"events/{seed}")
        self._stack = ExitStack()
        self._shadows: dict[str, GrpcSideChannel] = {}
        self._hosts: dict[str, ShadowHost] = {}
        self._peers: dict[str, LocalPeer] = {}
        self._assemblies: dict[str, ShadowAssembly] = {}
        self._restart_shadow_next_step = False

    def __enter__(self) -> Self:
        """Start switches and shadow nodes."""
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop switches and shadow nodes."""
        self._stop()

    def _stop(self) -> None:
        with self._stack:
            for assembly in self._assemblies.values():
                assembly.close()

    def _start(self) -> None:
        torch.set_num_threads(1)  # as rank and shadow processes do
        stack = self._stack
        self._switches = {switch.name: self._start_switch(switch.name) for switch in self.job.switches}
        captures = PortCaptures(self._out, self._participants.switch_ports)
        stack.callback(captures.close)
        if self._plan.of_switch:
            [switch] = self._switches.values()
            supervisor = SwitchSupervisor(
                self.job, switch.address, switch.standby_address, _SWITCH_READY_S, self._tls.controller()
            )
            self._supervisor = stack.enter_context(supervisor)
        forward = {name: switch.forward for name, switch in self._switches.items()}
        self._simulation = Simulation(forward, captures.tap)
        for trunk in self.job.trunks:
            one, other = (SwitchPort(*end) for end in trunk.ends)
            self._simulation.add_trunk(one, other, self._clean_link(), self._clean_link())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="checkmate-")))
        for index, spec in enumerate(self._participants.shadows):
            address = self._start_shadow(spec, f"unix:{folder}/shadow-{index}.sock")
            self._shadows[spec.name] = GrpcSideChannel(address, tls=self._tls.operator())
            stack.callback(self._shadows[spec.name].close)
            link = self._clean_link()
            self._simulation.attach(switch_port(self.job, spec), self._hosts[spec.name], self._clean_link(), link)
        self._digits = Digits.load()

    def _start_switch(self, name: str) -> InprocSwitch:
        own = self._tls.switch(name)
        credentials = server_credentials(own) if own is not None else None
        device_id = self.job.switch_named(name).device_id
        switch = InprocSwitch(device_id, standby=self._plan.needs_standby, credentials=credentials)
        self._stack.callback(switch.close)
        self.targets[name] = switch.address
        return switch

    def _start_shadow(self, spec: ShadowSpec, address: str, after: int | None = None) -> str:
        """Start a shadow node, or restart one that was killed `after` a step; return its address."""
        simulation, files, own = self._simulation, self._files, self._tls.shadow(spec.name)
        resume = after is not None
        logs = LogFiles(
            files.events(spec.name), files.side_channel_log(spec.name, after),
            files.access_log(spec.name) if own is not None else None,
        )  # fmt: skip
        store = RecoveryStore(
            files.checkpoints(spec.name), policy=self.job.store, ring=find_keys(None, os.environ), resume=resume
        )
        core = ShadowCore(self.job, spec.name)
        assembly = ShadowAssembly(core, lambda: simulation.now, logs, store, resume=resume, tls=own)
        self._assemblies[spec.name] = assembly
        if resume:
            assembly.take_newer_points(self._peers)
        address = assembly.serve(address)
        use_peers(assembly.node, (shadow.name for shadow in self.job.shadows))
        self._peers[spec.name] = LocalPeer(assembly.node)
        self._hosts[spec.name] = ShadowHost(assembly.node, self._peers)
        return address

    def _restart_shadow(self, step: int) -> None:
        """Kill the first shadow node in the middle of the step after `step`; restart it with its storage."""
        spec = self._participants.shadows[0]
        port, address = switch_port(self.job, spec), self._shadows[spec.name].address
        self._simulation.run_for(self._rng.uniform(0, _MID_STEP_S))
        # Like SIGKILL: points that wait are not written.
        self._assemblies.pop(spec.name).kill()
        self._start_shadow(spec, address, step)
        self._simulation.attach(port, self._hosts[spec.name], self._clean_link(), self._simulation.downlink(port))
        self.event_log.append(f"{EventKind.RESTART_SHADOW}:{step}: {spec.name} was killed and started again")

    def _clean_link(self) -> Link:
        return Link(Impairments(), random.Random(self._seed))

    def train(self, plan: TrainingPlan, on_step: OnStep) -> float:
        """Train one epoch; see `Fabric.train`."""
        groups = self.job.groups
        trainers = [[self._trainer(group, rank, plan) for rank in range(len(group.ring))] for group in groups]
        seed = f"{self._seed}/{plan.epoch}"  # new ranks: ISNs and ports of their own
        rings = [RingSimulation(self.job, g, self._simulation, self._side_channels(g, g.ring[0]), seed,
                                resync=self._resync, channels_of=partial(self._side_channels, g))
                 for g in groups]  # fmt: skip
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
                if self._restart_shadow_next_step and plan.epoch == 1:
                    self._restart_shadow_next_step = False
                    self._restart_shadow(step - 1)
                for ring, measured, reported in zip(rings, meters, reporters, strict=True):
                    ring.finish(step)
                    for rank, trainer in enumerate(ring.trainers):
                        state = trainer.state_safetensors()
                        result = measured[rank].result(state, self._simulation.now)
                        reported[rank].step(result, state if rank == 0 else None)
                losses = [trainer.loss for ring in rings for trainer in ring.trainers]
                on_step(step, sum(losses) / len(losses))
                if plan.epoch == 1:
                    self._arm(step, self._frames() - before)
            for ring in rings:
                ring.end()
        return sum(of_group[0].accuracy() for of_group in trainers) / len(groups)

    def settle(self, step: int) -> dict[Track, Status]:
        """Return the status of every track: everything has arrived when training returns."""
        for host in self._hosts.values():
            host.ask_peers()
        return {(group, shadow): self._shadows[shadow].wait_for_step(group, step, 0.0)
                for group, shadow in self._participants.tracks}  # fmt: skip

    def _frames(self) -> int:
        return sum(switch.frames for switch in self._switches.values())

    def _arm(self, step: int, frames: int) -> None:
        """Schedule the events due after `step`, which had so many frames, within the next step."""
        for event in self._plan.due(step):
            if event.kind is EventKind.RESTART_SHADOW:
                self._restart_shadow_next_step = True
                continue
            assert self._supervisor is not None
            [switch] = self._switches.values()
            # In virtual time steps pass faster than a controller learns of connections.
            self._supervisor.await_prepared(len(self.job.flows))
            switch.arm(event, self._rng.randint(1, max(1, frames // 2)), self._supervisor, self._on_switch_event)

    def _on_switch_event(self, event: SwitchEvent, address: str) -> None:
        assert self._supervisor is not None
        [name] = self.targets
        self.targets[name] = address
        self.event_log.append(self._supervisor.outcome(event, name, address))

    def _side_channels(self, group: Group, host: str) -> list[GrpcSideChannel]:
        """Return the side channels of a rank's host; in plain text all hosts share them."""
        tls = self._tls.rank(host)
        for shadow in group.shadows if tls is not None else ():
            if (host, shadow) not in self._rank_channels:
                channel = GrpcSideChannel(self._shadows[shadow].address, tls=tls)
                self._rank_channels[host, shadow] = channel
                self._stack.callback(channel.close)
        return [self._rank_channels.get((host, shadow), self._shadows[shadow]) for shadow in group.shadows]

    def _damage(self, plan: TrainingPlan, trainer: DataParallelTrainer) -> None:
        """Damage the first shadow node's replicas in the first epoch; restore its link in later ones."""
        spec = self._participants.shadows[0]
        link = self._clean_link()
        if plan.epoch == 1 and self._faults:
            link = FaultyLink(link, self.job, spec, trainer.layout, plan.first_step, self._faults, self._seed)
        self._simulation.replace_downlink(switch_port(self.job, spec), link)

    def _trainer(self, group: Group, rank: int, plan: TrainingPlan) -> DataParallelTrainer:
        if not plan.resume_from:
            return DataParallelTrainer(self.job, group, rank, self._seed, self._digits)
        return restore_trainer(read_recovery_point(plan.resume_from[group.name]), self.job, group, rank, self._digits)
