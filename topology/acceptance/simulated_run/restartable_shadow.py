"""A simulated shadow node that can be killed, also in the middle of a write, and is then restarted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from jobspec.model import Job
from nccl_emu.errors import SideChannelError
from shadow_rx.assembly import start_node
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.status.events import Event, StepLost
from shadow_rx.status.group_status import Gap
from shadow_rx.store.writer import RecoveryStore
from topology.acceptance.simulated_run.faulty_files import FaultyFiles, ProcessKilled
from topology.acceptance.simulated_run.timed_drivers import TimedPublisher
from topology.fabric.unreliable_side_channel import UnreliableSideChannel
from topology.simulation.event_loop import ReceiveOnlyNode, Simulation

T = TypeVar("T")


class RestartableShadow(ReceiveOnlyNode):
    """A host of the simulation that runs a job's shadow node, or nothing while the node is down."""

    def __init__(
        self,
        job: Job,
        root: Path,
        simulation: Simulation,
        on_event: Callable[[Event], None],
        on_up: Callable[[bool], None],
        rng: random.Random,
        options: ShadowOptions,
        depth: int,
    ) -> None:
        """Start the node.

        Args:
            job: the job, with one group and one shadow node.
            root: folder of its store.
            simulation: virtual time.
            on_event: called with every event of the node, across restarts.
            on_up: called with False when the node is killed and with True when it is up again.
            rng: decides how long writes take and which of them fail.
            options: limits of the node.
            depth: most points that may wait for storage.
        """
        self.files = FaultyFiles(rng)
        """The store's disk."""
        self.kills = 0
        """How often the node was killed."""
        self.torn_downtime = 0.0
        """Virtual seconds from a kill in the middle of a write until the restart."""
        self._job, self._root, self._simulation = job, root, simulation
        self._on_event, self._on_up, self._rng = on_event, on_up, rng
        self._options, self._depth = options, depth
        self._losses: list[tuple[int, Gap]] = []
        self._store: RecoveryStore | None = None
        self._node: ShadowNode | None = None
        self.publisher: TimedPublisher | None = None
        """Writes the points of the current process to the store."""
        self._restart_at = 0.0
        self._start()

    @property
    def node(self) -> ShadowNode | None:
        """The node, restarted if that is due; None while it is down."""
        if self._node is None and self._simulation.now >= self._restart_at:
            self._start()
        return self._node

    def kill(self, downtime: float) -> None:
        """Kill the node, with all that it has not written; restart it after `downtime` virtual seconds."""
        self.kills += 1
        self._node = None
        self._restart_at = self._simulation.now + downtime
        if self._store is not None:
            self._store.close()  # the kernel releases a dead process's lock
        self._on_up(False)

    def call(self, action: Callable[[ShadowNode], T]) -> T | None:
        """Call `action` with the node; return None if the node is down or is killed meanwhile."""
        node = self.node
        if node is None:
            return None
        try:
            return action(node)
        except ProcessKilled:
            self.kill(self.torn_downtime)
            return None

    def close(self) -> None:
        """Write what waits, and stop."""
        self.call(lambda node: node.close())

    def on_frame(self, frame: bytes, now: float) -> None:
        """Process a replica."""
        self.call(lambda node: node.on_frames([frame]))

    def _start(self) -> None:
        """Start from storage; after a restart, with the losses in the event log."""
        self._store = RecoveryStore(
            self._root, files=self.files, policy=self._job.store, resume=self.kills > 0
        )  # fmt: skip
        try:
            self._node = start_node(
                ShadowCore(self._job, self._job.groups[0].shadows[0], self._options), lambda: self._simulation.now,
                self._store, self._make_publisher, losses=(lambda _: self._losses) if self.kills else None,
                observe=self._observe,
            )  # fmt: skip
        except OSError:  # the disk is full: the next access tries again
            self._store.close()
            return
        except ProcessKilled:  # in its first write
            self.kill(self.torn_downtime)
            return
        self._on_up(True)

    def _make_publisher(self, store: RecoveryStore) -> TimedPublisher:
        self.publisher = TimedPublisher(store, self._depth, self._call_later, self.files.seconds, self._rng)
        return self.publisher

    def _call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` in `seconds`, unless the current process is killed first."""
        kills = self.kills

        def run() -> None:
            if self.kills == kills:
                try:
                    action()
                except ProcessKilled:
                    self.kill(self.torn_downtime)

        self._simulation.call_later(seconds, run)

    def _observe(self, event: Event) -> None:
        if isinstance(event, StepLost):
            self._losses.append((event.epoch, event.gap))
        self._on_event(event)


class RestartableShadowChannel(UnreliableSideChannel):
    """The side channel to a `RestartableShadow`, with lost calls."""

    def __init__(self, shadow: RestartableShadow, rng: random.Random) -> None:
        """Call whichever node is up; `rng` decides what gets lost."""
        if shadow.node is None:
            raise SideChannelError("Attach", "UNAVAILABLE", "the shadow node is down")
        super().__init__(shadow.node, rng)
        self._shadow = shadow

    def _call(self, name: str, action: Callable[[ShadowNode], T]) -> T:
        def on_node(node: ShadowNode) -> tuple[T]:
            self.node = node
            return (super(RestartableShadowChannel, self)._call(name, action),)

        reply = self._shadow.call(on_node)
        if reply is None:
            raise SideChannelError(name, "UNAVAILABLE", "the shadow node is down")
        return reply[0]
