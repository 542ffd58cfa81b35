"""Identity in a certificate: a SPIFFE ID (a URI among its subject alternative names) with a role, and usually a job.

Form of the URI, in any trust domain (the signing authority decides whether it is trusted):

* ``spiffe://DOMAIN/job/JOB/rank/HOST``, ``spiffe://DOMAIN/job/JOB/shadow/NAME``, ``spiffe://DOMAIN/job/JOB/operator``
* ``spiffe://DOMAIN/controller``, ``spiffe://DOMAIN/operator``, ``spiffe://DOMAIN/switch/NAME``

A certificate has one such URI, as the SPIFFE X.509-SVID standard (section 2) requires. Common names are ignored, as
RFC 9525 (section 2) advises. TLS libraries let clients check DNS names only, so a server's certificate also has a DNS
name for its role.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

SCHEME = "spiffe://"
DOMAIN = "checkmate"
"""Trust domain of our own test certificates, and last label of the names of servers."""
_NAME = r"[A-Za-z][A-Za-z0-9_-]{0,31}"
_FORMS = (
    re.compile(rf"job/(?P<job>{_NAME})/(?P<role>rank|shadow)/(?P<name>{_NAME})"),
    re.compile(rf"job/(?P<job>{_NAME})/(?P<role>operator)"),
    re.compile(r"(?P<role>controller|operator)"),
    re.compile(rf"(?P<role>switch)/(?P<name>{_NAME})"),
)


class Role(StrEnum):
    """Role of a party."""

    RANK = "rank"
    """A host that runs ranks of a job."""
    SHADOW = "shadow"
    """A shadow node of a job."""
    CONTROLLER = "controller"
    """Installs jobs on switches."""
    SWITCH = "switch"
    """Serves P4Runtime."""
    OPERATOR = "operator"
    """Reads the state of one job, or of all."""


@dataclass(frozen=True)
class Identity:
    """A party."""

    role: Role
    """Its role."""
    job: str | None = None
    """Its job; None: none, or for an operator all."""
    name: str | None = None
    """Host, shadow node or switch."""
    domain: str = DOMAIN
    """Trust domain."""

    @property
    def uri(self) -> str:
        """Its SPIFFE ID."""
        job = f"job/{self.job}/" if self.job is not None else ""
        return f"{SCHEME}{self.domain}/{job}{self.role}" + (f"/{self.name}" if self.name is not None else "")

    def __str__(self) -> str:
        """Return e.g. ``rank r0 of job digits``."""
        return f"{self.role}{f' {self.name}' if self.name else ''}{f' of job {self.job}' if self.job else ''}"


def parse_identity(uri: str) -> Identity | None:
    """Return the identity in a SPIFFE ID, None if it has another form."""
    domain, _, path = uri.removeprefix(SCHEME).partition("/")
    if not uri.startswith(SCHEME) or not re.fullmatch(r"[a-z0-9._-]{1,255}", domain):
        return None
    for form in _FORMS:
        found = form.fullmatch(path)
        if found is not None:
            parts = found.groupdict()
            return Identity(Role(parts["role"]), parts.get("job"), parts.get("name"), domain)
    return None


def identity_of(names: Iterable[str]) -> Identity | None:
    """Return the identity among a certificate's subject alternative names; None for none, or several."""
    found = [name for name in names if name.startswith(SCHEME)]
    return parse_identity(found[0]) if len(found) == 1 else None


def server_name(role: Role, job: str | None = None) -> str:
    """Return the DNS name in the certificate of a server with `role`, within a job or in general."""
    return ".".join(part for part in (str(role), job, DOMAIN) if part is not None)
