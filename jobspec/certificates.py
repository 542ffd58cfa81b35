"""Certificates for tests: two authorities, whose keys are thrown away, and what every party of some jobs needs.

Switches take whom the control authority has signed, and cannot tell roles apart (BMv2 does not look at them). So all
that belongs to a job is signed by another authority, and can not take a switch over. Shadow nodes know both, and look
at the role.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path, PurePath

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from checkmate_common.files.private_files import make_private_folder, private
from checkmate_common.files.regular_files import read_bounded
from checkmate_common.tls import Identity, Role, TlsError, server_name
from checkmate_common.tls.options import TlsOptions
from jobspec.model import Job

CA_FILE = "ca.pem"
"""Both authorities."""
CONTROL_CA_FILE = "control-ca.pem"
"""The authority of controller, switches and operators alone: what switches trust."""
LIST_FILE = "checkmate-certs.json"
"""What was made; nothing else is ever replaced."""
_MAX_LIST_BYTES = 1 << 20
_LOCAL = ("localhost", "127.0.0.1", "::1")
_SKEW = timedelta(minutes=5)
_CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
_SERVER = ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True)
class CertificateSet:
    """Where the files of a folder are."""

    folder: Path
    """The folder."""

    def path(self, identity: Identity) -> Path:
        """Return the path of the certificate of a party; its key is next to it, with the suffix ``.key``."""
        parts = [str(identity.role), *([identity.name] if identity.name is not None else [])]
        name = f"{'-'.join(parts)}.pem"
        return self.folder / identity.job / name if identity.job is not None else self.folder / name

    def options(self, identity: Identity) -> TlsOptions:
        """Return what a party is told on its command line."""
        ca = CONTROL_CA_FILE if identity.role is Role.SWITCH else CA_FILE
        cert = self.path(identity)
        return TlsOptions(self.folder / ca, cert, cert.with_suffix(".key"))


@dataclass(frozen=True)
class Authority:
    """A certificate authority for tests."""

    certificate: x509.Certificate
    """Its own certificate."""
    key: ec.EllipticCurvePrivateKey
    """Its private key, which is in memory only."""

    @property
    def pem(self) -> bytes:
        """Its certificate in PEM form."""
        return _pem(self.certificate)


def parties(jobs: Sequence[Job]) -> list[Identity]:
    """Return everybody who needs a certificate for `jobs`: those of no job first."""
    switches = dict.fromkeys(switch.name for job in jobs for switch in job.switches)
    found = [Identity(Role.CONTROLLER), Identity(Role.OPERATOR)]
    found += [Identity(Role.SWITCH, name=name) for name in switches or ["s1"]]
    for job in jobs:
        found.append(Identity(Role.OPERATOR, job.name))
        found += [Identity(Role.SHADOW, job.name, shadow.name) for shadow in job.shadows]
        found += [Identity(Role.RANK, job.name, host.name) for host in job.hosts]
    return found


def make_certificates(
    folder: Path, jobs: Sequence[Job], now: datetime, days: int = 30, hosts: Iterable[str] = (), *, force: bool = False
) -> list[Identity]:
    """Make authorities and certificates in `folder`, and return who has got one.

    Args:
        folder: made where it is missing, for its owner alone.
        jobs: whose shadow nodes and hosts get certificates.
        now: time from which they are valid (with a time zone).
        days: how long.
        hosts: names and addresses, besides those of this machine, that servers are reached at.
        force: remove certificates that are there; without it they are kept, and an error is raised.

    Raises:
        TlsError: there are certificates already, or files of these names that are not ours.
        OSError: the folder cannot be written.
    """
    files = CertificateSet(folder)
    whom = parties(jobs)
    if (folder / LIST_FILE).exists():
        if not force:
            raise TlsError(folder, "holds certificates already; choose another folder, or replace all with --force")
        _remove(folder)
    make_private_folder(folder)
    certs = [files.path(identity) for identity in whom]
    paths = [folder / CA_FILE, folder / CONTROL_CA_FILE, *certs, *(path.with_suffix(".key") for path in certs)]
    for path in paths:
        if path.exists():
            raise TlsError(path, "is there and was not made by an earlier run; choose another folder")
    names = [str(path.relative_to(folder)) for path in paths]
    _write(folder / LIST_FILE, json.dumps({"for_tests_only": True, "files": names}, indent=1).encode())
    ends = now + timedelta(days=days)
    control, data = (make_authority(f"Checkmate test authority ({what})", now, ends) for what in ("control", "data"))
    for identity in whom:
        # What belongs to a job must not get at a switch, which several jobs share.
        issue(files.path(identity), identity, control if identity.job is None else data, now, ends, hosts)
    _write(folder / CONTROL_CA_FILE, control.pem)
    _write(folder / CA_FILE, control.pem + data.pem)
    return whom


def _remove(folder: Path) -> None:
    """Remove what an earlier call has made, and nothing else."""
    try:
        names = [PurePath(name) for name in json.loads(read_bounded(folder / LIST_FILE, _MAX_LIST_BYTES))["files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TlsError(folder / LIST_FILE, "is not the list of an earlier run; choose another folder") from error
    for name in names:
        if ".." not in name.parts and not name.is_absolute():
            (folder / name).unlink(missing_ok=True)
    (folder / LIST_FILE).unlink()


def make_authority(name: str, now: datetime, ends: datetime) -> Authority:
    """Return a new authority that is valid from `now` until `ends`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = _begin(subject, subject, key, now, ends).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(usage, critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return Authority(builder.add_extension(identifier, critical=False).sign(key, hashes.SHA256()), key)


def issue(
    path: Path, identity: Identity, authority: Authority, now: datetime, ends: datetime, hosts: Iterable[str] = ()
) -> None:
    """Write a certificate that names `identity` (and servers' `hosts`) to `path`, its key beside it as ``.key``.

    Raises:
        OSError: a file cannot be written, or is there already.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(identity)[:64])])
    serves = identity.role in (Role.SHADOW, Role.SWITCH)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    if serves:
        own = [server_name(identity.role), *([server_name(identity.role, identity.job)] if identity.job else [])]
        names += [_general_name(name) for name in (*own, *_LOCAL, *hosts)]
    # Shadow nodes are clients of each other.
    purposes = [*([_SERVER] if serves else []), *([_CLIENT] if identity.role is not Role.SWITCH else [])]
    builder = _begin(subject, authority.certificate.subject, key, now, ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = builder.add_extension(issuer, critical=False).sign(authority.key, hashes.SHA256())
    make_private_folder(path.parent)
    _write(path, _pem(certificate))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(path.with_suffix(".key"), key.private_bytes(*form))


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(min(now, ends) - _SKEW).not_valid_after(ends)


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb", opener=private) as file:
        file.write(data)
