"""A shadow node that is too slow, on a simulated clock: its work and its storage take time, its inbox is bounded."""

from __future__ import annotations

import gc
import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.stream.layout import Layout
from jobspec.store import Fsync, StoreSpec
from shadow_rx.apply.state import AppliedState
from shadow_rx.core import ShadowCore
from shadow_rx.errors import ShadowError
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.publish.core import Done, PublisherCore, Report
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.publish.store_queue import STORE_COPIES
from shadow_rx.status.events import Event, StepReplicated
from shadow_rx.status.group_status import GroupStatus
from shadow_rx.status.health import StoreStatus
from shadow_rx.store.names import Point
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.twin import Twin, as_bytes, make_layout, upload
from tests.shadow_rx.wire import make_job

PERIOD = 1.0
"""Seconds from one training step to the next."""
POLICY = StoreSpec(base_every=50, fsync=Fsync.NEVER)


def pressure_layout() -> Layout:
    """A gradient of 20 kB in two buckets: larger than the text that goes with it."""
    return make_layout([(50, 80), (33, 30)], 1 << 14)


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, data in sorted(as_bytes(dict(tensors)).items()):
        found.update(repr((name, data)).encode())
    return found.hexdigest()


def sizes(twin: Twin) -> tuple[int, int]:
    """Return bytes of gradient and state, once the optimizer has state."""
    gradient = twin.layout.nbytes
    return gradient, 3 * gradient + 4 * len(twin.params)


def limit(twin: Twin, options: ShadowOptions) -> int:
    """Return the smallest memory limit that a job of this twin is accepted with."""
    gradient, state = sizes(twin)
    slots = options.window * (gradient + 64 * 64)
    return slots + (2 + options.hold) * state + options.hold * gradient + STORE_COPIES * (state + gradient)


class SimulatedPublisher:
    """Drives the real core; a write to the real store takes as long as the clock is told."""

    def __init__(self, store: RecoveryStore, depth: int, clock: Callable[[], float]) -> None:
        self.store = store
        self.core = PublisherCore(store, depth)
        self.bytes_per_second = float("inf")
        self._clock = clock
        self._free_at = 0.0
        self._done: tuple[Done, float] | None = None
        self._report: Report = lambda result: None

    def start(self, report: Report) -> None:
        self._report = report
        self.core.start()

    def offer(self, snapshot: Snapshot, room: int | None = None) -> None:
        dropped: list[Point] = self.core.offer(snapshot, room)
        self._free_at = max(self._free_at, self._clock()) if self._done is None else self._free_at
        for point in dropped:
            self._report(point)

    def run_until(self, now: float) -> None:
        """Begin and end writes up to `now`."""
        while True:
            if self._done is not None:
                if self._free_at > now:
                    return
                done, seconds = self._done
                self._done = None
                for written in self.core.finish(done, seconds):
                    self._report(written)
            work = self.core.take()
            if work is None:
                return
            done = self.core.write(work)
            seconds = done.nbytes / self.bytes_per_second
            self._free_at += seconds
            self._done = done, seconds

    def status(self, group: str) -> StoreStatus:
        return self.core.status(group)

    def close(self) -> None:
        self.store.close()


@dataclass
class PressureRig:
    """Training that goes on at its own pace, whatever the shadow node does."""

    folder: Path
    inbox_bytes: int = 1 << 20
    depth: int = 64
    seed: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.job = make_job(frame_payload=2048)
        self.twin = Twin(self.job, pressure_layout(), seed=self.seed)
        self.job = self.job.model_copy(update={"store": POLICY})
        shape = ShadowOptions(store_copies=STORE_COPIES, **self.options)
        self.limit = limit(self.twin, shape)
        options = ShadowOptions(store_copies=STORE_COPIES, memory_limit=self.limit, **self.options)
        self.now = 0.0
        self.apply_seconds = 0.0
        self.publisher = SimulatedPublisher(RecoveryStore(self.folder, policy=POLICY), self.depth, lambda: self.now)
        self.core = ShadowCore(self.job, "sh0", options)
        self._slow_down(self.core.group("dp0").progress.state)
        self.events: list[Event] = []
        self.truth: dict[int, str] = {}
        self.published: dict[int, str] = {}
        self.dropped = self.uploads = 0
        self.trained_at = 0.0
        self.most_memory = 0
        self._inbox: deque[tuple[float, str, Any]] = deque()
        self._filled = 0
        self._free_at = 0.0
        self._asked = False
        self.node = ShadowNode(self.core, lambda: self.now, self.publisher, self._observe)
        request = self.twin.attach(1, communicator="c", uploads_on_demand=True)
        assert self.node.attach(request)
        upload(self.node, 1, self.twin.state_bytes())
        for message in self.twin.open_flows(1):
            self.node.open_flow(message)

    def _slow_down(self, state: AppliedState) -> None:
        """Let steps take time to apply."""
        apply = state.apply

        def slow(*step: Any) -> str | None:
            problem = apply(*step)
            self.now += self.apply_seconds * (problem is None)
            return problem

        state.apply = slow  # type: ignore[method-assign]

    def _observe(self, event: Event) -> None:
        if isinstance(event, StepReplicated):
            self.published[event.snapshot.step] = digest(event.snapshot.tensors)
        else:
            self.events.append(event)

    def train(self, count: int, period: float = PERIOD) -> None:
        """Train `count` steps, one every `period` seconds."""
        for _ in range(count):
            due = self.trained_at + period
            self._work(due)
            gradient = self.twin.train()
            self.truth[self.twin.step] = digest(self.twin.state())
            self.trained_at = due
            for frame in self.twin.frames(gradient, mss=8000):
                if self._filled + len(frame) > self.inbox_bytes:
                    self.dropped += 1
                    self._inbox.append((due, "dropped", 1))
                else:
                    self._filled += len(frame)
                    self._inbox.append((due, "frame", frame))
            for message in self.twin.records(1):
                self._inbox.append((due, "record", message))
            self._work(due)

    def settle(self, seconds: float) -> None:
        """Let the node work on without training."""
        self.trained_at += seconds
        self._work(self.trained_at)

    def _work(self, until: float) -> None:
        """Let the node take what is in its inbox, as far as it has time for."""
        while self._inbox and max(self._free_at, self._inbox[0][0]) <= until:
            arrived, kind, what = self._inbox.popleft()
            self.now = max(self.now, self._free_at, arrived)
            self.publisher.run_until(self.now)
            if kind == "frame":
                self._filled -= len(what)
                self.node.on_frames([what])
            elif kind == "dropped":
                self.node.count_kernel_drops(what)
            elif kind == "record":
                self._record(what)
            else:
                self._asked = False
                upload(self.node, 1, what[1], what[0])
            self._free_at = self.now
            if kind == "state" or (kind == "record" and what.rank == 0):
                self._check()
        self.now = max(self.now, until)
        self.publisher.run_until(self.now)
        self._check()

    def _record(self, message: pb.StepRecord) -> None:
        self.node.record(message)
        reply = self.node.core.group("dp0").needs(message.rank)
        if message.rank == 0 and reply.state_wanted and not self._asked and reply.state_from <= self.twin.step:
            self._asked = True
            self.uploads += 1
            self._inbox.append((self.now, "state", (self.twin.step, self.twin.state_bytes())))

    def _check(self) -> None:
        """What holds at every instant."""
        status = self.status()
        assert status.trained_step >= status.replica_step >= status.durable_step
        self.most_memory = max(self.most_memory, status.health.buffers.memory_bytes)

    def status(self) -> GroupStatus:
        return self.node.status("dp0")

    def live_bytes(self) -> int:
        """Return what is really there: slots, the live copy, and every snapshot that anything refers to."""
        epoch = self.core.group("dp0").progress.epoch
        assert epoch is not None
        slots = epoch.assembler.nbytes
        snapshots = [thing for thing in gc.get_objects() if type(thing) is Snapshot and thing.job == self.job.name]
        tensors = {t.data_ptr(): t.numel() * t.element_size() for s in snapshots for t in s.tensors.values()}
        gradients = {id(s.gradient): len(s.gradient or b"") for s in snapshots}
        live = sizes(self.twin)[1]
        return slots + live + sum(tensors.values()) + sum(gradients.values()) + self.publisher.store.log_bytes("dp0")

    def explained(self, step: int) -> str:
        """Return ``durable``, or the reason that is told of a step; fails where there is none."""
        try:
            gap = self.node.explain("dp0", step)
        except ShadowError as error:
            raise AssertionError(f"step {step}: {error}") from error
        return "durable" if gap is None else str(gap.reason)
