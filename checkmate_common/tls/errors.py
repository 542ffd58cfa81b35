"""The one exception type of TLS credentials."""

from __future__ import annotations

from pathlib import Path


class TlsError(ValueError):
    """A credential cannot be used."""

    def __init__(self, file: Path | str, problem: str) -> None:
        """Keep the file (or option), what is wrong with it and how to fix it."""
        self.file = str(file)
        self.problem = problem
        super().__init__(f"{file}: {problem}")
