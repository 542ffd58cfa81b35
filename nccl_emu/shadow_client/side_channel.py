"""Client of the side channel: what a rank tells the shadow node besides gradients."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from checkmate_common.recovery.point import RecoveryPoint, decode_recovery_point
from checkmate_common.sidechannel.limits import MAX_MESSAGE_BYTES
from checkmate_common.sidechannel.side_channel_pb2 import (
    AttachReply,
    AttachRequest,
    ChangeRequest,
    OpenFlowRequest,
    RecordReply,
    RecoveryPointRequest,
    StateObject,
    Status,
    StatusRequest,
    StepRecord,
    UploadReply,
    WaitRequest,
)
from checkmate_common.sidechannel.side_channel_pb2_grpc import ShadowStub
from checkmate_common.sidechannel.upload import state_chunks, state_header
from checkmate_common.tls import ClientTls, open_channel
from checkmate_common.tls.probe import Answer, Found, probe
from nccl_emu.errors import SideChannelError

CHANGE_SECONDS = 5.0
"""Longest time that training waits for a shadow to take a change of the optimizer."""
_PROBE_SECONDS = 1.0
"""Time that a server may take to say whether it accepts a connection."""
_LOOK_SECONDS = 0.05
"""Time between two looks whether the server is there."""
_NOT_THERE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_RECONNECT_MS = {"initial": 100, "min": 100, "max": 1000}


class SideChannel(Protocol):
    """What ranks need of a shadow node; in a simulation the shadow itself may stand behind it.

    Every call raises `SideChannelError` when it fails.
    """

    def attach(self, request: AttachRequest) -> AttachReply:
        """Announce a communicator."""
        ...

    def upload_state(self, group: str, epoch: int, state: bytes, step: int = 0, *, final: bool = False) -> bool:
        """Give the state (a safetensors file) after `step`, 0: before the first; tell whether the shadow needed it.

        `final`: no further step will be trained.
        """
        ...

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        """Announce the source port of a connection, before its SYN leaves."""
        ...

    def record_step(self, record: StepRecord) -> RecordReply:
        """Tell what a rank knows of a finished step; the reply says what the shadow needs."""
        ...

    def change(self, request: ChangeRequest) -> None:
        """Announce another optimizer or layout, before any rank begins its first step."""
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

    def __init__(self, address: str, timeout: float = 30.0, tls: ClientTls | None = None) -> None:
        """Prepare a channel; it connects with the first call, and waits until the server is there.

        Args:
            address: ``host:port`` or ``unix:/path``.
            timeout: seconds that a call may take.
            tls: own credentials and the name that the server must have; None: plain text.
        """
        self.address = address
        self.timeout = timeout
        options = [
            ("grpc.enable_http_proxy", 0),  # of no use on the way to a neighbour
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            # A shadow that was started again is to be found again within a second, not after minutes of backing off.
            *((f"grpc.{kind}_reconnect_backoff_ms", value) for kind, value in _RECONNECT_MS.items()),
        ]
        self._tls = tls
        self._met = False
        self._closed = False
        self._channel = open_channel(address, tls, options)
        self._stub = ShadowStub(self._channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the channel; calls in progress fail."""
        self._closed = True
        self._channel.close()

    def attach(self, request: AttachRequest) -> AttachReply:
        """Announce a communicator; the reply says whether the state must be uploaded."""
        reply = self._call("Attach", self._stub.Attach, request)
        assert isinstance(reply, AttachReply)
        return reply

    def upload_state(self, group: str, epoch: int, state: bytes, step: int = 0, *, final: bool = False) -> bool:
        """Give the state (a safetensors file) after `step`, 0: before the first, in chunks."""
        header = state_header(group, epoch, state, step, final=final)
        reply = self._call("UploadState", self._stub.UploadState, state_chunks(header, state))
        assert isinstance(reply, UploadReply)
        return reply.adopted

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        """Announce the source port of a connection, before its SYN leaves."""
        request = OpenFlowRequest(group=group, epoch=epoch, flow_id=flow_id, source_port=source_port)
        self._call("OpenFlow", self._stub.OpenFlow, request)

    def record_step(self, record: StepRecord) -> RecordReply:
        """Tell what a rank knows of a finished step; the reply says what the shadow needs."""
        size = record.ByteSize()
        if size > MAX_MESSAGE_BYTES:
            name, value = max(record.objects.items(), key=lambda item: item[1].ByteSize(), default=("", StateObject()))
            message = (
                f"the record of step {record.step} has {size} bytes, most is {MAX_MESSAGE_BYTES}; its largest object "
                f"is {name!r} with {value.ByteSize()}"
            )
            raise SideChannelError("RecordStep", grpc.StatusCode.RESOURCE_EXHAUSTED.name, message, self.address)
        reply = self._call("RecordStep", self._stub.RecordStep, record)
        assert isinstance(reply, RecordReply)
        return reply

    def change(self, request: ChangeRequest) -> None:
        """Announce another optimizer or layout; training waits for it, so that it takes a few seconds at most."""
        self._call("Change", self._stub.Change, request, min(self.timeout, CHANGE_SECONDS))

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
        deadline = time.monotonic() + (timeout or self.timeout)
        if not self._met:
            self._meet(name, deadline)
        try:
            return method(request, timeout=max(0.0, deadline - time.monotonic()), wait_for_ready=True)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code in _NOT_THERE:
                self._refuse(name, probe(self.address, self._tls, _PROBE_SECONDS))
            raise SideChannelError(name, code.name, details or "no details", self.address) from error
        except ValueError as error:  # grpc's answer to a call on a closed channel
            raise SideChannelError(name, "CANCELLED", str(error), self.address) from error

    def _meet(self, name: str, deadline: float) -> None:
        """Wait until the server is there; one that does not accept us, or we it, is told of at once."""
        while not self._closed:
            found = probe(self.address, self._tls, min(_PROBE_SECONDS, max(0.01, deadline - time.monotonic())))
            self._refuse(name, found)
            if found.answer is Answer.FITS:
                self._met = True
                return
            if time.monotonic() > deadline:
                raise SideChannelError(name, grpc.StatusCode.DEADLINE_EXCEEDED.name, found.reason, self.address)
            time.sleep(_LOOK_SECONDS)

    def _refuse(self, name: str, found: Found) -> None:
        if found.answer is Answer.REFUSED:
            raise SideChannelError(name, grpc.StatusCode.UNAUTHENTICATED.name, found.reason, self.address)
