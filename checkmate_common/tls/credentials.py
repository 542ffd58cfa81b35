"""gRPC channels and servers with credentials, or in plain text without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from checkmate_common.tls.files import Credentials

_Options = Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class ClientTls:
    """A client's credentials, and the server name that it expects."""

    credentials: Credentials
    """Own credentials."""
    server_name: str | None = None
    """DNS name that the server's certificate must have; None: the host in its address, ``localhost`` for a socket."""


def open_channel(address: str, tls: ClientTls | None, options: _Options = ()) -> grpc.Channel:
    """Return a channel to the server at `address`; in plain text without `tls`."""
    if tls is None:
        return grpc.insecure_channel(address, options=list(options))
    if tls.server_name is not None:
        options = [*options, ("grpc.ssl_target_name_override", tls.server_name)]
    own = tls.credentials
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(own.ca, own.key, own.cert), options=list(options))


def server_credentials(own: Credentials) -> grpc.ServerCredentials:
    """Return credentials of a server that accepts only clients with a certificate signed by one of its authorities."""
    return grpc.ssl_server_credentials(
        [(own.key, own.cert)], root_certificates=own.ca, require_client_auth=True
    )  # fmt: skip


def open_port(server: grpc.Server, address: str, own: Credentials | None) -> int:
    """Let `server` listen at `address`; in plain text without credentials; return the port (1 for a unix socket).

    Raises:
        RuntimeError: the address cannot be listened on.
    """
    if own is None:
        return int(server.add_insecure_port(address))
    return int(server.add_secure_port(address, server_credentials(own)))
