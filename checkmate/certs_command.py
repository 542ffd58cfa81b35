"""`checkmate certs`: test certificates for mutual TLS."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from checkmate_common.tls import TlsError
from jobspec.certificates import CertificateSet, make_certificates
from jobspec.errors import JobError
from jobspec.loader import load_jobs

FAILED = 2
"""Exit code when nothing was made."""


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write, accessible to its owner only.")],
    job: Annotated[
        list[Path] | None,
        typer.Option(
            "--job", metavar="FILE", help="Job whose switches, shadow nodes and hosts get certificates (repeatable)."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long they are valid.")] = 30,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Name or address that servers are reached at, besides localhost."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of an earlier run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Make certificates FOR TESTS: two authorities, and a certificate and key for every party of the jobs.

    The authorities' private keys are not kept, so no certificate can be added later: make all of them at once.
    Nothing can be revoked. In production use your own authority; docs/security.md says what its certificates must
    contain.

    Exit code: 0 made; 2 the folder already has some or cannot be written, or a job file is invalid.

    Examples:

        checkmate certs certs --job examples/digits.yaml

        checkmate certs certs --job a.yaml --job b.yaml --host shadow-1.example.org --days 7
    """
    try:
        jobs = [loaded.job for loaded in load_jobs(job)] if job else []
        made = make_certificates(folder, jobs, datetime.now(UTC), days, host or (), force=force)
    except OSError as error:
        print(f"error: {error.filename or folder}: cannot be written: {error.strerror}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    except (JobError, TlsError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    files = CertificateSet(folder)
    if as_json:
        rows = [{"identity": identity.uri, **files.options(identity).to_json()} for identity in made]
        print(json.dumps({"for_tests_only": True, "days": days, "certificates": rows}, indent=2))
        return
    for identity in made:
        print(f"{identity}: {files.path(identity)}")
    print(f"{len(made)} certificates, valid for {days} days. They are for tests: use your own authority in production.")
