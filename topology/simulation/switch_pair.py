"""Two embedded switches and their controller in virtual time: the primary can be killed, then restarted or replaced.

The controller is the real `ControllerCore`, which acts over real P4Runtime connections. Only its threads are missing,
so that a seed gives one history; it learns of every connection at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from controlplane.controller import Connect, ControllerCore, Idle, Install, Mirror
from controlplane.desired import desired_state
from controlplane.digests import FlowStarts
from controlplane.target import Target
from jobspec.model import Job
from p4src.constants import NotReplicated
from packets.frame import parse_frame
from packets.segment import TcpFlags
from packets.template import PacketError
from topology.errors import TestbedError
from topology.simulation.simulated_switch import EmbeddedSwitch

PRIMARY, STANDBY = "primary", "standby"
_DIGEST_S = 10.0


class _ControlledSwitch(EmbeddedSwitch):
    """A running switch and the controller's connection to it."""

    def __init__(self, device_id: int) -> None:
        super().__init__(device_id)
        self.target = Target.connect(self.address, device_id, election_id=1)
        self.starts: FlowStarts = self.target.flow_starts()

    def close(self) -> None:
        self.target.close()
        super().close()


@dataclass
class Failure:
    """How and when the primary fails."""

    at_frame: int
    """Last frame that it forwards, counted from the call of `SwitchPair.arm`."""
    downtime: float | None
    """Virtual seconds until it is restarted; None: the standby takes over at once."""
    torn: bool = False
    """Whether only some copies of its last frame leave it."""


@dataclass
class SwitchPair:
    """Implements `SimulatedSwitch`."""

    job: Job
    seed: int = 0
    restore: bool = True
    """Whether the controller restores `flow_base`; False proves that the tests would notice."""
    frames: int = 0
    """Frames that arrived."""
    dropped: int = 0
    """Frames that arrived while no switch was running."""
    torn: list[tuple[int, bytes]] = field(default_factory=list)
    """(port, copy) of each copy of its last frame that the primary did not send."""
    lost_start: bool = False
    """Whether the primary's last frame began a connection that the controller was never told of."""

    def __post_init__(self) -> None:
        """Start both switches and let the controller install the job."""
        self.core = ControllerCore([PRIMARY, STANDBY], desired_state([self.job]))
        self.active = PRIMARY
        self._running = {name: _ControlledSwitch(self.job.switch.device_id) for name in self.core.switches}
        self._rng = random.Random(f"pair/{self.seed}")
        self._failure: Failure | None = None
        self._last_frame = 0
        self._back_at: float | None = None
        for name in self._running:
            self.core.connected(name, 0.0)
        self._run_controller(0.0)

    def arm(self, failure: Failure) -> None:
        """Schedule a failure of the primary."""
        self._failure = failure
        self._last_frame = self.frames + failure.at_frame

    @property
    def has_failed(self) -> bool:
        """Whether the primary has failed and a switch runs again."""
        return self._failure is None and self.active in self._running

    def forward(self, port: int, frame: bytes, now: float) -> list[tuple[int, bytes]]:
        """See `SimulatedSwitch`."""
        self.frames += 1
        if self._back_at is not None and now >= self._back_at:
            self._restart(now)
        running = self._running.get(self.active)
        if running is None:
            self.dropped += 1
            return []
        copies = running.forward(port, frame, now)
        if self._failure is not None and self.frames >= self._last_frame:
            self.lost_start = self._begins_unknown(frame, copies)
            return self._fail(self._failure, copies, now)
        self._report_connection(self.active, frame, copies, now)
        return copies

    def unknown_isn(self) -> int:
        """Return how many packets the active switch did not replicate for want of their connection's ISN."""
        _, counters = self._running[self.active].target.read_counters()
        return counters.not_replicated[NotReplicated.UNKNOWN_ISN].packets

    def close(self) -> None:
        """See `SimulatedSwitch`."""
        for running in self._running.values():
            running.close()

    def _fail(self, failure: Failure, copies: list[tuple[int, bytes]], now: float) -> list[tuple[int, bytes]]:
        self._failure = None
        self._running.pop(PRIMARY).close()
        self.core.lost(PRIMARY, "killed", now)
        if failure.downtime is None:
            self.active = STANDBY
        else:
            self._back_at = now + failure.downtime
        if not failure.torn:
            return copies
        out = [copy for copy in copies if self._rng.random() < 0.5]
        self.torn = [copy for copy in copies if copy not in out]
        return out

    def _restart(self, now: float) -> None:
        self._back_at = None
        self._running[PRIMARY] = _ControlledSwitch(self.job.switch.device_id)
        self.core.connected(PRIMARY, now)
        self._run_controller(now)

    def _report_connection(self, name: str, frame: bytes, copies: list[tuple[int, bytes]], now: float) -> None:
        """Tell the controller of the connection that `frame` begins, if it begins one."""
        if self._begins_unknown(frame, copies):
            while self._begins_unknown(frame, copies):
                starts = self._running[name].starts.wait(_DIGEST_S)
                if not starts:
                    raise TestbedError("switch", f"no digest of a tagged SYN within {_DIGEST_S} s")
                self.core.flow_starts(name, starts, now)
            self._run_controller(now)

    def _begins_unknown(self, frame: bytes, copies: list[tuple[int, bytes]]) -> bool:
        """Return whether `frame` is a replicated SYN of a connection that is not in the journal."""
        try:
            parsed = parse_frame(frame)
        except PacketError:
            return False
        if parsed is None or len(copies) < 2 or parsed.segment.flags & (TcpFlags.SYN | TcpFlags.ACK) != TcpFlags.SYN:
            return False
        ends = (parsed.src_ip, parsed.segment.src_port)
        return not any((str(start.src_addr), start.src_port) == ends for start in self.core.journal.starts())

    def _run_controller(self, now: float) -> None:
        """Carry out all tasks of the controller."""
        for name, running in self._running.items():
            while not isinstance(task := self.core.next_task(name), Idle):
                assert not isinstance(task, Connect)
                flow_base = task.flow_base if self.restore else frozenset()
                if isinstance(task, Install):
                    state = task.state if self.restore else desired_state([self.job])
                    done = running.target.install(state)
                    self.core.installed(name, task.flow_base, done.pipeline, len(done.plan.updates), now)
                elif isinstance(task, Mirror):
                    running.target.restore_flow_base(flow_base)
                    self.core.mirrored(name, task.flow_base, now)
