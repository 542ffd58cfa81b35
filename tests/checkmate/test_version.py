"""`checkmate --version`."""

from __future__ import annotations

from importlib.metadata import version

from tests.program import run_program


def test_it_is_that_of_the_installed_package() -> None:
    done = run_program("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"checkmate {version('checkmate-wire')}\n", "")
