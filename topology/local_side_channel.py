"""The side channel without a network: a shadow node in the same process, for simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from jobspec.recovery_point import RecoveryPoint, decode_recovery_point
from jobspec.sidechannel.side_channel_pb2 import AttachReply, AttachRequest, OpenFlowRequest, Status, StepRecord
from nccl_emu.errors import SideChannelError
from shadow_rx.errors import ShadowError
from shadow_rx.node import ShadowNode
from shadow_rx.service import status_message

T = TypeVar("T")


class LocalSideChannel:
    """Implements `nccl_emu.side_channel.SideChannel` on a `ShadowNode`."""

    def __init__(self, node: ShadowNode) -> None:
        """Speak to `node`."""
        self._node = node

    def attach(self, request: AttachRequest) -> AttachReply:
        """Announce a communicator."""
        return AttachReply(need_state=_call("Attach", lambda: self._node.attach(request)))

    def upload_state(self, group: str, epoch: int, state: bytes) -> None:
        """Give the state that the shadow starts from."""
        _call("UploadState", lambda: self._node.upload(group, epoch, state))

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        """Announce the source port of a connection."""
        request = OpenFlowRequest(group=group, epoch=epoch, flow_id=flow_id, source_port=source_port)
        _call("OpenFlow", lambda: self._node.open_flow(request))

    def record_step(self, record: StepRecord) -> None:
        """Tell what a rank knows of a finished step."""
        _call("RecordStep", lambda: self._node.record(record))

    def status(self, group: str) -> Status:
        """Return where the shadow is."""
        return status_message(_call("GetStatus", lambda: self._node.status(group)))

    def recovery_point(self, group: str, step: int = 0) -> RecoveryPoint:
        """Return the recovery point of `step`, the newest for 0."""
        point = _call("GetRecoveryPoint", lambda: self._node.recovery_point(group, step))
        return decode_recovery_point(point.manifest_json, point.state)

    def wait_for_step(self, group: str, step: int, timeout: float) -> Status:
        """Return where the shadow is: in a simulation time does not pass while one waits."""
        return self.status(group)


def _call(name: str, action: Callable[[], T]) -> T:
    try:
        return action()
    except ShadowError as error:
        raise SideChannelError(name, error.code.name, str(error)) from error
