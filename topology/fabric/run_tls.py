"""The credentials of each party of a run; none if it is in plain text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from checkmate_common.tls import ClientTls, Credentials, Identity, Role, server_name
from jobspec.certificates import CertificateSet, make_certificates
from jobspec.model import Job


@dataclass(frozen=True)
class RunTls:
    """Credentials by role; None or empty in plain text."""

    job: str
    """Name of the job."""
    certificates: CertificateSet | None = None
    """The files, None for plain text."""

    @classmethod
    def make(cls, job: Job, folder: Path) -> RunTls:
        """Make certificates for `job` in `folder`, which must not exist yet.

        Raises:
            OSError: `folder` cannot be written.
        """
        make_certificates(folder, [job], datetime.now(UTC), days=2)
        return cls(job.name, CertificateSet(folder))

    def controller(self) -> ClientTls | None:
        """Return a controller's credentials for switches, which are verified by their address."""
        return self._client(Identity(Role.CONTROLLER), None)

    def operator(self) -> ClientTls | None:
        """Return an operator's credentials for shadow nodes."""
        return self._client(Identity(Role.OPERATOR, self.job), server_name(Role.SHADOW, self.job))

    def rank(self, host: str) -> ClientTls | None:
        """Return the credentials of a host's ranks for shadow nodes."""
        return self._client(Identity(Role.RANK, self.job, host), server_name(Role.SHADOW, self.job))

    def shadow(self, name: str) -> Credentials | None:
        """Return the credentials of a shadow node."""
        return self._credentials(Identity(Role.SHADOW, self.job, name))

    def switch(self, name: str) -> Credentials | None:
        """Return the credentials of a switch."""
        return self._credentials(Identity(Role.SWITCH, name=name))

    def arguments(self, role: Role, name: str) -> list[str]:
        """Return the command-line arguments of a rank or shadow node."""
        return self.certificates.options(Identity(role, self.job, name)).arguments() if self.certificates else []

    def switch_arguments(self, name: str) -> list[str]:
        """Return the options of a switch's P4Runtime server, those of simple_switch_grpc."""
        own = self.switch(name)
        if own is None:
            return []
        files = {"cacert": own.files.ca, "cert": own.files.cert, "key": own.files.key}
        words = [word for option, path in files.items() for word in (f"--grpc-server-{option}", str(path))]
        return ["--grpc-server-ssl", "--grpc-server-with-client-auth", *words]

    def _credentials(self, identity: Identity) -> Credentials | None:
        return self.certificates.options(identity).credentials() if self.certificates else None

    def _client(self, identity: Identity, expected: str | None) -> ClientTls | None:
        return self.certificates.options(identity).client(expected) if self.certificates else None
