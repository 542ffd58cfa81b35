"""p4runtime-shell, in the environment of its own that it needs, driven by the tests line by line."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.switch_clients.entries import DEVICE_CONFIG, P4INFO

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Path(os.environ.get("CHECKMATE_SHELL_VENV", ROOT / ".venv-shell"))
PYTHON = ENVIRONMENT / "bin" / "python"
AGENT = Path(__file__).parent / "shell_scripts" / "agent.py"
TIMEOUT_S = 40.0
OUR_PROGRAM = (str(P4INFO), str(DEVICE_CONFIG))

needs_shell = pytest.mark.skipif(
    not PYTHON.exists(), reason=f"p4runtime-shell is not installed in {ENVIRONMENT.name}: run `make shell-env`"
)


class ShellError(Exception):
    """The shell refused a command, or the switch did.

    Attributes:
        error: gRPC's code, or for an update [index, code, message] of each that is refused.
    """

    def __init__(self, error: Any, text: str) -> None:
        super().__init__(text)
        self.error = error


class Shell:
    """A p4runtime-shell that is connected to a switch.

    Args:
        address: of the switch.
        election_id: high and low part.
        config: P4Info and device config to push; None pushes none.

    Attributes:
        said: what the shell itself has printed.
    """

    def __init__(
        self, address: str, election_id: tuple[int, int] = (0, 1), config: tuple[str, str] | None = OUR_PROGRAM
    ) -> None:
        options = json.dumps({"election_id": election_id, "config": config})
        self._process = subprocess.Popen(
            [PYTHON, AGENT, address, options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._errors: list[str] = []
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._listen, self._listen_to_errors)]
        for thread in self._threads:
            thread.start()
        try:
            assert self._hear() == "ready"
        except BaseException:
            self._process.kill()
            raise

    def __call__(self, *request: Any) -> Any:
        """Do a command of the agent and return what it returns.

        Raises:
            ShellError: it was refused.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> Any:
        try:
            answer = self._answers.get(timeout=TIMEOUT_S)
        except queue.Empty:
            pytest.fail(f"the shell did not answer in {TIMEOUT_S:g} s")
        if answer is None:
            self._process.wait(TIMEOUT_S)
            self._threads[1].join(TIMEOUT_S)
            raise ShellError("ended", "".join(self._errors))
        if "error" in answer:
            raise ShellError(answer["error"], answer["text"])
        return answer["value"]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._answers.put(json.loads(line))
            else:
                self.said.append(line.strip())
        self._answers.put(None)

    def _listen_to_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def close(self) -> None:
        """Leave the switch. Closing twice does nothing."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        assert status == 0, "".join(self._errors)

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._process.kill()
            self._process.wait()
