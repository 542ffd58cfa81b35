"""A core and the trainer that it follows, driven together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checkmate_common.sidechannel import side_channel_pb2 as pb
from jobspec.model import Job
from shadow_rx.core import ShadowCore
from shadow_rx.group.replica import GroupReplica
from shadow_rx.options import ShadowOptions
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.events import Event, StepLost, StepReplicated
from tests.shadow_rx.twin import Twin, as_bytes, make_layout
from tests.shadow_rx.wire import make_job


class Rig:
    """A shadow core and its trainer; keeps the true state of every trained step by (epoch, step)."""

    def __init__(self, job: Job | None = None, twin: Twin | None = None, **options: Any) -> None:
        self.job = job or make_job()
        self.twin = twin or Twin(self.job, make_layout())
        self.core = ShadowCore(self.job, "sh0", ShadowOptions(**options))
        self.epoch = 0
        self.first_step = 1
        self.port = 40000
        self.truth: dict[tuple[int, int], object] = {}
        self.events: list[Event] = []
        self.last_gradient: list[bytes] = []
        self.now = 0.0

    @property
    def group(self) -> GroupReplica:
        return self.core.group("dp0")

    def _happened(self) -> list[Event]:
        events = self.group.ledger.take_events()
        self.events += events
        return events

    def send_record(self, message: pb.StepRecord, now: float | None = None) -> list[Event]:
        self.group.record(message, now)
        return self._happened()

    def upload(self, epoch: int, data: bytes, now: float | None = None, step: int = 0, *, final: bool = False) -> bool:
        used = self.group.upload(epoch, data, now, step, final=final)
        self._happened()
        return used

    def begin(self, epoch: int | None = None, upload: bool = True, port: int | None = None) -> bool:
        """Attach, upload where needed and wanted, and open the flows."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.first_step = self.twin.step + 1
        self.port = 40000 + 1000 * self.epoch if port is None else port
        need = self.group.attach(self.twin.attach(self.epoch))
        if need and upload:
            self.upload(self.epoch, self.twin.state_bytes())
        for message in self.twin.open_flows(self.epoch, self.port):
            self.group.open_flow(message)
        return need

    def train(self, **changes: Any) -> list[bytes]:
        """Train one step and return its replicas, in order."""
        self.last_gradient = self.twin.train(**changes)
        self.truth[self.epoch, self.twin.step] = as_bytes(self.twin.state())
        return self.twin.frames(self.last_gradient, self.epoch, self.first_step, port=self.port)

    def send(self, frames: Iterable[bytes]) -> None:
        for frame in frames:
            self.now += 1e-3
            self.events += self.core.on_frame(frame, self.now)

    def record(self, digest: bool = False) -> None:
        for message in self.twin.records(self.epoch, digest):
            self.send_record(message, self.now)

    def step(self) -> None:
        """Train one step and let the shadow see all of it."""
        self.send(self.train())
        self.record()

    def snapshots(self) -> list[Snapshot]:
        return [event.snapshot for event in self.events if isinstance(event, StepReplicated)]

    def lost(self) -> list[StepLost]:
        return [event for event in self.events if isinstance(event, StepLost)]

    def replicated(self) -> list[tuple[int, int]]:
        return [(snapshot.epoch, snapshot.step) for snapshot in self.snapshots()]

    def check_truth(self) -> None:
        """Assert that everything that was ever published is what the trainer held, bit for bit."""
        for snapshot in self.snapshots():
            assert as_bytes(snapshot.tensors) == self.truth[snapshot.epoch, snapshot.step]
