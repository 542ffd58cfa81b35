"""A gRPC server for a device, to be started and closed inside any process."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import grpc

from softswitch.p4rt.device import Device
from softswitch.p4rt.errors import Code, P4RuntimeError
from softswitch.p4rt.service import P4RuntimeService, handlers

MAX_STREAMS = 16
"""Maximum number of concurrent StreamChannels, like upstream BMv2."""

_UNARY_THREADS = 8
_MAX_MESSAGE = 128 * 1024 * 1024
_END_S = 2.0
"""Seconds that cancelled requests have to end."""
_numbers = itertools.count(1)
_LOG = logging.getLogger(__name__)


class ServerHandle:
    """A running server.

    Attributes:
        address: `host:port` (with the bound port) or `unix:/path`, for clients.
        port: TCP port that it listens on, None for a Unix socket.
    """

    def __init__(
        self,
        server: grpc.Server,
        service: P4RuntimeService,
        pool: ThreadPoolExecutor,
        prefix: str,
        address: str,
        port: int | None,
    ) -> None:
        """Own a started server with its service and its threads, whose names begin with `prefix`."""
        self._server = server
        self._service = service
        self._pool = pool
        self._prefix = prefix
        self.address = address
        self.port = port

    def close(self, grace_s: float = 0.5) -> bool:
        """Stop serving: streams end, other RPCs get `grace_s` seconds to end, then they are cancelled.

        Closing twice does nothing.

        Returns:
            Whether all requests have ended. A cancelled request that is still running, for example on a large program,
            continues in its thread, and the interpreter waits for it at exit.
        """
        deadline = time.monotonic() + grace_s + _END_S
        ended = self._server.stop(grace_s)
        self._service.end_streams()
        ended.wait(max(0.0, deadline - time.monotonic()))
        self._pool.shutdown(wait=False, cancel_futures=True)
        workers = [thread for thread in threading.enumerate() if thread.name.startswith(f"{self._prefix}_")]
        for thread in workers:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in workers)

    def __enter__(self) -> ServerHandle:
        """Return itself, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def serve(
    device: Device,
    address: str = "127.0.0.1:0",
    *,
    credentials: grpc.ServerCredentials | None = None,
    log: logging.Logger = _LOG,
) -> ServerHandle:
    """Serve P4Runtime for `device`.

    Args:
        device: the device; a process may serve any number of them, each at its own address.
        address: `host:port`, where port 0 picks a free one, or `unix:/path`.
        credentials: TLS of the server, None for plain text.
        log: for warnings, including those about unreadable requests, and internal errors.

    Returns:
        The running server, with the bound port.

    Raises:
        P4RuntimeError: FAILED_PRECONDITION if the address cannot be bound, for example because it is in use.
    """
    prefix = f"p4rt-{next(_numbers)}"
    pool = ThreadPoolExecutor(MAX_STREAMS + _UNARY_THREADS, thread_name_prefix=prefix)
    server = grpc.server(
        pool,
        options=[
            # Without this, Linux lets two servers listen on one port, and clients reach either.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", _MAX_MESSAGE),
            ("grpc.max_send_message_length", _MAX_MESSAGE),
        ],
    )
    service = P4RuntimeService(device, MAX_STREAMS, log)
    server.add_generic_rpc_handlers((handlers(service),))
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        pool.shutdown(wait=False)
        raise _cannot_bind(address) from error
    if port == 0:
        pool.shutdown(wait=False)
        raise _cannot_bind(address)
    server.start()
    if address.startswith("unix:"):
        return ServerHandle(server, service, pool, prefix, address, None)
    return ServerHandle(server, service, pool, prefix, f"{address.rpartition(':')[0]}:{port}", port)


def _cannot_bind(address: str) -> P4RuntimeError:
    return P4RuntimeError(
        Code.FAILED_PRECONDITION, f"cannot listen on {address}: is it in use, or not an address of this host?"
    )
