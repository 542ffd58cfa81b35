"""An HTTP server for metrics, in plain text or under mutual TLS.

`prometheus_client.start_http_server` has TLS too, but makes the handshake in its only accepting thread, where a client
that connects and says nothing keeps out everybody else.
"""

from __future__ import annotations

import socket
import ssl
import sys
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from checkmate_common.tls import Role
from checkmate_common.tls.identity import Identity, identity_of
from shadow_rx.logs.access_log import Access
from shadow_rx.serve.guard import Admission

_PATIENCE_S = 10.0
"""Seconds that a client may take for the handshake, and for its request."""


def metrics_http(
    host: str, port: int, registry: CollectorRegistry, admission: Admission, job: str, shadow: str
) -> ThreadingWSGIServer:
    """Return a server that listens, to be run with ``serve_forever``.

    Args:
        host: name or address.
        port: port, 0 for any free one.
        registry: what is served.
        admission: with TLS, only operators of the job or of all are served.
        job: name of the job.
        shadow: name of the shadow node, for the access log.

    Raises:
        OSError: the address cannot be listened on.
    """
    tls = admission.tls

    def log(use: Access) -> None:
        if admission.access_log is not None:
            admission.access_log.write(use)

    class Handler(WSGIRequestHandler):
        timeout = _PATIENCE_S

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing: scrapes come every few seconds."""

        def handle(self) -> None:
            """Answer one request, of those who may ask."""
            peer = f"{self.client_address[0]}:{self.client_address[1]}"
            use = Access("anonymous", "metrics", shadow, peer=peer)
            if isinstance(self.connection, ssl.SSLSocket) and not self._admitted(self.connection, use):
                log(use)
                return
            try:
                super().handle()
            except OSError as error:  # the client went away, or said nothing
                use.result, use.detail = "CANCELLED", str(error)
            log(use)

        def _admitted(self, connection: ssl.SSLSocket, use: Access) -> bool:
            try:
                connection.do_handshake()
            except OSError as error:
                use.result, use.detail = "UNAUTHENTICATED", str(error)
                return False
            uris = _uris(connection)
            use.who = uris[0] if uris else use.who
            if not admission.checked or _may_scrape(identity_of(uris), job):
                return True
            use.result, use.detail = "PERMISSION_DENIED", f"is no operator of job {job}"
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return False

    class Server(ThreadingWSGIServer):
        address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print what nobody expected; a connection that breaks is no error of ours."""
            if not isinstance(sys.exc_info()[1], OSError):
                super().handle_error(request, client_address)

    server = make_server(host, port, make_wsgi_app(registry), Server, handler_class=Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=tls.ca.decode("ascii", "replace"))
        context.load_cert_chain(tls.files.cert, tls.files.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


def _uris(connection: ssl.SSLSocket) -> list[str]:
    names: Any = (connection.getpeercert() or {}).get("subjectAltName", ())
    return [value for kind, value in names if kind == "URI"]


def _may_scrape(identity: Identity | None, job: str) -> bool:
    return identity is not None and identity.role is Role.OPERATOR and identity.job in (None, job)
