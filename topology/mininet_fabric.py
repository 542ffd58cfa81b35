"""The Mininet fabric: a namespace and a process for each rank and the shadow, a process for the switch."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jobspec.model import Host, Job, ShadowNode
from jobspec.sidechannel.side_channel_pb2 import Status
from nccl_emu.side_channel import GrpcSideChannel
from topology.fabric import OnStep, TrainingPlan
from topology.mininet_net import MininetNetwork
from topology.processes import Child, follow
from topology.switch_process import start_switch


class MininetFabric:
    """Everything real but the wires: veth pairs between namespaces."""

    name = "mininet"

    def __init__(self, job: Job, job_file: Path, out: Path, switch: str, seed: int, timeout: float) -> None:
        """Prepare the fabric.

        Args:
            job: the job, with one group and one shadow node.
            job_file: the same as a file, for the processes.
            out: folder for captures, logs, events and checkpoints.
            switch: ``softswitch`` or ``bmv2``.
            seed: of everything random in the ranks.
            timeout: seconds without progress after which to give up.
        """
        self.job = job
        self.target = ""
        self._job_file = job_file
        self._group = job.groups[0]
        self._shadow_spec = job.shadow(self._group.shadows[0])
        self._out = out
        self._switch = switch
        self._seed = seed
        self._timeout = timeout
        self._stack = ExitStack()
        self._watched: list[Child] = []

    def __enter__(self) -> Self:
        """Build the network, then start switch and shadow."""
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop shadow, switch and network, in this order."""
        self._stack.close()

    def _start(self) -> None:
        job, stack = self.job, self._stack
        logs = self._out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        ends: list[Host | ShadowNode] = [job.host(name) for name in self._group.ring]
        ends.append(self._shadow_spec)
        self._network = MininetNetwork(job, ends)
        stack.callback(self._network.stop)
        switch, self.target = start_switch(
            self._switch, job.switch, self._network.switch_interfaces, self._out, logs / "switch.log"
        )
        stack.callback(switch.stop)
        # A unix socket is the out-of-band management network: it crosses network namespaces. Its path must be short.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="checkmate-"))
        self._address = f"unix:{folder}/shadow.sock"
        name = self._shadow_spec.name
        command = [
            sys.executable, "-m", "shadow_rx", "--job", str(self._job_file), "--shadow", name,
            "--iface", self._network.interface(name), "--listen", self._address,
            "--store", str(self._out / "checkpoints"), "--events", str(self._out / "events.jsonl"),
            "--queue", "64",
        ]  # fmt: skip
        shadow = Child(f"shadow {name}", command, logs / f"{name}.log", attach_to=self._network.pid(name))
        stack.callback(shadow.stop)
        self._watched = [switch, shadow]
        ready = False

        def on_line(_: Child, line: dict[str, Any]) -> None:
            nonlocal ready
            ready = ready or line.get("event") == "ready"

        follow([shadow], on_line, lambda: ready, idle_limit=self._timeout)
        self._side_channel = GrpcSideChannel(self._address, self._timeout)
        stack.callback(self._side_channel.close)

    def train(self, plan: TrainingPlan, on_step: OnStep) -> float:
        """Train one epoch; see `Fabric.train`."""
        accuracy = 0.0
        finished: dict[int, int] = {}
        done = 0

        def on_line(_: Child, line: dict[str, Any]) -> None:
            nonlocal accuracy, done
            event = line.get("event")
            if event == "step" and line["rank"] == 0:
                on_step(int(line["step"]), float(line["loss"]))
            elif event == "done":
                done += 1
                finished[int(line["rank"])] = int(line["step"])
                if line["rank"] == 0:
                    accuracy = float(line["accuracy"])

        with ExitStack() as stack:
            ranks = [self._start_rank(rank, plan) for rank in range(len(self._group.ring))]
            for child in ranks:
                stack.callback(child.stop)
            follow(ranks, on_line, lambda: done == len(ranks), idle_limit=self._timeout + 30, watch=self._watched)
            for child in ranks:
                if child.wait(self._timeout) != 0:
                    raise child.failure("failed")
        return accuracy

    def settle(self, step: int) -> Status:
        """Wait until `step` is settled; what is not on storage yet is waited for too."""
        return self._side_channel.wait_for_step(self._group.name, step, self._timeout)

    def _start_rank(self, rank: int, plan: TrainingPlan) -> Child:
        name = self._group.ring[rank]
        command = [
            sys.executable, "-m", "nccl_emu", "--job", str(self._job_file), "--group", self._group.name,
            "--rank", str(rank), "--iface", self._network.interface(name), "--side-channel", self._address,
            "--epoch", str(plan.epoch), "--iterations", str(plan.last_step), "--seed", str(self._seed),
            "--out", str(plan.logs), "--timeout", str(self._timeout),
        ]  # fmt: skip
        if plan.resume_from is not None:
            command += ["--resume-from", str(plan.resume_from)]
        log = self._out / "logs" / f"{name}.log"
        return Child(f"rank {rank} ({name})", command, log, attach_to=self._network.pid(name))
