"""The gRPC service of a device: P4Runtime RPCs become calls of `Device`, errors become gRPC statuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock, Thread
from typing import Any, NoReturn

import grpc
from finsy.proto import p4r, p4r_grpc
from google.protobuf.message import DecodeError, Message

from softswitch.p4rt.device import Device
from softswitch.p4rt.errors import BatchError, Code, P4RuntimeError, invalid
from softswitch.p4rt.outbox import Outbox

API_VERSION = "1.4.0"
"""P4Runtime API version reported by Capabilities."""

READ_CHUNK = 256
"""Entities per ReadResponse, to stay far below the 4 MB that clients accept by default."""

_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_LOG = logging.getLogger(__name__)


class P4RuntimeService(p4r_grpc.P4RuntimeServicer):
    """Serves one device.

    Args:
        device: the device.
        max_streams: maximum number of concurrent StreamChannel RPCs; further ones end with RESOURCE_EXHAUSTED. Each
            occupies a thread of the server, so the server must have more threads than this.
        log: for warnings and internal errors.
    """

    def __init__(self, device: Device, max_streams: int, log: logging.Logger = _LOG) -> None:
        """Create the service; it has no threads of its own."""
        self._device = device
        self._log = log
        self._unreadable = 0
        self._counting = Lock()
        self._max_streams = max_streams
        self._slots = BoundedSemaphore(max_streams)
        self._open: set[_OpenStream] = set()

    def Write(self, request: p4r.WriteRequest, context: grpc.ServicerContext) -> p4r.WriteResponse:
        """Handle a batch of updates."""
        try:
            self._device.write(request)
        except P4RuntimeError as error:
            _abort(context, error)
        return p4r.WriteResponse()

    def Read(self, request: p4r.ReadRequest, context: grpc.ServicerContext) -> Iterator[p4r.ReadResponse]:
        """Answer a batch of reads: the valid ones even if others are not."""
        try:
            entities, error = self._device.read(request)
        except P4RuntimeError as refused:
            _abort(context, refused)
        for start in range(0, len(entities), READ_CHUNK):
            yield p4r.ReadResponse(entities=entities[start : start + READ_CHUNK])
        if error is not None:
            _abort(context, error)

    def SetForwardingPipelineConfig(
        self, request: p4r.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.SetForwardingPipelineConfigResponse:
        """Verify, save or commit a program."""
        try:
            self._device.set_pipeline(request)
        except P4RuntimeError as error:
            _abort(context, error)
        return p4r.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(
        self, request: p4r.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.GetForwardingPipelineConfigResponse:
        """Return the program."""
        try:
            return self._device.get_pipeline(request)
        except P4RuntimeError as error:
            _abort(context, error)

    def Capabilities(self, request: p4r.CapabilitiesRequest, context: grpc.ServicerContext) -> p4r.CapabilitiesResponse:
        """Return the API version."""
        try:
            if request.device_id:
                self._device.check_device(request.device_id)
        except P4RuntimeError as error:
            _abort(context, error)
        return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def StreamChannel(
        self, request_iterator: Iterator[p4r.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4r.StreamMessageResponse]:
        """Serve the stream of one client until the client closes it, it breaks, or it is refused."""
        if not self._slots.acquire(blocking=False):
            _abort(
                context,
                P4RuntimeError(Code.RESOURCE_EXHAUSTED, f"{self._max_streams} streams are open, which is the maximum"),
            )
        outbox = Outbox()
        stream = _OpenStream(self._device, outbox, self._log)
        self._open.add(stream)
        try:
            if context.add_callback(outbox.close):
                # Reading and writing both block, so each direction has its own thread.
                requests = self._decoded(request_iterator, context)
                reader = Thread(target=stream.read, args=(requests,), name="p4rt-stream", daemon=True)
                reader.start()
                yield from outbox
        finally:
            self._open.discard(stream)
            stream.leave()
            self._slots.release()
        if stream.refusal is not None:
            _abort(context, stream.refusal)

    def refuse(self, request: _Undecodable, context: grpc.ServicerContext) -> P4RuntimeError:
        """Return the error for an unreadable request.

        Only the first, second, fourth, and so on is logged, with the count, so that a client cannot fill the disk.
        """
        with self._counting:
            self._unreadable += 1
            count = self._unreadable
        if count & (count - 1) == 0:
            self._log.warning("%s (from %s); so far %d of this kind", request.error.message, context.peer(), count)
        return request.error

    def _decoded(
        self, requests: Iterator[p4r.StreamMessageRequest | _Undecodable], context: grpc.ServicerContext
    ) -> Iterator[p4r.StreamMessageRequest]:
        for request in requests:
            if isinstance(request, _Undecodable):
                raise self.refuse(request, context)
            yield request

    def end_streams(self) -> None:
        """End all streams with UNAVAILABLE, because the server is about to close."""
        for stream in list(self._open):
            stream.end(P4RuntimeError(Code.UNAVAILABLE, "the switch is shutting down"))


class _OpenStream:
    """One StreamChannel RPC.

    Attributes:
        refusal: error that ends the RPC, None for success.
    """

    def __init__(self, device: Device, outbox: Outbox, log: logging.Logger) -> None:
        self._device = device
        self._outbox = outbox
        self._log = log
        self._stream = device.open_stream(outbox.put)
        self.refusal: P4RuntimeError | None = None

    def read(self, requests: Iterator[p4r.StreamMessageRequest]) -> None:
        """Pass the client's messages to the device until they end."""
        try:
            for request in requests:
                self._device.receive(self._stream, request)
        except P4RuntimeError as error:
            self.refusal = error
        except grpc.RpcError:
            pass  # the client is gone; `leave` notifies the others
        except Exception as error:
            self._log.exception("a stream ended because of an internal error of the switch")
            self.refusal = P4RuntimeError(Code.INTERNAL, f"the switch failed: {type(error).__name__}: {error}")
        finally:
            self._outbox.close()

    def end(self, reason: P4RuntimeError) -> None:
        """Let the RPC end with `reason` after all waiting messages were sent."""
        self.refusal = reason
        self._outbox.close()

    def leave(self) -> None:
        """Tell the device that the client is gone."""
        self._device.close_stream(self._stream)


@dataclass(frozen=True, slots=True)
class _Undecodable:
    """Placeholder for a request that is not a valid message of its type."""

    error: P4RuntimeError


def handlers(service: P4RuntimeService) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the RPCs of a service.

    protoc's handlers are not used: if bytes are not a valid message, gRPC leaves the RPC open forever without notifying
    the service, and the server cannot end.
    """
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    table: tuple[tuple[Any, Callable[..., Any], type[Message]], ...] = (
        (unary, service.Write, p4r.WriteRequest),
        (stream, service.Read, p4r.ReadRequest),
        (unary, service.SetForwardingPipelineConfig, p4r.SetForwardingPipelineConfigRequest),
        (unary, service.GetForwardingPipelineConfig, p4r.GetForwardingPipelineConfigRequest),
        (unary, service.Capabilities, p4r.CapabilitiesRequest),
        (grpc.stream_stream_rpc_method_handler, service.StreamChannel, p4r.StreamMessageRequest),
    )
    methods = {}
    for make, method, request_type in table:
        answer = method if method == service.StreamChannel else _checked(service, method)
        methods[method.__name__] = make(answer, _decoder(request_type), lambda message: message.SerializeToString())
    return grpc.method_handlers_generic_handler("p4.v1.P4Runtime", methods)


def _decoder(request_type: type[Message]) -> Callable[[bytes], Message | _Undecodable]:
    def decode(data: bytes) -> Message | _Undecodable:
        try:
            return request_type.FromString(data)
        except DecodeError:
            return _Undecodable(invalid(f"the request is not a valid p4.v1.{request_type.__name__}"))

    return decode


def _checked(
    service: P4RuntimeService, method: Callable[[Any, grpc.ServicerContext], Any]
) -> Callable[[Any, grpc.ServicerContext], Any]:
    def answer(request: Message | _Undecodable, context: grpc.ServicerContext) -> Any:
        if isinstance(request, _Undecodable):
            _abort(context, service.refuse(request, context))
        return method(request, context)

    return answer


def _abort(context: grpc.ServicerContext, error: P4RuntimeError) -> NoReturn:
    """End the RPC with the status of `error`; a batch carries one p4.v1.Error per update."""
    if isinstance(error, BatchError):
        details = error.to_status().SerializeToString()
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
    context.abort(_STATUS[int(error.code)], error.message)
    raise AssertionError("context.abort returned")
