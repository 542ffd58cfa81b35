"""The ``--tls-*`` options of commands that connect to a server."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from checkmate_common.tls import options
from checkmate_common.tls.options import TlsOptions


def _option(flag: str, text: str, metavar: str | None = None, variable: str | None = None) -> Any:
    shown = f"{text[:1].upper()}{text[1:]}."
    return typer.Option(flag, metavar=metavar, envvar=variable, help=shown, rich_help_panel="Mutual TLS")


_NAME_HELP = f"{options.NAME_HELP}, if not the default"
_OPTIONS: dict[str, tuple[Any, object]] = {
    "tls_ca": (Annotated[Path | None, _option("--tls-ca", options.CA_HELP, "PEM", options.CA_VARIABLE)], None),
    "tls_cert": (Annotated[Path | None, _option("--tls-cert", options.CERT_HELP, "PEM", options.CERT_VARIABLE)], None),
    "tls_key": (Annotated[Path | None, _option("--tls-key", options.KEY_HELP, "PEM", options.KEY_VARIABLE)], None),
    "tls_server_name": (
        Annotated[str | None, _option("--tls-server-name", _NAME_HELP, "NAME", options.SERVER_NAME_VARIABLE)],
        None,
    ),
    "tls_allow_open_key": (Annotated[bool, _option("--tls-allow-open-key", options.OPEN_KEY_HELP)], False),
}


def with_tls(command: Callable[..., None]) -> Callable[..., None]:
    """Add the ``--tls-*`` options to a command, which gets them as its parameter ``tls``, a `TlsOptions`."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "tls"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]

    @wraps(command)
    def run(**values: Any) -> None:
        said = {name: values.pop(name) for name in _OPTIONS}
        tls = TlsOptions(
            said["tls_ca"], said["tls_cert"], said["tls_key"], said["tls_server_name"], said["tls_allow_open_key"]
        )
        command(**values, tls=tls)

    # typer reads the signature.
    run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
    return run
