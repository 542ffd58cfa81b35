"""Finding p4c's Tofino backend, and compiling with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from p4src.artifacts import ROOT
from p4src.p4c import find_p4c

TARGETS = {"tofino": ("tna", ()), "tofino2": ("t2na", ("-DTOFINO2",))}
"""Target of ``p4c -b`` -> architecture and preprocessor definitions."""


def find_compiler() -> str | None:
    """Return the path of a p4c on PATH that has the Tofino backend, None if there is none."""
    return find_p4c("tofino2")


def compile_for(compiler: str, target: str, output: Path) -> None:
    """Compile the TNA program for `target` into the folder `output`, with all reports (``-g``).

    Raises:
        subprocess.CalledProcessError: p4c refuses the program; its messages are in `stderr`.
    """
    architecture, definitions = TARGETS[target]
    command = [
        compiler,
        "-b",
        target,
        "--arch",
        architecture,
        "-g",
        *definitions,
        "-o",
        str(output),
        "tna/checkmate.p4",
    ]
    # Run in the source folder, so that the output contains no path of this machine.
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
