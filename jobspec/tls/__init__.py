"""Mutual TLS: credentials from files, the identities they name, gRPC channels and servers that use them."""

from __future__ import annotations

from jobspec.tls.credentials import ClientTls, open_channel, open_port
from jobspec.tls.errors import TlsError
from jobspec.tls.files import Credentials, TlsFiles, load
from jobspec.tls.identity import Identity, Role, parse_identity, server_name

__all__ = [
    "ClientTls",
    "Credentials",
    "Identity",
    "Role",
    "TlsError",
    "TlsFiles",
    "load",
    "open_channel",
    "open_port",
    "parse_identity",
    "server_name",
]
