"""The command line's ``--tls-*`` options and their environment variables, the same for every program."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from checkmate_common.tls.credentials import ClientTls
from checkmate_common.tls.errors import TlsError
from checkmate_common.tls.files import Credentials, TlsFiles, load

CA_VARIABLE = "CHECKMATE_TLS_CA"
CERT_VARIABLE = "CHECKMATE_TLS_CERT"
KEY_VARIABLE = "CHECKMATE_TLS_KEY"
SERVER_NAME_VARIABLE = "CHECKMATE_TLS_SERVER_NAME"
CA_HELP = "authorities that must have signed the other side's certificate (PEM); with the other two: mutual TLS"
CERT_HELP = "own certificate (PEM)"
KEY_HELP = "its private key (PEM), readable only by its owner"
NAME_HELP = "DNS name that the server's certificate must have"
OPEN_KEY_HELP = "accept a private key that users other than its owner can read"


@dataclass(frozen=True)
class TlsOptions:
    """The ``--tls-*`` options as given."""

    ca: Path | None = None
    """See `TlsFiles`."""
    cert: Path | None = None
    """See `TlsFiles`."""
    key: Path | None = None
    """See `TlsFiles`."""
    server_name: str | None = None
    """Name that servers must have, instead of the program's default."""
    allow_open_key: bool = False
    """See `TlsFiles`."""

    def files(self) -> TlsFiles | None:
        """Return the files, None for plain text.

        Raises:
            TlsError: only some of the files were given.
        """
        named = {"--tls-ca": self.ca, "--tls-cert": self.cert, "--tls-key": self.key}
        if self.ca is not None and self.cert is not None and self.key is not None:
            return TlsFiles(self.ca, self.cert, self.key, self.allow_open_key)
        lacking = " and ".join(option for option, path in named.items() if path is None)
        if len(lacking.split(" and ")) < len(named):
            raise TlsError(lacking, "is missing: mutual TLS needs all of --tls-ca, --tls-cert and --tls-key")
        return None

    def credentials(self) -> Credentials | None:
        """Read the files; None for plain text.

        Raises:
            TlsError: they cannot be used.
        """
        files = self.files()
        return load(files, datetime.now(UTC)) if files is not None else None

    def client(self, expected: str | None = None) -> ClientTls | None:
        """Read the files for a client of servers named `expected` (None: as in their address).

        Raises:
            TlsError: they cannot be used.
        """
        own = self.credentials()
        return ClientTls(own, self.server_name or expected) if own is not None else None

    def to_json(self) -> dict[str, str]:
        """Return the given files as text."""
        named = {"ca": self.ca, "cert": self.cert, "key": self.key}
        return {name: str(path) for name, path in named.items() if path is not None}

    def arguments(self) -> list[str]:
        """Return the options as command-line arguments."""
        words: list[str] = []
        for option, value in (
            ("ca", self.ca),
            ("cert", self.cert),
            ("key", self.key),
            ("server-name", self.server_name),
        ):
            if value is not None:
                words += [f"--tls-{option}", str(value)]
        return [*words, *(["--tls-allow-open-key"] if self.allow_open_key else [])]


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `tls_options` reads to `parser`."""
    group = parser.add_argument_group(
        "mutual TLS", f"plain text without; by default ${CA_VARIABLE}, ${CERT_VARIABLE}, ${KEY_VARIABLE}"
    )
    group.add_argument("--tls-ca", type=Path, metavar="PEM", help=CA_HELP)
    group.add_argument("--tls-cert", type=Path, metavar="PEM", help=CERT_HELP)
    group.add_argument("--tls-key", type=Path, metavar="PEM", help=KEY_HELP)
    group.add_argument("--tls-server-name", metavar="NAME", help=NAME_HELP)
    group.add_argument("--tls-allow-open-key", action="store_true", help=OPEN_KEY_HELP)


def tls_options(arguments: argparse.Namespace, environment: Mapping[str, str]) -> TlsOptions:
    """Return the options of a command line with `add_tls_options`; missing ones are taken from `environment`."""

    def path(value: Path | None, variable: str) -> Path | None:
        return value if value is not None or not environment.get(variable) else Path(environment[variable])

    return TlsOptions(
        ca=path(arguments.tls_ca, CA_VARIABLE),
        cert=path(arguments.tls_cert, CERT_VARIABLE),
        key=path(arguments.tls_key, KEY_VARIABLE),
        server_name=arguments.tls_server_name or environment.get(SERVER_NAME_VARIABLE) or None,
        allow_open_key=arguments.tls_allow_open_key,
    )
