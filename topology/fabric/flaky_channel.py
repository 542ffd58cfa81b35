"""A side channel whose calls get lost, whose replies get lost, and whose requests arrive twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from checkmate_common.sidechannel.side_channel_pb2 import (
    AttachReply,
    AttachRequest,
    ChangeRequest,
    RecordReply,
    StepRecord,
)
from nccl_emu.errors import SideChannelError
from shadow_rx.node import ShadowNode
from topology.fabric.local_side_channel import LocalSideChannel

T = TypeVar("T")


class FlakySideChannel(LocalSideChannel):
    """As `LocalSideChannel`, with trouble while `trouble` is more than 0: the chance of each kind."""

    def __init__(self, node: ShadowNode, rng: random.Random) -> None:
        """Speak to `node`; `rng` decides what gets lost."""
        super().__init__(node)
        self.trouble = 0.0
        """Probability of each kind of trouble."""
        self.failed = 0
        """Requests, and replies, that got lost."""
        self._rng = rng

    def attach(self, request: AttachRequest) -> AttachReply:
        """Announce a communicator."""
        return self._try("Attach", lambda: super(FlakySideChannel, self).attach(request))

    def upload_state(self, group: str, epoch: int, state: bytes, step: int = 0, *, final: bool = False) -> bool:
        """Give the state after `step`."""

        def upload() -> bool:
            return super(FlakySideChannel, self).upload_state(group, epoch, state, step, final=final)

        return self._try("UploadState", upload)

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        """Announce the source port of a connection."""
        self._try("OpenFlow", lambda: super(FlakySideChannel, self).open_flow(group, epoch, flow_id, source_port))

    def record_step(self, record: StepRecord) -> RecordReply:
        """Tell what a rank knows of a finished step."""
        return self._try("RecordStep", lambda: super(FlakySideChannel, self).record_step(record))

    def change(self, request: ChangeRequest) -> None:
        """Announce another optimizer or layout."""
        self._try("Change", lambda: super(FlakySideChannel, self).change(request))

    def _try(self, name: str, call: Callable[[], T]) -> T:
        if self._rng.random() < self.trouble:
            self.failed += 1
            raise SideChannelError(name, "UNAVAILABLE", "the request was lost")
        if self._rng.random() < self.trouble:
            call()
        reply = call()
        if self._rng.random() < self.trouble:
            self.failed += 1
            raise SideChannelError(name, "UNAVAILABLE", "the reply was lost")
        return reply
