"""Diagnosis of failed connections: probing the server shows the reason if gRPC only says "Socket closed".

Used only for messages, and for failing at once instead of waiting: what counts is gRPC's own handshake.
"""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass
from enum import Enum, auto

from checkmate_common.tls.credentials import ClientTls

_FLAGS = "--tls-ca, --tls-cert and --tls-key"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""Beginning of an HTTP/2 connection with empty settings (RFC 9113, sections 3.4 and 6.5)."""
_FRAME_HEADER = 9
_SETTINGS = 4
_ALERT = b"\x15\x03"
"""Beginning of a TLS alert (RFC 8446, section 5.1)."""
_TCP = re.compile(r"^(?:ipv4:|ipv6:)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:/]+)):(?P<port>\d+)$")
_REASONS = {
    "CERTIFICATE_REQUIRED": "it requires a certificate, and none was sent",
    "UNKNOWN_CA": "it does not know the authority that signed our certificate",
    "CERTIFICATE_EXPIRED": "our certificate has expired",
    "UNSUPPORTED_CERTIFICATE": "our certificate is not valid for clients",
    "BAD_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_UNKNOWN": "it does not accept our certificate",
}


class Answer(Enum):
    """Result of a probe."""

    ABSENT = auto()
    """Nothing answers (yet)."""
    FITS = auto()
    """It speaks HTTP/2 and both sides accept each other."""
    REFUSED = auto()
    """One side does not accept the other; retrying will not help."""


@dataclass(frozen=True)
class Found:
    """Result of a probe with its reason."""

    answer: Answer
    """The result."""
    reason: str = ""
    """The reason, for people."""


def probe(address: str, tls: ClientTls | None, timeout: float) -> Found:
    """Connect to a gRPC server like a client with `tls`, and return the result within `timeout` seconds."""
    try:
        connection = _connect(address, timeout)
    except OSError as error:
        return Found(Answer.ABSENT, f"nothing answers: {error.strerror or error}")
    if connection is None:  # an address format that only gRPC supports
        return Found(Answer.FITS)
    with connection:
        try:
            if tls is None:
                return _plain(connection)
            with _context(tls).wrap_socket(connection, server_hostname=_expected(address, tls)) as secured:
                return _hello(secured, "closes the connection after the handshake: does it accept our certificate?")
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message.rstrip(".")
            return Found(
                Answer.REFUSED, f"its certificate is not accepted: {why} {_hint(address, error, tls)}".rstrip()
            )
        except ssl.SSLError as error:
            return Found(Answer.REFUSED, _explain(error))
        except TimeoutError:
            return Found(Answer.ABSENT, "it does not answer in time")
        except OSError as error:  # reset in the middle of the handshake
            return Found(Answer.REFUSED, f"closes the connection during the handshake ({error.strerror or error})")


def _connect(address: str, timeout: float) -> socket.socket | None:
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        try:
            connection.connect(address.removeprefix("unix:").removeprefix("//"))
        except BaseException:
            connection.close()
            raise
        return connection
    found = _TCP.match(address)
    if found is None:
        return None
    return socket.create_connection((found["v6"] or found["host"], int(found["port"])), timeout)


def _context(tls: ClientTls) -> ssl.SSLContext:
    own = tls.credentials
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=own.ca.decode("ascii", "replace"))
    context.load_cert_chain(own.files.cert, own.files.key)
    return context


def _expected(address: str, tls: ClientTls) -> str:
    if tls.server_name is not None:
        return tls.server_name
    found = _TCP.match(address)
    return (found["v6"] or found["host"]) if found is not None else "localhost"


def _plain(connection: socket.socket) -> Found:
    speaks_tls = f"does it speak TLS? Then give {_FLAGS}"
    return _hello(connection, f"closes a plain-text connection: {speaks_tls}")


def _hello(connection: socket.socket, when_closed: str) -> Found:
    data = b""
    try:
        connection.sendall(_PREFACE)
        while len(data) < _FRAME_HEADER:
            piece = connection.recv(_FRAME_HEADER - len(data))
            if not piece:
                break
            data += piece
    except (ConnectionError, ssl.SSLEOFError):
        pass
    if len(data) == _FRAME_HEADER and data[3] == _SETTINGS:
        return Found(Answer.FITS)
    if data.startswith(_ALERT):
        return Found(Answer.REFUSED, f"it speaks TLS, and we speak plain text; give {_FLAGS}")
    if data:
        return Found(Answer.REFUSED, "it is not a gRPC server")
    return Found(Answer.REFUSED, when_closed)


def _explain(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).upper()
    for word, text in _REASONS.items():
        if word in reason:
            return text
    if "WRONG_VERSION" in reason or "RECORD_LAYER" in reason or "PACKET_LENGTH" in reason:
        return f"it speaks plain text, and we speak TLS; give it {_FLAGS}, or omit them here"
    return f"the handshake fails: {error.reason or error}"


def _hint(address: str, error: ssl.SSLCertVerificationError, tls: ClientTls | None) -> str:
    if tls is not None and error.verify_code in (
        62,
        64,
    ):  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
        return f"(expected the name {_expected(address, tls)}; -use --tls-server-name to expect another one)"
    return ""
