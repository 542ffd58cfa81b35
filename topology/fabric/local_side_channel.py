"""The side channel without a network: a shadow node in the same process, for simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from checkmate_common.recovery.point import RecoveryPoint, decode_recovery_point
from checkmate_common.sidechannel.side_channel_pb2 import (
    AttachReply,
    AttachRequest,
    ChangeRequest,
    OpenFlowRequest,
    RecordReply,
    Status,
    StepRecord,
)
from checkmate_common.sidechannel.upload import state_header
from nccl_emu.errors import SideChannelError
from shadow_rx.errors import ShadowError
from shadow_rx.node import ShadowNode
from shadow_rx.serve.status_message import status_message

T = TypeVar("T")


class LocalSideChannel:
    """Implements `nccl_emu.shadow_client.side_channel.SideChannel` on a `ShadowNode`."""

    def __init__(self, node: ShadowNode) -> None:
        """Call `node`."""
        self.node = node
        """The node; replaced when it is restarted."""

    def attach(self, request: AttachRequest) -> AttachReply:
        """Announce a communicator."""
        return AttachReply(need_state=self._call("Attach", lambda node: node.attach(request)))

    def upload_state(self, group: str, epoch: int, state: bytes, step: int = 0, *, final: bool = False) -> bool:
        """Upload the state after `step`; 0 is the state before the first step."""
        header = state_header(group, epoch, state, step, final=final)
        return self._call("UploadState", lambda node: node.upload(header, state))

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        """Announce the source port of a connection."""
        request = OpenFlowRequest(group=group, epoch=epoch, flow_id=flow_id, source_port=source_port)
        self._call("OpenFlow", lambda node: node.open_flow(request))

    def record_step(self, record: StepRecord) -> RecordReply:
        """Send a rank's record of a finished step."""
        return self._call("RecordStep", lambda node: node.record(record))

    def change(self, request: ChangeRequest) -> None:
        """Announce another optimizer or layout."""
        self._call("Change", lambda node: node.change(request))

    def status(self, group: str) -> Status:
        """Return the shadow node's status."""
        return status_message(self._call("GetStatus", lambda node: node.status(group)))

    def recovery_point(self, group: str, step: int = 0) -> RecoveryPoint:
        """Return the recovery point of `step`, the newest for 0."""
        point = self._call("GetRecoveryPoint", lambda node: node.recovery_point(group, step))
        return decode_recovery_point(point.manifest_json, point.state)

    def wait_for_step(self, group: str, step: int, timeout: float) -> Status:
        """Return the status at once: virtual time does not pass during a call."""
        return self.status(group)

    def _call(self, name: str, action: Callable[[ShadowNode], T]) -> T:
        """Make the call `name`: apply `action` to the node."""
        try:
            return action(self.node)
        except ShadowError as error:
            raise SideChannelError(name, error.code.name, str(error)) from error
