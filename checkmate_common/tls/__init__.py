"""Mutual TLS: credentials from files, the identities they name, gRPC channels and servers that use them."""

from __future__ import annotations

from checkmate_common.tls.credentials import ClientTls, open_channel, open_port
from checkmate_common.tls.errors import TlsError
from checkmate_common.tls.files import Credentials, TlsFiles, load
from checkmate_common.tls.identity import Identity, Role, parse_identity, server_name

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
