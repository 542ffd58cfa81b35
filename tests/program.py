"""The command-line program as a process, forked from one of the test session's that has imported it already.

As ``python -m checkmate.cli`` it would import torch anew each time, for seconds: most of what many tests take.
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from topology.processes.fork_server import PRELOADED_MODULES, ForkServer

ROOT = Path(__file__).parents[1]
_MODULES = ("checkmate.cli", "topology.testbed", "topology.acceptance.campaign", "replay.run", *PRELOADED_MODULES)


@functools.cache
def _fork_server() -> ForkServer:
    """Return the session's server, which ends with the session."""
    return ForkServer(Path(tempfile.mkdtemp(prefix="checkmate-tests-")) / "start.log", _MODULES, ROOT)


def run_program(
    *words: str | Path, timeout: float = 240, stdout: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``checkmate`` with arguments, in the project's folder; `stdout` takes its output instead of the result."""
    arguments = [str(word) for word in words]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = _fork_server().fork(
            "checkmate.cli", arguments, out.fileno() if stdout is None else stdout, err.fileno()
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(["checkmate", *arguments], status, *texts)
