"""The side channel's server: gRPC service ``checkmate.v1.Shadow`` around a shadow node."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import grpc

from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel import side_channel_pb2_grpc as rpc
from checkmate_common.sidechannel.limits import CHUNK_BYTES, MAX_MESSAGE_BYTES
from checkmate_common.tls import open_port
from checkmate_common.version import program_version
from shadow_rx.errors import Refusal, ShadowError, invalid
from shadow_rx.node import ShadowNode
from shadow_rx.peers.repair import give_frames
from shadow_rx.serve.guard import Admission, Guard
from shadow_rx.serve.status_message import status_message
from shadow_rx.serve.upload_budget import UploadBudget
from shadow_rx.status.group_status import GroupStatus

MAX_WAIT_SECONDS = 3600.0
"""Longest timeout of WaitForStep."""
_MANIFEST_CHARACTERS = CHUNK_BYTES // 4
"""A character takes up to 4 bytes."""
_WORKERS = 32
_MAX_WAITING = _WORKERS // 2
_CODES = {
    Refusal.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.FAILED_PRECONDITION: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Refusal.RESOURCE_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
T = TypeVar("T")


class ShadowServicer(rpc.ShadowServicer):
    """Answers requests; refusals become gRPC statuses whose details name the field."""

    def __init__(self, node: ShadowNode) -> None:
        """Serve `node`; all uploads together get no more memory than its limit for one group."""
        self._node = node
        self._budget = UploadBudget(node.core.options.memory_limit)
        # Waiting calls hold a worker each; the others must always get one.
        self._waiting = threading.BoundedSemaphore(_MAX_WAITING)
        self._stopping = False

    def stop(self) -> None:
        """Let waiting calls return."""
        self._stopping = True
        self._node.wake()

    def Attach(self, request: pb.AttachRequest, context: grpc.ServicerContext) -> pb.AttachReply:
        """Begin an epoch."""
        return pb.AttachReply(need_state=_call(context, lambda: self._node.attach(request)))

    def UploadState(self, request_iterator: Iterator[pb.StateChunk], context: grpc.ServicerContext) -> pb.UploadReply:
        """Take the state after a step."""

        return pb.UploadReply(adopted=_call(context, lambda: self._upload(request_iterator, context.cancel)))

    def _upload(self, chunks: Iterator[pb.StateChunk], cancel: Callable[[], object]) -> bool:
        first = next(chunks, None)
        if first is None or not first.HasField("header"):
            raise invalid("header", "is missing in the first message")
        header = first.header
        self._node.plan_upload(header)
        reserved = self._budget.begin(header.group, header.state_bytes, cancel)
        whole = False
        try:
            data = collect(chain([first], chunks))
            whole = True
            return self._node.upload(header, data)
        finally:
            if self._budget.end(reserved) and not whole:
                self._node.cancel_upload(header)

    def OpenFlow(self, request: pb.OpenFlowRequest, context: grpc.ServicerContext) -> pb.OpenFlowReply:
        """Learn a connection's source port."""
        _call(context, lambda: self._node.open_flow(request))
        return pb.OpenFlowReply()

    def RecordStep(self, request: pb.StepRecord, context: grpc.ServicerContext) -> pb.RecordReply:
        """Take a rank's record of a step; say what is needed of the rank."""
        return _call(context, lambda: self._node.record(request))

    def Change(self, request: pb.ChangeRequest, context: grpc.ServicerContext) -> pb.ChangeReply:
        """Learn of another optimizer or layout."""
        _call(context, lambda: self._node.change(request))
        return pb.ChangeReply()

    def GetStatus(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.Status:
        """Return where a group is."""
        return status_message(_call(context, lambda: self._node.status(request.group)))

    def GetNodeStatus(self, request: pb.NodeStatusRequest, context: grpc.ServicerContext) -> pb.NodeStatus:
        """Return where all groups are, or one of them."""
        core = self._node.core

        def ask() -> list[GroupStatus]:
            return [self._node.status(group) for group in ([request.group] if request.group else core.groups)]

        groups = [status_message(status) for status in _call(context, ask)]
        parts = [pb.Part(name=part.name, trouble=part.trouble or "", lost=part.lost) for part in self._node.parts()]
        return pb.NodeStatus(
            job=core.job.name, shadow=core.shadow, version=program_version(), groups=groups, parts=parts
        )

    def WaitForStep(self, request: pb.WaitRequest, context: grpc.ServicerContext) -> pb.Status:
        """Wait until a step is a recovery point or can never be one."""

        def wait() -> GroupStatus:
            timeout = request.timeout_seconds
            if not (math.isfinite(timeout) and 0 <= timeout <= MAX_WAIT_SECONDS):
                raise invalid("timeout_seconds", f"{timeout}, expected 0..{MAX_WAIT_SECONDS:g}")
            if not self._waiting.acquire(blocking=False):
                message = f"{_MAX_WAITING} calls are waiting already; ask GetStatus instead"
                raise ShadowError(Refusal.RESOURCE_EXHAUSTED, "step", message)
            try:
                context.add_callback(self._node.wake)
                return self._node.wait_for_step(
                    request.group, request.step, timeout, lambda: context.is_active() and not self._stopping
                )
            finally:
                self._waiting.release()

        return status_message(_call(context, wait))

    def GetRecoveryPoint(
        self, request: pb.RecoveryPointRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.RecoveryPointChunk]:
        """Stream a recovery point: the manifest, then the state file."""
        point = _call(context, lambda: self._node.recovery_point(request.group, request.step))
        # In pieces as the state: a model of some thousand parameters has a manifest beyond the largest message.
        for start in range(0, len(point.manifest_json), _MANIFEST_CHARACTERS):
            yield pb.RecoveryPointChunk(manifest_json=point.manifest_json[start : start + _MANIFEST_CHARACTERS])
        for start in range(0, len(point.state), CHUNK_BYTES):
            yield pb.RecoveryPointChunk(data=point.state[start : start + CHUNK_BYTES])

    def GetFrames(self, request: pb.FramesRequest, context: grpc.ServicerContext) -> Iterator[pb.FrameBytes]:
        """Stream what is here of the frames that another shadow node lacks."""
        pieces = give_frames(self._node, request)
        while (piece := _call(context, lambda: next(pieces, None))) is not None:
            yield piece


def collect(chunks: Iterator[pb.StateChunk]) -> bytes:
    """Return the state of an upload, whose first message has the header.

    Raises:
        ShadowError: longer than the header says, or another header follows.
    """
    pieces: list[bytes] = []
    left, header = 0, None
    for chunk in chunks:
        if header is None:
            header, left = chunk.header, chunk.header.state_bytes
        elif chunk.HasField("header") and chunk.header != header:
            raise invalid("header", "differs from that of the first message")
        left -= len(chunk.data)
        if left < 0:
            raise invalid("header.state_bytes", f"the state is longer than the {header.state_bytes} bytes that it says")
        pieces.append(chunk.data)
    return b"".join(pieces)


def _call(context: grpc.ServicerContext, action: Callable[[], T]) -> T:
    try:
        return action()
    except ShadowError as error:
        context.abort(_CODES[error.code], str(error))
        raise  # not reached: abort raises


class ShadowServer:
    """A running side-channel server."""

    def __init__(self, node: ShadowNode, address: str, admission: Admission = Admission()) -> None:  # noqa: B008
        """Serve `node` on `address`: ``host:port`` (port 0: any free one) or ``unix:/path``.

        Raises:
            ShadowError: the address cannot be listened on.
        """
        self._servicer = ShadowServicer(node)
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="shadow-rpc")
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            # Otherwise a port that another process listens on would be shared with it instead of refused.
            ("grpc.so_reuseport", 0),
        ]
        guard = Guard(node.core.job, node.core.shadow, admission)
        self._server = grpc.server(self._pool, interceptors=[guard], options=options)
        rpc.add_ShadowServicer_to_server(self._servicer, self._server)  # type: ignore[no-untyped-call]
        try:
            port = open_port(self._server, address, admission.tls)
        except RuntimeError as error:
            raise invalid("address", f"cannot listen on {address!r}: {error}") from error
        self.address = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
        """Address that clients reach the server at."""
        self._server.start()

    def stop(self, grace: float = 1.0) -> None:
        """Stop listening, let running calls end within `grace` seconds, and return when all is over."""
        self._servicer.stop()
        self._server.stop(grace).wait()
        self._pool.shutdown()
