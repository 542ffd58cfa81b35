"""Certificates of two jobs, of one authority and of another, for tests with real connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from checkmate_common.tls import ClientTls, Credentials, Identity, Role, TlsFiles
from checkmate_common.tls.files import load
from checkmate_common.tls.options import TlsOptions
from jobspec.certificates import Authority, issue, make_authority
from jobspec.model import Job

DAY = timedelta(days=1)


@dataclass(frozen=True)
class TestCertificates:
    """An authority that issues whatever a test asks for."""

    __test__ = False

    folder: Path
    authority: Authority
    now: datetime

    @classmethod
    def make(cls, folder: Path) -> TestCertificates:
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC)
        made = cls(folder, make_authority("authority of a test", now, now + DAY), now)
        (folder / "ca.pem").write_bytes(made.authority.pem)
        return made

    def options(self, identity: Identity, name: str | None = None, expired: bool = False) -> TlsOptions:
        """Return the files of `identity`, made where they are not there."""
        path = self.folder / f"{name or str(identity).replace(' ', '-')}{'-expired' if expired else ''}.pem"
        if not path.exists():
            ends = self.now - timedelta(seconds=5) if expired else self.now + DAY
            issue(path, identity, self.authority, self.now - DAY if expired else self.now, ends)
        return TlsOptions(self.folder / "ca.pem", path, path.with_suffix(".key"))

    def server(self, identity: Identity) -> Credentials:
        own = self.options(identity).credentials()
        assert own is not None
        return own

    def client(self, identity: Identity, server_name: str | None, expired: bool = False) -> ClientTls:
        said = self.options(identity, expired=expired)
        assert said.ca is not None
        assert said.cert is not None
        assert said.key is not None
        when = self.now - timedelta(minutes=1) if expired else self.now
        return ClientTls(load(TlsFiles(said.ca, said.cert, said.key), when), server_name)


def rank(job: str, host: str) -> Identity:
    return Identity(Role.RANK, job, host)


def shadow(job: str, name: str) -> Identity:
    return Identity(Role.SHADOW, job, name)


def identities(jobs: Sequence[Job]) -> list[Identity]:
    """Return ranks and shadow nodes of `jobs`."""
    ranks = [rank(job.name, host.name) for job in jobs for host in job.hosts]
    return [*ranks, *(shadow(job.name, node.name) for job in jobs for node in job.shadows)]
