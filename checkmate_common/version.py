"""The version of this program."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def program_version() -> str:
    """Return the version of this program, ``unknown`` where it runs from a folder and was never installed."""
    try:
        return version("checkmate-wire")
    except PackageNotFoundError:
        return "unknown"
