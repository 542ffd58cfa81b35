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
        """Speak to `node`."""
        self.node = node
        """The node; another one takes its place when it is started again."""

    def attach(self, request: AttachRequest) -> AttachReply:
        """Announce a communicator."""
        return AttachReply(need_state=_call("Attach", lambda: self.node.attach(request)))

    def upload_state(self, group: str, epoch: int, state: bytes, step: int = 0, *, final: bool = False) -> bool:
        """Give the state after `step`, 0: before the first."""
        header = state_header(group, epoch, state, step, final=final)
        return _call("UploadState", lambda: self.node.upload(header, state))

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        """Announce the source port of a connection."""
        request = OpenFlowRequest(group=group, epoch=epoch, flow_id=flow_id, source_port=source_port)
        _call("OpenFlow", lambda: self.node.open_flow(request))

    def record_step(self, record: StepRecord) -> RecordReply:
        """Tell what a rank knows of a finished step."""
        return _call("RecordStep", lambda: self.node.record(record))

    def change(self, request: ChangeRequest) -> None:
        """Announce another optimizer or layout."""
        _call("Change", lambda: self.node.change(request))

    def status(self, group: str) -> Status:
        """Return where the shadow is."""
        return status_message(_call("GetStatus", lambda: self.node.status(group)))

    def recovery_point(self, group: str, step: int = 0) -> RecoveryPoint:
        """Return the recovery point of `step`, the newest for 0."""
        point = _call("GetRecoveryPoint", lambda: self.node.recovery_point(group, step))
        return decode_recovery_point(point.manifest_json, point.state)

    def wait_for_step(self, group: str, step: int, timeout: float) -> Status:
        """Return where the shadow is: in a simulation time does not pass while one waits."""
        return self.status(group)


def _call(name: str, action: Callable[[], T]) -> T:
    try:
        return action()
    except ShadowError as error:
        raise SideChannelError(name, error.code.name, str(error)) from error
