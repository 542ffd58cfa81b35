"""Child processes of a fabric: they log to files, report JSON lines, and end when their parent ends."""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

from checkmate_common.files.private_files import private
from topology.errors import TestbedError

_PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)


class Process(Protocol):
    """The methods of `subprocess.Popen` that `Child` uses."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status, or raise `subprocess.TimeoutExpired`."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


def die_with_parent(parent: int) -> None:
    """Let the kernel send this process SIGTERM when its parent ends (prctl(2)); exit if `parent` has ended already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def spawn(
    name: str,
    command: Sequence[str],
    log: Path,
    stdout: int,
    descriptors: Collection[int] = (),
    folder: Path | None = None,
    umask: int = -1,
) -> subprocess.Popen[bytes]:
    """Start a program that ends when this process ends.

    It gets a session of its own, so that Ctrl-C reaches only this process, which then ends its children in order.

    Args:
        name: name for messages.
        command: program and arguments.
        log: file for standard error, appended to.
        stdout: as in `subprocess.Popen`.
        descriptors: file descriptors that it inherits.
        folder: its working directory, None for the caller's.
        umask: its umask, -1 for the caller's.

    Raises:
        TestbedError: the program cannot be started.
    """
    parent = os.getpid()
    with open(log, "ab", opener=private) as stderr:
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, bufsize=0, pass_fds=descriptors,
                cwd=folder, umask=umask, start_new_session=True, preexec_fn=lambda: die_with_parent(parent),
            )  # fmt: skip
        except OSError as error:
            raise TestbedError(name, f"cannot start {command[0]}: {error}") from error


def log_tail(log: Path) -> str:
    """Return the last lines of a log, for an error message."""
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
    return f"end of {log}:\n{tail}"


class Child:
    """A process that writes JSON lines to standard output and logs to standard error."""

    def __init__(self, name: str, process: Process, stdout: BinaryIO, log: Path) -> None:
        """Supervise a running process.

        Args:
            name: name for messages, such as ``rank 2``.
            process: the process.
            stdout: the reading end of its standard output, unbuffered.
            log: file that its standard error goes to.
        """
        self.name = name
        self.log = log
        self.stdout = stdout
        self._process = process
        os.set_blocking(stdout.fileno(), False)
        self._partial = b""
        self.ended = False
        """Whether standard output has reached its end."""

    @classmethod
    def run(cls, name: str, command: Sequence[str], log: Path) -> Self:
        """Start a program with umask 077: BMv2's captures are as confidential as ours.

        Raises:
            TestbedError: it cannot be started.
        """
        process = spawn(name, command, log, subprocess.PIPE, umask=0o077)
        assert process.stdout is not None
        return cls(name, process, process.stdout, log)  # type: ignore[arg-type]

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON objects read from standard output since the last call; other lines go to the log."""
        data = b""
        while piece := self.stdout.read():
            data += piece
        self.ended = piece == b""
        pieces = (self._partial + data).split(b"\n")
        self._partial = b"" if self.ended else pieces.pop()
        found = []
        for piece in pieces:
            try:
                item = json.loads(piece)
            except ValueError:
                item = None
            if isinstance(item, dict):
                found.append(item)
            elif piece.strip():
                with open(self.log, "ab", opener=private) as log:
                    log.write(piece + b"\n")
        return found

    def failure(self, message: str) -> TestbedError:
        """Return an error with `message`, the exit status and the end of the log."""
        if not self.stdout.closed:
            self.lines()  # moves plain text, such as BMv2's errors, to the log
        status = self._process.poll()
        state = "still running" if status is None else f"exit status {status}"
        return TestbedError(self.name, f"{message}; {state}; {log_tail(self.log)}")

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
        """Send SIGKILL and wait for the end."""
        self._process.kill()
        self._process.wait()
        self.stdout.close()

    def stop(self, seconds: float = 10.0) -> None:
        """Send SIGTERM, then SIGKILL if the process has not ended after `seconds`."""
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
    """Read the lines of `children` until `done()` is true.

    Args:
        children: processes to read from.
        on_line: called with the child and each line.
        done: checked after every batch of lines.
        idle_limit: seconds without any line after which the run has stalled.
        watch: further children that must not end meanwhile.

    Raises:
        TestbedError: a child failed or ended too early, or no line arrived for `idle_limit` seconds.
    """
    selector = selectors.DefaultSelector()
    for child in children:
        selector.register(child.stdout, selectors.EVENT_READ, child)
    last_line = time.monotonic()
    try:
        while not done():
            for key, _ in selector.select(timeout=0.25):
                source: Child = key.data
                for line in source.lines():
                    last_line = time.monotonic()
                    on_line(source, line)
                if source.ended:
                    selector.unregister(source.stdout)
                    if source.wait(10) != 0:
                        raise source.failure("failed")
            for child in watch:
                if not child.running:
                    raise child.failure("ended while it was needed")
            if not done() and not selector.get_map():
                raise children[0].failure("all processes ended before the work was done")
            if time.monotonic() - last_line > idle_limit:
                raise children[0].failure(f"no output for {idle_limit:g} s")
    finally:
        selector.close()
