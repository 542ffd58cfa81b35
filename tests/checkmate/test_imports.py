"""The command line is there at once: what takes seconds to import waits until a subcommand needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "safetensors", "sklearn")


@pytest.mark.parametrize("argument", [None, "--help", "testbed --help", "restore --help", "replay --help"])
def test_no_subcommand_is_loaded_before_it_runs(argument: str | None) -> None:
    run = (
        ""
        if argument is None
        else f"""
try:
    checkmate.cli.main({argument.split()})
except SystemExit as done:
    assert done.code == 0, done.code
"""
    )
    program = f"import sys, checkmate.cli\n{run}\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_package_gives_what_it_names() -> None:
    program = """
import sys, shadow_rx
assert "torch" not in sys.modules
assert all(callable(getattr(shadow_rx, name)) for name in shadow_rx.__all__)
assert "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
    import shadow_rx

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = shadow_rx.nothing
