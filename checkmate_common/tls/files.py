"""Credentials from PEM files: read once, checked, and refused with the name of the file and the problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from checkmate_common.files.regular_files import read_bounded
from checkmate_common.tls.errors import TlsError
from checkmate_common.tls.identity import SCHEME, Identity, identity_of

_MAX_BYTES = 1 << 20
"""Maximum size of a file of certificates or a key, in bytes."""
OTHERS = 0o077
"""Permission bits of a file for users other than its owner."""


@dataclass(frozen=True)
class TlsFiles:
    """The three files of a party."""

    ca: Path
    """Certificates of the authorities that must have signed the other side's certificate, one or more (PEM)."""
    cert: Path
    """Own certificate, followed by intermediate ones, if any (PEM)."""
    key: Path
    """Private key of the certificate (PEM, not encrypted), readable only by its owner."""
    allow_open_key: bool = False
    """Whether users other than the owner may read the key, e.g. a group in a container."""


@dataclass(frozen=True)
class Credentials:
    """Credentials that were valid when they were read."""

    files: TlsFiles
    """Their files."""
    ca: bytes = field(repr=False)
    """Contents of `files.ca`."""
    cert: bytes = field(repr=False)
    """Contents of `files.cert`."""
    key: bytes = field(repr=False)
    """Contents of `files.key`."""
    identity: Identity | None
    """Identity in the certificate, None if it has none of ours."""
    not_after: datetime
    """When the first certificate of its chain expires."""


def load(files: TlsFiles, now: datetime) -> Credentials:
    """Read and check `files` at the time `now` (with a time zone).

    Raises:
        TlsError: one cannot be used; says which, why, and how to fix it.
    """
    ca = read_authorities(files.ca, now)
    cert, key = read_pair(files.cert, files.key, now)
    if not files.allow_open_key:
        check_owner(files.key)
    chain = x509.load_pem_x509_certificates(cert)
    return Credentials(
        files, ca, cert, key, _identity(chain[0]), min(certificate.not_valid_after_utc for certificate in chain)
    )


def read_authorities(path: Path, now: datetime) -> bytes:
    """Return the contents of a file with certificates of authorities; expired ones are ignored.

    Raises:
        TlsError: it cannot be read, or none of them is valid.
    """
    data, found = _certificates(path)
    if not any(_invalid(certificate, now) is None for certificate in found):
        raise TlsError(path, f"no certificate of an authority is valid: the first one {_invalid(found[0], now)}")
    return data


def read_pair(cert: Path, key: Path, now: datetime) -> tuple[bytes, bytes]:
    """Return the contents of a certificate file and of the file with its private key.

    Raises:
        TlsError: one cannot be read, the certificate is not valid at `now`, or the key does not match.
    """
    data, chain = _certificates(cert)
    for certificate in chain:
        complaint = _invalid(certificate, now)
        if complaint is not None:
            raise TlsError(cert, f"the certificate of {certificate.subject.rfc4514_string()} {complaint}; renew it")
    secret = _read(key)
    try:
        private = serialization.load_pem_private_key(secret, None)
    except TypeError:
        raise TlsError(key, "the private key is encrypted with a password; expected one without") from None
    except (ValueError, UnsupportedAlgorithm):
        raise TlsError(key, "contains no private key in PEM format") from None
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != chain[0].public_key().public_bytes(*form):
        raise TlsError(key, f"is not the key of the certificate in {cert}; give the matching one")
    return data, secret


def check_owner(key: Path) -> None:
    """Check that only its owner can read or write a private key.

    Raises:
        TlsError: other users can.
    """
    try:
        mode = key.stat().st_mode & 0o777
    except OSError as error:
        raise TlsError(key, f"cannot be read: {error.strerror}") from error
    if mode & OTHERS:
        raise TlsError(
            key, f"users other than its owner can read the private key (mode {mode:04o}); run chmod 600 on it, or give "
            "--tls-allow-open-key if this is intended"
        )  # fmt: skip


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, _MAX_BYTES)
    except OSError as error:
        raise TlsError(path, f"cannot be read: {error.strerror}") from error


def _certificates(path: Path) -> tuple[bytes, Sequence[x509.Certificate]]:
    data = _read(path)
    try:
        found = x509.load_pem_x509_certificates(data)
    except ValueError:
        found = []
    if not found:
        raise TlsError(path, "contains no certificate in PEM format")
    return data, found


def _invalid(certificate: x509.Certificate, now: datetime) -> str | None:
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if now < certificate.not_valid_before_utc:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; is the clock right?"
    return None


def _identity(certificate: x509.Certificate) -> Identity | None:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return identity_of(uri for uri in uris if uri.startswith(SCHEME))
