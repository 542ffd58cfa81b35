"""An HTTP server for metrics, in plain text or under mutual TLS.

`prometheus_client.start_http_server` has TLS too, but makes the handshake in its only accepting thread, where a client
that connects and says nothing keeps out everybody else.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from jobspec.tls import Credentials, Role
from jobspec.tls.identity import identity_of

_PATIENCE_S = 10.0
"""Seconds that a client may take for the handshake, and for its request."""


def metrics_http(
    host: str, port: int, registry: CollectorRegistry, tls: Credentials | None, job: str | None
) -> ThreadingWSGIServer:
    """Return a server that listens, to be run with ``serve_forever``.

    Args:
        host: name or address.
        port: port, 0 for any free one.
        registry: what is served.
        tls: own credentials: only clients with a certificate are served; None for plain text.
        job: with `tls`, only operators of this job or of all are; None: everybody with a certificate.

    Raises:
        OSError: the address cannot be listened on.
    """

    class Handler(WSGIRequestHandler):
        timeout = _PATIENCE_S

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing: scrapes come every few seconds."""

        def handle(self) -> None:
            """Answer one request, of those who may ask."""
            if isinstance(self.connection, ssl.SSLSocket):
                try:
                    self.connection.do_handshake()
                except OSError:
                    return  # not one of ours
                if job is not None and not _may_scrape(self.connection, job):
                    self.connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    return
            super().handle()

    class Server(ThreadingWSGIServer):
        address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]

    server = make_server(host, port, make_wsgi_app(registry), Server, handler_class=Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=tls.ca.decode("ascii", "replace"))
        context.load_cert_chain(tls.files.cert, tls.files.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


def _may_scrape(connection: ssl.SSLSocket, job: str) -> bool:
    names = (connection.getpeercert() or {}).get("subjectAltName", ())
    identity = identity_of(str(value) for kind, value in names if kind == "URI")
    return identity is not None and identity.role is Role.OPERATOR and identity.job in (None, job)
