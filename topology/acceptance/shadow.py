"""A shadow node of the simulation that can be killed, also in the middle of a write, and is started again."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from checkmate_common.recovery.point import RecoveryPoint
from checkmate_common.sidechannel.side_channel_pb2 import (
    AttachReply,
    AttachRequest,
    ChangeRequest,
    RecordReply,
    Status,
    StepRecord,
)
from jobspec.model import Job
from nccl_emu.errors import SideChannelError
from shadow_rx.assembly import start_node
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.status.events import Event, StepLost
from shadow_rx.status.group_status import Gap
from shadow_rx.store.writer import RecoveryStore
from topology.acceptance.background import TimedPublisher
from topology.acceptance.faulty_files import FaultyFiles, ProcessKilled
from topology.fabric.flaky_channel import FlakySideChannel
from topology.simulation.event_loop import Simulation

T = TypeVar("T")


class RestartableShadow:
    """A host of the simulation with the shadow node of a job: the node itself, or nothing while it is dead."""

    def __init__(
        self,
        job: Job,
        root: Path,
        simulation: Simulation,
        observe: Callable[[Event], None],
        lives: Callable[[bool], None],
        rng: random.Random,
        options: ShadowOptions,
        depth: int,
    ) -> None:
        """Start the node.

        Args:
            job: the job, with one group and one shadow node.
            root: folder of its store.
            simulation: virtual time.
            observe: told of every event of every life.
            lives: told when the node dies (False), and when it is there again (True).
            rng: decides how long storage takes, and which writes fail.
            options: bounds of the node.
            depth: points that may wait for storage.
        """
        self.files = FaultyFiles(rng)
        """The store's disk."""
        self.deaths = 0
        """How often the node was killed."""
        self.torn_downtime = 0.0
        """Virtual seconds from a kill in the middle of a write until the node is started again."""
        self._job, self._root, self._simulation = job, root, simulation
        self._observe, self._lives, self._rng = observe, lives, rng
        self._options, self._depth = options, depth
        self._losses: list[tuple[int, Gap]] = []
        self._store: RecoveryStore | None = None
        self._node: ShadowNode | None = None
        self.publisher: TimedPublisher | None = None
        """What takes points to the store, in this life."""
        self._back_at = 0.0
        self._start()

    @property
    def node(self) -> ShadowNode | None:
        """The node, started again where its time has come; None while it is dead."""
        if self._node is None and self._simulation.now >= self._back_at:
            self._start()
        return self._node

    def kill(self, downtime: float) -> None:
        """End the node at once, with all that it did not write; it is there again after `downtime` virtual seconds."""
        self.deaths += 1
        self._node = None
        self._back_at = self._simulation.now + downtime
        if self._store is not None:
            self._store.close()  # the kernel gives a dead process's lock back
        self._lives(False)

    def alive(self, call: Callable[[ShadowNode], T]) -> T | None:
        """Do something with the node; None where it is dead, or dies of it."""
        node = self.node
        if node is None:
            return None
        try:
            return call(node)
        except ProcessKilled:
            self.kill(self.torn_downtime)
            return None

    def close(self) -> None:
        """Write what waits, and stop."""
        self.alive(lambda node: node.close())

    def on_frame(self, frame: bytes, now: float) -> None:
        """Take a replica."""
        self.alive(lambda node: node.on_frames([frame]))

    def on_timer(self, now: float) -> None:
        """Do nothing: a shadow node has no timers."""

    def next_timer(self) -> float | None:
        """Return None."""
        return None

    def take_frames(self) -> list[bytes]:
        """Return nothing."""
        return []

    def _start(self) -> None:
        """Start with what is on storage, and with the losses that the log of events has."""
        self._store = RecoveryStore(
            self._root, files=self.files, policy=self._job.store, resume=self.deaths > 0
        )  # fmt: skip
        try:
            self._node = start_node(
                ShadowCore(self._job, self._job.groups[0].shadows[0], self._options), lambda: self._simulation.now,
                self._store, self._make_publisher, losses=(lambda _: self._losses) if self.deaths else None,
                observe=self._record_event,
            )  # fmt: skip
        except OSError:  # the disk is full, so that it is tried again
            self._store.close()
            return
        except ProcessKilled:  # it dies of its first write already
            self.kill(self.torn_downtime)
            return
        self._lives(True)

    def _make_publisher(self, store: RecoveryStore) -> TimedPublisher:
        self.publisher = TimedPublisher(store, self._depth, self._after, self.files.seconds, self._rng)
        return self.publisher

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later in this life."""
        life = self.deaths

        def act() -> None:
            if self.deaths == life:
                try:
                    action()
                except ProcessKilled:
                    self.kill(self.torn_downtime)

        self._simulation.after(seconds, act)

    def _record_event(self, event: Event) -> None:
        if isinstance(event, StepLost):
            self._losses.append((event.epoch, event.gap))
        self._observe(event)


class LossyChannel:
    """The side channel to a `RestartableShadow`, with lost calls; implements `SideChannel`."""

    def __init__(self, shadow: RestartableShadow, rng: random.Random) -> None:
        """Speak to whatever node is alive; `rng` decides what gets lost."""
        node = shadow.node
        if node is None:
            raise SideChannelError("Attach", "UNAVAILABLE", "the shadow node is dead")
        self._shadow = shadow
        self.calls = FlakySideChannel(node, rng)
        """What gets calls through, or loses them."""

    def attach(self, request: AttachRequest) -> AttachReply:
        """Announce a communicator."""
        return self._alive("Attach", lambda: self.calls.attach(request))

    def upload_state(self, group: str, epoch: int, state: bytes, step: int = 0, *, final: bool = False) -> bool:
        """Give the state after `step`."""
        return self._alive("UploadState", lambda: self.calls.upload_state(group, epoch, state, step, final=final))

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        """Announce the source port of a connection."""
        self._alive("OpenFlow", lambda: self.calls.open_flow(group, epoch, flow_id, source_port))

    def record_step(self, record: StepRecord) -> RecordReply:
        """Tell what a rank knows of a finished step."""
        return self._alive("RecordStep", lambda: self.calls.record_step(record))

    def change(self, request: ChangeRequest) -> None:
        """Announce another optimizer or layout."""
        self._alive("Change", lambda: self.calls.change(request))

    def status(self, group: str) -> Status:
        """Return where the shadow node is."""
        return self._alive("GetStatus", lambda: self.calls.status(group))

    def recovery_point(self, group: str, step: int = 0) -> RecoveryPoint:
        """Return the recovery point of `step`, the newest for 0."""
        return self._alive("GetRecoveryPoint", lambda: self.calls.recovery_point(group, step))

    def wait_for_step(self, group: str, step: int, timeout: float) -> Status:
        """Return where the shadow node is: in a simulation time does not pass while one waits."""
        return self.status(group)

    def _alive(self, name: str, call: Callable[[], T]) -> T:
        def through(node: ShadowNode) -> tuple[T]:
            self.calls.node = node
            return (call(),)

        done = self._shadow.alive(through)
        if done is None:
            raise SideChannelError(name, "UNAVAILABLE", "the shadow node is dead")
        return done[0]
