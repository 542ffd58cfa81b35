"""Checks before every RPC of a shadow node who asks and whether it may, and logs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from checkmate_common.tls import Credentials
from checkmate_common.tls.identity import SCHEME, Identity, identity_of
from jobspec.model import Job
from shadow_rx.logs.access_log import Access, AccessLog
from shadow_rx.serve.permissions import why_not

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
"""What gRPC calls for a request."""
_Read: TypeAlias = Callable[[bytes], Any]
"""Reads a request; raises DecodeError."""
_STEP_FIELDS = ("step", "effective_step", "first_step")


@dataclass(frozen=True)
class Admission:
    """Who is served, and where that is logged."""

    tls: Credentials | None = None
    """Own credentials: only clients with a certificate are served, and what it names decides what they may ask for
    (`permissions`). None: everybody is served, in plain text."""
    any_client: bool = False
    """With `tls`: everybody is served whose certificate one of the authorities has signed."""
    access_log: AccessLog | None = None
    """Takes every use; stays its caller's to close."""

    @property
    def checked(self) -> bool:
        """Whether clients must have an identity that may make the call; without TLS nobody has one."""
        return self.tls is not None and not self.any_client


class Guard(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls that a certificate's identity may not make, and logs all."""

    def __init__(self, job: Job, shadow: str, admission: Admission) -> None:
        """Guard the shadow node `shadow` of `job`."""
        self._job, self._shadow, self._admission = job, shadow, admission

    def intercept_service(self, continuation: Callable[[Any], Handler | None], handler_call_details: Any) -> Handler:
        """Return the handler of a call, with the guard before it; also of an unknown call."""
        handler = continuation(handler_call_details)
        call = handler_call_details.method.rpartition("/")[2]
        if handler is None:
            return grpc.stream_stream_rpc_method_handler(lambda _, context: self._unknown(call, context))
        # Requests come as bytes: one that cannot be read is logged as all others are.
        read, coders = handler.request_deserializer, {"response_serializer": handler.response_serializer}
        assert read is not None  # generated code has one for each call
        if handler.stream_unary:
            inner = handler.stream_unary
            return grpc.stream_unary_rpc_method_handler(
                lambda requests, context: self._stream_in(call, context, requests, read, inner), **coders
            )
        if handler.unary_stream:
            inner = handler.unary_stream
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._stream_out(call, context, request, read, inner), **coders
            )
        assert handler.unary_unary is not None  # the service has no call that streams both ways
        inner = handler.unary_unary
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(call, context, request, read, inner), **coders
        )

    def _unknown(self, call: str, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._use(call, context):
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such call")
        yield b""  # not reached: abort raises

    def _answer(
        self, call: str, context: grpc.ServicerContext, data: bytes, read: _Read, inner: Callable[..., Any]
    ) -> Any:
        with self._use(call, context) as access:
            reply = inner(self._take(call, context, access, data, read, first=True), context)
            access.bytes_out += reply.ByteSize()
            return reply

    def _stream_in(
        self, call: str, context: grpc.ServicerContext, pieces: Iterator[bytes], read: _Read, inner: Callable[..., Any]
    ) -> Any:
        with self._use(call, context) as access:
            reply = inner(self._taken(call, context, access, pieces, read), context)
            access.bytes_out += reply.ByteSize()
            return reply

    def _stream_out(
        self, call: str, context: grpc.ServicerContext, data: bytes, read: _Read, inner: Callable[..., Any]
    ) -> Iterator[Any]:
        with self._use(call, context) as access:
            for reply in inner(self._take(call, context, access, data, read, first=True), context):
                access.bytes_out += reply.ByteSize()
                yield reply

    def _taken(
        self, call: str, context: grpc.ServicerContext, access: Access, pieces: Iterator[bytes], read: _Read
    ) -> Iterator[Any]:
        first = True
        for data in pieces:
            yield self._take(call, context, access, data, read, first=first)
            first = False

    def _take(
        self, call: str, context: grpc.ServicerContext, access: Access, data: bytes, read: _Read, *, first: bool
    ) -> Any:
        access.bytes_in += len(data)
        try:
            request = read(data)
        except DecodeError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"is no request of {call}: {error}")
        if first:
            about = request.header if call == "UploadState" else request
            access.group = about.group
            access.step = next((getattr(about, name) for name in _STEP_FIELDS if hasattr(about, name)), None)
            reason = why_not(self._job, _identity(context), call, request) if self._admission.checked else None
            if reason is not None:
                context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        return request

    @contextmanager
    def _use(self, call: str, context: grpc.ServicerContext) -> Iterator[Access]:
        begun = time.monotonic()
        access = Access(_who(context), call, self._shadow, peer=context.peer())
        try:
            yield access
        except GeneratorExit:  # the client went away
            access.result = grpc.StatusCode.CANCELLED.name
            raise
        except BaseException:
            code, details = context.code(), context.details()  # type: ignore[attr-defined]
            access.result = code.name if code is not None else grpc.StatusCode.UNKNOWN.name
            access.detail = details.decode(errors="replace") if isinstance(details, bytes) else details
            raise
        finally:
            if (log := self._admission.access_log) is not None:
                log.write(access, time.monotonic() - begun)


def _property(context: grpc.ServicerContext, name: str) -> list[str]:
    """Return the values of a property of the client's certificate."""
    values: Any = context.auth_context().get(name, ())
    return [value.decode(errors="replace") for value in values]


def _names(context: grpc.ServicerContext) -> list[str]:
    return _property(context, "x509_subject_alternative_name")


def _identity(context: grpc.ServicerContext) -> Identity | None:
    return identity_of(_names(context))


def _who(context: grpc.ServicerContext) -> str:
    named = [name for name in _names(context) if name.startswith(SCHEME)]
    if named:
        return named[0]
    subject = _property(context, "x509_common_name")
    return f"certificate of {subject[0]}" if subject else "anonymous"
