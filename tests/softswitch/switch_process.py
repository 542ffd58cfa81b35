"""The switch as a process of its own, for tests of the command line and of real frames."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

START_S = 30.0
END_S = 15.0
ROOT = Path(__file__).parents[2]


def command(*arguments: str, namespace: str | None = None) -> list[str]:
    inside = ["ip", "netns", "exec", namespace] if namespace is not None else []
    return [*inside, sys.executable, "-m", "softswitch", *arguments]


def run_to_end(*arguments: str, namespace: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command line that is expected to end by itself."""
    return subprocess.run(
        command(*arguments, namespace=namespace), cwd=ROOT, capture_output=True, text=True, timeout=START_S
    )


class SwitchProcess:
    """A running switch; leaving the context ends it with SIGTERM unless it has ended.

    Attributes:
        ready: the line of JSON that it printed.
    """

    def __init__(self, *arguments: str, namespace: str | None = None) -> None:
        self._process = subprocess.Popen(
            command(*arguments, namespace=namespace),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._errors: list[str] = []
        self._said = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        assert self._process.stdout is not None
        watchdog = threading.Timer(START_S, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        if not line:
            self._process.wait()
            self._listener.join(END_S)
            raise AssertionError(f"the switch did not start: {''.join(self._errors)}")
        self.ready: dict[str, Any] = json.loads(line)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._said:
                self._errors.append(line)
                self._said.notify_all()

    def wait_for_text(self, text: str, timeout_s: float = 10.0) -> bool:
        """Wait until standard error contains `text`."""
        with self._said:
            return self._said.wait_for(lambda: text in "".join(self._errors), timeout_s)

    def said(self) -> str:
        with self._said:
            return "".join(self._errors)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        status = self._process.wait(END_S)
        self._listener.join(END_S)
        return status

    def __enter__(self) -> SwitchProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end()
        finally:
            self._process.kill()
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()
