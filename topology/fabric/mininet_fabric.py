"""The Mininet fabric: a namespace and a process for each rank and shadow node, a process for each switch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from checkmate_common.files.private_files import make_private_folder
from checkmate_common.sidechannel.side_channel_pb2 import Status
from checkmate_common.tls import Role
from jobspec.model import Group, Host, Job, ShadowNode
from nccl_emu.shadow_client.side_channel import GrpcSideChannel
from topology.fabric.base import OnStep, TrainingPlan
from topology.fabric.mininet_injections import MininetInjections, as_json
from topology.fabric.mininet_net import MininetNetwork, standby_of
from topology.fabric.participants import Participants, Track
from topology.fabric.run_files import RunFiles
from topology.fabric.run_tls import RunTls
from topology.processes.child import Child, follow
from topology.processes.fork_server import ForkServer
from topology.processes.switch_events import EventKind, EventPlan, SwitchEvent
from topology.processes.switch_process import start_switch
from topology.processes.switch_supervisor import SwitchSupervisor


class MininetFabric:
    """Everything is real except the wires, which are veth pairs between namespaces."""

    name = "mininet"

    def __init__(
        self, job: Job, job_file: Path, out: Path, switch: str, seed: int, timeout: float,
        events: Sequence[SwitchEvent] = (), *, resync: bool = True, tls: RunTls | None = None,
        injections: MininetInjections | None = None,
    ) -> None:  # fmt: skip
        """Prepare the fabric.

        Args:
            job: the job.
            job_file: its job file, for the processes.
            out: folder for captures, logs, events and checkpoints.
            switch: ``softswitch`` or ``bmv2``.
            seed: of everything random in the ranks.
            timeout: seconds without progress after which to give up.
            events: restarts and failovers in the first epoch; for those of the switch the fabric runs a controller.
            resync: whether rank 0 uploads its state when a shadow node asks for it.
            tls: credentials of all parties, None for plain text.
            injections: faults of links and shadow node.
        """
        self.job = job
        self.event_log: list[str] = []
        self.targets: dict[str, str] = {}
        self._job_file = job_file
        self._participants = Participants(job)
        self._files = RunFiles(out, self._participants)
        self._out = out
        self._switch = switch
        self._seed = seed
        self._resync = resync
        self._tls = tls or RunTls(job.name)
        self._timeout = timeout
        self._stack = ExitStack()
        self._watched: list[Child] = []
        self._switches: dict[str, Child] = {}
        self._plan = EventPlan(events)
        self._supervisor: SwitchSupervisor | None = None
        self._shadows: dict[str, GrpcSideChannel] = {}
        self._shadow_processes: dict[str, Child] = {}
        self._injections = injections or MininetInjections()
        self._interfaces: dict[str, list[str]] = {}

    @property
    def side_channels(self) -> dict[str, str]:
        """Address of each shadow node's side channel."""
        return {name: channel.address for name, channel in self._shadows.items()}

    def link_stats(self, name: str) -> Path:
        """Return the file with an impaired link's statistics, written when the fabric stops."""
        return self._out / "logs" / f"link-{name}.json"

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
        make_private_folder(logs)
        self._fork_server = stack.enter_context(ForkServer(logs / "start.log"))
        standby = self._plan.needs_standby
        self._network = MininetNetwork(
            self.job, [*self._participants.hosts, *self._participants.shadows], standby=standby
        )
        stack.callback(self._network.stop)
        self._impair_links()
        for spec in self.job.switches:
            self.targets[spec.name] = self._start_switch(spec.name, self._out)
        if self._plan.of_switch:
            [(name, primary)] = self.targets.items()
            self._standby = self._start_switch(standby_of(name), self._out) if standby else None
            supervisor = SwitchSupervisor(self.job, primary, self._standby, self._timeout, self._tls.controller())
            self._supervisor = stack.enter_context(supervisor)
        # Unix sockets are the out-of-band management network: they cross network namespaces. Their paths must be short.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="checkmate-")))
        shadows = []
        self._addresses = {n.name: f"unix:{folder}/shadow-{i}.sock" for i, n in enumerate(self._participants.shadows)}
        for node in self._participants.shadows:
            address = self._addresses[node.name]
            shadows.append(self._start_shadow(node, address))
            self._shadows[node.name] = GrpcSideChannel(address, self._timeout, self._tls.operator())
            stack.callback(self._shadows[node.name].close)
        ready: set[str] = set()

        def on_line(child: Child, line: dict[str, Any]) -> None:
            if line.get("event") == "ready":
                ready.add(child.name)

        follow(shadows, on_line, lambda: len(ready) == len(shadows), idle_limit=self._timeout)
        if not self._injections.shadow_may_crash:
            self._watched += shadows

    def _impair_links(self) -> None:
        """Start a bridge process on each link to impair, between its host and the switch."""
        bridges, ready = [], set[str]()
        participants: list[Host | ShadowNode] = [*self._participants.hosts, *self._participants.shadows]
        ends = {end.name: end for end in participants}
        for name, (uplink, downlink) in self._injections.links.items():
            near, far = self._network.divide(ends[name])
            arguments = [
                "--inside", far,
                "--outside", self._network.interfaces(name)[0], "--uplink", as_json(uplink),
                "--downlink", as_json(downlink), "--seed", f"{name}/{self._seed}",
                "--stats", str(self.link_stats(name).absolute()),
            ]  # fmt: skip
            log = self._out / "logs" / f"link-{name}.log"
            bridge, within = "topology.simulation.impairing_bridge", self._network.pid(name)
            bridges.append(self._fork_server.start(f"link of {name}", bridge, arguments, log, within=within))
            self._stack.callback(bridges[-1].stop)
            self._interfaces[name] = [near]
        if bridges:
            follow(bridges, lambda child, _: ready.add(child.name), lambda: len(ready) == len(bridges),
                   idle_limit=self._timeout)  # fmt: skip
        self._watched += bridges

    def _interfaces_of(self, name: str) -> list[str]:
        """Return the interfaces that a host uses: its end of the impaired link, if its link is impaired."""
        return self._interfaces.get(name) or self._network.interfaces(name)

    def _start_switch(self, name: str, captures: Path, address: str | None = None) -> str:
        """Start the switch or standby `name`; return its P4Runtime address."""
        spec = next(s for s in self.job.switches if name in (s.name, standby_of(s.name)))
        log = self._out / "logs" / (f"switch-{name}.log" if name != self.job.switches[0].name else "switch.log")
        primary, spec = spec.name, spec.model_copy(update={"name": name})
        interfaces = self._network.switch_interfaces(name)
        child, address = start_switch(
            self._switch, spec, interfaces, captures, log, address, self._tls, certificate=primary
        )
        self._stack.callback(child.stop)
        self._switches[name] = child
        self._watched.append(child)
        return address

    def _start_shadow(self, node: ShadowNode, address: str, after: int | None = None) -> Child:
        """Start a shadow node, or restart one that was killed `after` a step."""
        program, *first = self._injections.shadow_program if after is None else ("shadow_rx",)
        arguments = [
            *first, "--job", str(self._job_file), "--shadow", node.name,
            "--listen", address,
            "--store", str(self._files.checkpoints(node.name)), "--events", str(self._files.events(node.name)),
            "--side-channel-log", str(self._files.side_channel_log(node.name, after)), "--waiting-points", "64",
            *(["--resume"] if after is not None else []),
        ]  # fmt: skip
        for interface in self._interfaces_of(node.name):
            arguments += ["--iface", interface]
        sharing = {name for group in self.job.groups if node.name in group.shadows for name in group.shadows}
        for name in sorted(sharing - {node.name}):
            arguments += ["--peer", f"{name}={self._addresses[name]}"]
        secured = self._tls.arguments(Role.SHADOW, node.name)
        arguments += [*secured, *(["--access-log", str(self._files.access_log(node.name))] if secured else [])]
        log = self._out / "logs" / f"{node.name}.log"
        child = self._fork_server.start(
            f"shadow {node.name}", program, arguments, log, within=self._network.pid(node.name)
        )  # fmt: skip
        self._stack.callback(child.stop)
        self._shadow_processes[node.name] = child
        return child

    def _restart_shadow(self, event: SwitchEvent) -> None:
        """Kill the first shadow node and restart it with its storage; the ranks train on meanwhile."""
        node = self._participants.shadows[0]
        child = self._shadow_processes[node.name]
        if child in self._watched:
            self._watched.remove(child)
        child.kill()
        self._watched.append(self._start_shadow(node, self._shadows[node.name].address, event.step))
        self.event_log.append(f"{event}: {node.name} was killed and started again")

    def restart_dead_shadow(self, step: int) -> None:
        """Restart the first shadow node if it was meant to end by itself and has done so by `step`."""
        node = self._participants.shadows[0]
        child = self._shadow_processes[node.name]
        if self._injections.shadow_may_crash and not child.running:
            self._watched.append(self._start_shadow(node, self._shadows[node.name].address, step))
            self.event_log.append(f"{node.name} died by step {step} and was started again")

    def train(self, plan: TrainingPlan, on_step: OnStep) -> float:
        """Train one epoch; see `Fabric.train`."""
        losses: dict[int, list[float]] = {}
        accuracies: list[float] = []
        done, newest = 0, plan.first_step

        def over() -> bool:
            self.restart_dead_shadow(newest)
            return done == len(ranks) or (plan.kill_after is not None and newest >= plan.kill_after)

        def on_line(_: Child, line: dict[str, Any]) -> None:
            nonlocal done, newest
            event = line.get("event")
            if event == "step" and line["rank"] == 0:
                newest = max(newest, int(line["step"]))
                group_losses = losses.setdefault(int(line["step"]), [])
                group_losses.append(float(line["loss"]))
                if len(group_losses) == len(self.job.groups):
                    on_step(int(line["step"]), sum(group_losses) / len(group_losses))
                    if plan.epoch == 1:
                        self._run_events(int(line["step"]))
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
            follow(ranks, on_line, over, idle_limit=self._timeout + 30, watch=self._watched)
            if plan.kill_after is not None:
                for child in ranks:
                    child.kill()
                return float("nan")
            for child in ranks:
                if child.wait(self._timeout) != 0:
                    raise child.failure("failed")
        return sum(accuracies) / len(accuracies)

    def _run_events(self, step: int) -> None:
        """Run the events due after `step`; the ranks are in the middle of the next step."""
        for event in self._plan.due(step):
            if event.kind is EventKind.RESTART_SHADOW:
                self._restart_shadow(event)
                continue
            assert self._supervisor is not None
            [(name, address)] = self.targets.items()
            child, times = self._switches[name], self._supervisor.installations(address)
            self._watched.remove(child)
            child.kill()
            if event.kind is EventKind.RESTART:
                # The new process would overwrite the captures of the old one.
                captures = self._out / f"captures-after-{step:08d}"
                make_private_folder(captures)
                self._start_switch(name, captures, address)
                self._supervisor.await_installed(address, times + 1)
            else:
                assert self._standby is not None
                self._network.set_ports_down(name)
                self.targets[name] = self._standby
            self.event_log.append(self._supervisor.outcome(event, name, self.targets[name]))

    def settle(self, step: int) -> dict[Track, Status]:
        """See `Fabric.settle`; also wait for points that are not on storage yet."""
        return {(group, shadow): self._shadows[shadow].wait_for_step(group, step, self._timeout)
                for group, shadow in self._participants.tracks}  # fmt: skip

    def _start_rank(self, group: Group, rank: int, plan: TrainingPlan) -> Child:
        name = group.ring[rank]
        arguments = [
            "--job", str(self._job_file), "--group", group.name,
            "--rank", str(rank), "--iface", ",".join(self._interfaces_of(name)),
            "--epoch", str(plan.epoch), "--iterations", str(plan.last_step), "--seed", str(self._seed),
            "--out", str(self._files.rank_logs(plan.logs, group)), "--timeout", str(self._timeout),
        ]  # fmt: skip
        for shadow in group.shadows:
            arguments += ["--side-channel", self._shadows[shadow].address]
        arguments += self._tls.arguments(Role.RANK, name)
        if not self._resync:
            arguments.append("--no-resync")
        if plan.resume_from:
            arguments += ["--resume-from", str(plan.resume_from[group.name])]
        log = self._out / "logs" / f"{name}.log"
        return self._fork_server.start(
            f"rank {rank} ({name})", "nccl_emu", arguments, log, within=self._network.pid(name)
        )
