"""A side channel that loses requests and replies, and delivers requests twice."""

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


class UnreliableSideChannel(LocalSideChannel):
    """A `LocalSideChannel` that injects faults while `fault_probability` is above 0."""

    def __init__(self, node: ShadowNode, rng: random.Random) -> None:
        """Call `node`; `rng` decides what gets lost."""
        super().__init__(node)
        self.fault_probability = 0.0
        """Probability of each: the request is lost, the reply is lost, the request arrives twice."""
        self.lost = 0
        """Number of requests and replies lost."""
        self._rng = rng

    def attach(self, request: AttachRequest) -> AttachReply:
        """Announce a communicator."""
        return self._call("Attach", lambda: super(UnreliableSideChannel, self).attach(request))

    def upload_state(self, group: str, epoch: int, state: bytes, step: int = 0, *, final: bool = False) -> bool:
        """Upload the state after `step`."""

        def upload() -> bool:
            return super(UnreliableSideChannel, self).upload_state(group, epoch, state, step, final=final)

        return self._call("UploadState", upload)

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        """Announce the source port of a connection."""
        self._call("OpenFlow", lambda: super(UnreliableSideChannel, self).open_flow(group, epoch, flow_id, source_port))

    def record_step(self, record: StepRecord) -> RecordReply:
        """Send a rank's record of a finished step."""
        return self._call("RecordStep", lambda: super(UnreliableSideChannel, self).record_step(record))

    def change(self, request: ChangeRequest) -> None:
        """Announce another optimizer or layout."""
        self._call("Change", lambda: super(UnreliableSideChannel, self).change(request))

    def _call(self, name: str, call: Callable[[], T]) -> T:
        if self._rng.random() < self.fault_probability:
            self.lost += 1
            raise SideChannelError(name, "UNAVAILABLE", "the request was lost")
        if self._rng.random() < self.fault_probability:
            call()
        reply = call()
        if self._rng.random() < self.fault_probability:
            self.lost += 1
            raise SideChannelError(name, "UNAVAILABLE", "the reply was lost")
        return reply
