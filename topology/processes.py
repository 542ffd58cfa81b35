"""Child processes of a fabric: started with a log, read line by line, ended by id, and dead when we die."""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from topology.errors import TestbedError

_PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)


class Child:
    """A process whose standard output is JSON lines and whose standard error goes to a log file."""

    def __init__(self, name: str, command: Sequence[str], log: Path, *, attach_to: int | None = None) -> None:
        """Start `command`.

        Args:
            name: for messages, e.g. ``rank 2``.
            command: program and arguments.
            log: file for standard error (appended to).
            attach_to: id of a process in whose namespaces it shall run (as Mininet's mnexec does).

        Raises:
            TestbedError: the program cannot be started.
        """
        self.name = name
        self.log = log
        full = [*(["mnexec", "-a", str(attach_to)] if attach_to is not None else []), *command]
        parent = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        with log.open("ab") as stderr:
            try:
                # A session of its own: Ctrl-C reaches us alone, and we end the children in order.
                self._process = subprocess.Popen(
                    full, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, bufsize=0,
                    start_new_session=True, preexec_fn=die_with_parent,
                )  # fmt: skip
            except OSError as error:
                raise TestbedError(name, f"cannot start {full[0]}: {error}") from error
        assert self._process.stdout is not None
        self.stdout: BinaryIO = self._process.stdout  # type: ignore[assignment]
        os.set_blocking(self.stdout.fileno(), False)
        self._partial = b""
        self.ended = False
        """Standard output is at its end."""

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON objects that arrived on standard output since the last call; other lines go to the log."""
        data = self.stdout.read()
        if data == b"":
            self.ended = True
        pieces = (self._partial + (data or b"")).split(b"\n")
        self._partial = pieces.pop()
        found = []
        for piece in pieces:
            try:
                item = json.loads(piece)
            except ValueError:
                item = None
            if isinstance(item, dict):
                found.append(item)
            elif piece.strip():
                with self.log.open("ab") as log:
                    log.write(piece + b"\n")
        return found

    def failure(self, message: str) -> TestbedError:
        """Return an error with `message`, the exit status and the end of the log."""
        status = self._process.poll()
        state = "still running" if status is None else f"exit status {status}"
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])
        return TestbedError(self.name, f"{message}; {state}; end of {self.log}:\n{tail}")

    def wait(self, seconds: float) -> int:
        """Wait for the end; return the exit status.

        Raises:
            TestbedError: still running after `seconds`.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self.failure(f"did not end within {seconds:g} s") from None

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        self._process.kill()
        self._process.wait()
        self.stdout.close()

    def stop(self, seconds: float = 10.0) -> None:
        """End the process: SIGTERM, then SIGKILL when it has not ended after `seconds`."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.stdout.close()


def follow(
    children: Sequence[Child],
    on_line: Callable[[Child, dict[str, Any]], None],
    done: Callable[[], bool],
    *,
    idle_limit: float,
    watch: Sequence[Child] = (),
) -> None:
    """Pass on the lines of `children` until `done()`.

    Args:
        children: whose lines to read.
        on_line: called for each line.
        done: looked at after every batch of lines.
        idle_limit: seconds without any line after which the run counts as stuck.
        watch: further children that must not end meanwhile.

    Raises:
        TestbedError: a child failed or ended too early, or nothing was heard for `idle_limit` seconds.
    """
    selector = selectors.DefaultSelector()
    for child in children:
        selector.register(child.stdout, selectors.EVENT_READ, child)
    heard = time.monotonic()
    try:
        while not done():
            for key, _ in selector.select(timeout=0.25):
                speaker: Child = key.data
                for line in speaker.lines():
                    heard = time.monotonic()
                    on_line(speaker, line)
                if speaker.ended:
                    selector.unregister(speaker.stdout)
                    if speaker.wait(10) != 0:
                        raise speaker.failure("failed")
            for child in watch:
                if not child.running:
                    raise child.failure("ended while it was needed")
            if not done() and not selector.get_map():
                raise children[0].failure("all processes ended before the work was done")
            if time.monotonic() - heard > idle_limit:
                raise children[0].failure(f"nothing was heard for {idle_limit:g} s")
    finally:
        selector.close()
