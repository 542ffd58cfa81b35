"""Client of the side channel: what a rank tells the shadow node besides gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import grpc

from jobspec.recovery_point import RecoveryPoint, decode_recovery_point
from jobspec.sidechannel.side_channel_pb2 import (
    AttachReply,
    AttachRequest,
    OpenFlowRequest,
    RecoveryPointRequest,
    StateChunk,
    StateHeader,
    Status,
    StatusRequest,
    StepRecord,
    WaitRequest,
)
from jobspec.sidechannel.side_channel_pb2_grpc import ShadowStub
from nccl_emu.errors import SideChannelError

CHUNK_BYTES = 1 << 20
"""Size of the pieces that a state is uploaded in."""
MAX_MESSAGE_BYTES = 64 << 20
"""Largest message taken: manifests of large models exceed gRPC's default of 4 MiB."""


class SideChannel(Protocol):
    """What ranks need of a shadow node; in a simulation the shadow itself may stand behind it.

    Every call raises `SideChannelError` when it fails.
    """

    def attach(self, request: AttachRequest) -> AttachReply:
        """Announce a communicator."""
        ...

    def upload_state(self, group: str, epoch: int, state: bytes) -> None:
        """Give the state (a safetensors file) that the shadow starts from."""
        ...

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        """Announce the source port of a connection, before its SYN leaves."""
        ...

    def record_step(self, record: StepRecord) -> None:
        """Tell what a rank knows of a finished step."""
        ...

    def status(self, group: str) -> Status:
        """Return where the shadow is; a group that it does not know (yet) has epoch 0."""
        ...

    def recovery_point(self, group: str, step: int = 0) -> RecoveryPoint:
        """Return the recovery point of `step`, the newest for 0."""
        ...

    def wait_for_step(self, group: str, step: int, timeout: float) -> Status:
        """Return when `step` is a recovery point or can never be one, or after `timeout` seconds."""
        ...


class GrpcSideChannel:
    """The side channel over gRPC; may be used from several threads."""

    def __init__(self, address: str, timeout: float = 30.0) -> None:
        """Prepare a channel; it connects with the first call, and waits until the server is there.

        Args:
            address: ``host:port`` or ``unix:/path``.
            timeout: seconds that a call may take.
        """
        self.address = address
        self.timeout = timeout
        options = [
            ("grpc.enable_http_proxy", 0),  # of no use on the way to a neighbour
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ]
        self._channel = grpc.insecure_channel(address, options)
        self._stub = ShadowStub(self._channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the channel; calls in progress fail."""
        self._channel.close()

    def attach(self, request: AttachRequest) -> AttachReply:
        """Announce a communicator; the reply says whether the state must be uploaded."""
        reply = self._call("Attach", self._stub.Attach, request)
        assert isinstance(reply, AttachReply)
        return reply

    def upload_state(self, group: str, epoch: int, state: bytes) -> None:
        """Give the state (a safetensors file) that the shadow starts from, in chunks."""
        self._call("UploadState", self._stub.UploadState, state_chunks(group, epoch, state))

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        """Announce the source port of a connection, before its SYN leaves."""
        request = OpenFlowRequest(group=group, epoch=epoch, flow_id=flow_id, source_port=source_port)
        self._call("OpenFlow", self._stub.OpenFlow, request)

    def record_step(self, record: StepRecord) -> None:
        """Tell what a rank knows of a finished step."""
        self._call("RecordStep", self._stub.RecordStep, record)

    def status(self, group: str) -> Status:
        """Return where the shadow is; a group that it does not know (yet) has epoch 0."""
        try:
            status = self._call("GetStatus", self._stub.GetStatus, StatusRequest(group=group))
        except SideChannelError as error:
            if error.code == grpc.StatusCode.NOT_FOUND.name:
                return Status(group=group)
            raise
        assert isinstance(status, Status)
        return status

    def recovery_point(self, group: str, step: int = 0) -> RecoveryPoint:
        """Return the recovery point of `step`, the newest for 0.

        Raises:
            SideChannelError: the call failed.
            RecoveryPointError: what came is no sound recovery point.
        """

        def collect(request: RecoveryPointRequest, **options: Any) -> tuple[str, bytes]:
            chunks = list(self._stub.GetRecoveryPoint(request, **options))
            return "".join(chunk.manifest_json for chunk in chunks), b"".join(chunk.data for chunk in chunks)

        manifest, data = self._call("GetRecoveryPoint", collect, RecoveryPointRequest(group=group, step=step))
        return decode_recovery_point(manifest, data)

    def wait_for_step(self, group: str, step: int, timeout: float) -> Status:
        """Return when `step` is a recovery point or can never be one, or after `timeout` seconds."""
        request = WaitRequest(group=group, step=step, timeout_seconds=timeout)
        status = self._call("WaitForStep", self._stub.WaitForStep, request, self.timeout + timeout)
        assert isinstance(status, Status)
        return status

    def _call(self, name: str, method: Callable[..., Any], request: Any, timeout: float | None = None) -> Any:
        try:
            return method(request, timeout=timeout or self.timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            raise SideChannelError(name, code.name, details or "no details", self.address) from error
        except ValueError as error:  # grpc's answer to a call on a closed channel
            raise SideChannelError(name, "CANCELLED", str(error), self.address) from error


def state_chunks(group: str, epoch: int, state: bytes, size: int = CHUNK_BYTES) -> Iterator[StateChunk]:
    """Yield the messages that upload `state`: the header with the first of them."""
    view = memoryview(state)
    for start in range(0, max(len(view), 1), size):
        header = StateHeader(group=group, epoch=epoch) if start == 0 else None
        yield StateChunk(header=header, data=bytes(view[start : start + size]))
