"""The Mininet fabric: a namespace and a process for each rank and shadow node, a process for each switch."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jobspec.model import Group, Job, ShadowNode
from jobspec.sidechannel.side_channel_pb2 import Status
from nccl_emu.side_channel import GrpcSideChannel
from topology.fabric import OnStep, TrainingPlan
from topology.mininet_net import MininetNetwork
from topology.processes import Child, follow
from topology.roles import Roles, RunFiles, Track
from topology.switch_process import start_switch


class MininetFabric:
    """Everything real but the wires: veth pairs between namespaces."""

    name = "mininet"

    def __init__(self, job: Job, job_file: Path, out: Path, switch: str, seed: int, timeout: float) -> None:
        """Prepare the fabric.

        Args:
            job: the job.
            job_file: the same as a file, for the processes.
            out: folder for captures, logs, events and checkpoints.
            switch: ``softswitch`` or ``bmv2``.
            seed: of everything random in the ranks.
            timeout: seconds without progress after which to give up.
        """
        self.job = job
        self.targets: dict[str, str] = {}
        self._job_file = job_file
        self._roles = Roles(job)
        self._files = RunFiles(out, self._roles)
        self._out = out
        self._switch = switch
        self._seed = seed
        self._timeout = timeout
        self._stack = ExitStack()
        self._watched: list[Child] = []
        self._shadows: dict[str, GrpcSideChannel] = {}

    def __enter__(self) -> Self:
        """Build the network, then start switches and shadow nodes."""
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop shadow nodes, switches and network, in this order."""
        self._stack.close()

    def _start(self) -> None:
        stack, logs = self._stack, self._out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._network = MininetNetwork(self.job, [*self._roles.hosts, *self._roles.shadows])
        stack.callback(self._network.stop)
        for spec in self.job.switches:
            log = logs / (f"switch-{spec.name}.log" if len(self.job.switches) > 1 else "switch.log")
            switch, self.targets[spec.name] = start_switch(
                self._switch, spec, self._network.switch_interfaces(spec.name), self._out, log
            )
            stack.callback(switch.stop)
            self._watched.append(switch)
        # A unix socket is the out-of-band management network: it crosses network namespaces. Its path must be short.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="checkmate-")))
        shadows = []
        for index, node in enumerate(self._roles.shadows):
            shadows.append(self._start_shadow(node, f"unix:{folder}/shadow-{index}.sock"))
        ready: set[str] = set()

        def on_line(child: Child, line: dict[str, Any]) -> None:
            if line.get("event") == "ready":
                ready.add(child.name)

        follow(shadows, on_line, lambda: len(ready) == len(shadows), idle_limit=self._timeout)
        self._watched += shadows

    def _start_shadow(self, node: ShadowNode, address: str) -> Child:
        command = [
            sys.executable, "-m", "shadow_rx", "--job", str(self._job_file), "--shadow", node.name,
            "--iface", self._network.interface(node.name), "--listen", address,
            "--store", str(self._files.checkpoints(node.name)), "--events", str(self._files.events(node.name)),
            "--queue", "64",
        ]  # fmt: skip
        log = self._out / "logs" / f"{node.name}.log"
        child = Child(f"shadow {node.name}", command, log, attach_to=self._network.pid(node.name))
        self._stack.callback(child.stop)
        self._shadows[node.name] = GrpcSideChannel(address, self._timeout)
        self._stack.callback(self._shadows[node.name].close)
        return child

    def train(self, plan: TrainingPlan, on_step: OnStep) -> float:
        """Train one epoch; see `Fabric.train`."""
        losses: dict[int, list[float]] = {}
        accuracies: list[float] = []
        done = 0

        def on_line(_: Child, line: dict[str, Any]) -> None:
            nonlocal done
            event = line.get("event")
            if event == "step" and line["rank"] == 0:
                told = losses.setdefault(int(line["step"]), [])
                told.append(float(line["loss"]))
                if len(told) == len(self.job.groups):
                    on_step(int(line["step"]), sum(told) / len(told))
            elif event == "done":
                done += 1
                if line["rank"] == 0:
                    accuracies.append(float(line["accuracy"]))

        with ExitStack() as stack:
            ranks = []
            for group in self.job.groups:
                for rank in range(len(group.ring)):
                    ranks.append(self._start_rank(group, rank, plan))
                    stack.callback(ranks[-1].stop)
            follow(ranks, on_line, lambda: done == len(ranks), idle_limit=self._timeout + 30, watch=self._watched)
            for child in ranks:
                if child.wait(self._timeout) != 0:
                    raise child.failure("failed")
        return sum(accuracies) / len(accuracies)

    def settle(self, step: int) -> dict[Track, Status]:
        """Wait until `step` is settled; what is not on storage yet is waited for too."""
        return {(group, shadow): self._shadows[shadow].wait_for_step(group, step, self._timeout)
                for group, shadow in self._roles.tracks}  # fmt: skip

    def _start_rank(self, group: Group, rank: int, plan: TrainingPlan) -> Child:
        name = group.ring[rank]
        command = [
            sys.executable, "-m", "nccl_emu", "--job", str(self._job_file), "--group", group.name,
            "--rank", str(rank), "--iface", self._network.interface(name),
            "--epoch", str(plan.epoch), "--iterations", str(plan.last_step), "--seed", str(self._seed),
            "--out", str(self._files.rank_logs(plan.logs, group)), "--timeout", str(self._timeout),
        ]  # fmt: skip
        for shadow in group.shadows:
            command += ["--side-channel", self._shadows[shadow].address]
        if plan.resume_from:
            command += ["--resume-from", str(plan.resume_from[group.name])]
        log = self._out / "logs" / f"{name}.log"
        return Child(f"rank {rank} ({name})", command, log, attach_to=self._network.pid(name))
