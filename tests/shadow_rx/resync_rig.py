"""A shadow core, its trainer, and what a trainer does when the shadow asks for its state; with shadow restarts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checkmate_common.sidechannel import side_channel_pb2 as pb
from jobspec.model import Job
from shadow_rx.core import ShadowCore
from shadow_rx.errors import ShadowError
from shadow_rx.options import ShadowOptions
from shadow_rx.status.events import StateUploaded, StepResynced
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.twin import Twin


class ResyncRig(Rig):
    """Answers what the shadow asks for; the points that it published stay on storage when it is killed."""

    def __init__(self, job: Job | None = None, twin: Twin | None = None, *, digest: bool = False, **options: Any):
        super().__init__(job, twin, **options)
        self.digest = digest
        self.options = ShadowOptions(**options)
        self.saved: dict[int, bytes] = {}
        self.gradients: dict[int, list[bytes]] = {}
        self.uploads: list[int] = []
        self.alive = True

    def begin(self, epoch: int | None = None, upload: bool = True, port: int | None = None) -> bool:
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.first_step = self.twin.step + 1
        self.port = 40000 + 1000 * self.epoch if port is None else port
        self.request = self.twin.attach(
            self.epoch, communicator=f"c{self.epoch}", uploads_on_demand=True,
        )  # fmt: skip
        self.saved[self.twin.step] = self.twin.state_bytes()
        need = self.group.attach(self.request)
        if need and upload:
            self.upload(self.epoch, self.twin.state_bytes())
        self.announce()
        return need

    def announce(self) -> None:
        for message in self.twin.open_flows(self.epoch, self.port):
            self.group.open_flow(message)

    def train(self, **changes: Any) -> list[bytes]:
        frames = super().train(**changes)
        self.saved[self.twin.step] = self.twin.state_bytes()
        self.gradients[self.twin.step] = self.last_gradient
        return frames

    def send(self, frames: Iterable[bytes]) -> None:
        if self.alive:
            super().send(frames)

    def tell(self, messages: Iterable[pb.StepRecord]) -> None:
        """Send records as ranks do: announce the communicator and its flows again where the shadow forgot them."""
        for message in messages:
            try:
                self.send_record(message, self.now)
            except ShadowError:
                if self.core.status("dp0").epoch >= self.epoch:
                    raise
                self.request.rejoin = True
                self.request.current_step = self.twin.step
                self.group.attach(self.request)
                self.events += self.core.group("dp0").ledger.take_events()
                self.announce()
                self.send_record(message, self.now)

    def record(self, digest: bool = False) -> None:
        self.tell(self.twin.records(self.epoch, self.digest or digest))

    def wanted(self) -> int | None:
        reply = self.group.needs(0)
        return reply.state_from if reply.state_wanted else None

    def give_state(self, step: int | None = None, *, final: bool = False) -> None:
        """Upload the state after `step`, by default the newest."""
        step = self.twin.step if step is None else step
        self.uploads.append(step)
        self.upload(self.epoch, self.saved[step], self.now, step, final=final)

    def answer(self) -> bool:
        """Upload the newest state where the shadow asks for one that is not newer."""
        wanted = self.wanted()
        if wanted is None or wanted > self.twin.step:
            return False
        self.give_state()
        return True

    def restart(self) -> None:
        """Kill the shadow and start it again with what is on storage."""
        stored = sorted(set(self.replicated()))
        self.core = ShadowCore(self.job, "sh0", self.options)
        self.group.resume(stored)

    def resynced(self) -> list[int]:
        return [event.step for event in self.events if isinstance(event, StepResynced)]

    def uploaded(self) -> list[int]:
        return [event.step for event in self.events if isinstance(event, StateUploaded)]
