"""Python programs of a fabric, started as forks of one process that has imported what they need (`warm_server`)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkmate_common.files.private_files import private
from topology.errors import TestbedError
from topology.processes.child import Child, end_of, spawn
from topology.processes.warm_server import MAX_REQUEST_BYTES

PROGRAMS = (
    "nccl_emu.__main__", "shadow_rx.__main__", "topology.simulation.impairing_bridge",
    "scapy.layers.inet", "torch._dynamo",  # with the first frame; by torch, with the first optimizer
)  # fmt: skip
"""What is imported."""
_READY_SECONDS = 120.0


class WarmStart:
    """The server and what it has started; a context manager that ends the server, and so all that still runs."""

    def __init__(self, log: Path, modules: Sequence[str] = PROGRAMS, folder: Path | None = None) -> None:
        """Start the server; it imports the modules while the caller goes on.

        Args:
            log: file for its messages.
            modules: what to import.
            folder: where all programs run, None for the caller's.

        Raises:
            TestbedError: it cannot be started.
        """
        self._log = log
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_READY_SECONDS)
        command = [sys.executable, "-m", "topology.processes.warm_server", str(other.fileno()), *modules]
        with other:
            self._server = spawn("warm start", command, log, subprocess.DEVNULL, [other.fileno()], folder)

    def __enter__(self) -> WarmStart:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server."""
        self.close()

    def close(self) -> None:
        """End the server; programs that still run get SIGTERM."""
        self._channel.close()
        self._server.wait()

    def start(self, name: str, module: str, arguments: Sequence[str], log: Path, *, within: int | None = None) -> Child:
        """Run ``python -m module arguments`` as a process.

        Args:
            name: for messages, e.g. ``rank 2``.
            module: the program.
            arguments: of its command line.
            log: file for standard error (appended to).
            within: id of a process in whose network and mount namespaces it shall run (as Mininet's mnexec does).

        Raises:
            TestbedError: the server does not answer.
        """
        reader, writer = os.pipe()
        with os.fdopen(writer, "wb") as stdout, open(log, "ab", opener=private) as stderr:
            try:
                process = self.fork(module, arguments, stdout.fileno(), stderr.fileno(), within=within)
            except BaseException:
                os.close(reader)
                raise
        return Child(name, process, os.fdopen(reader, "rb", buffering=0), log)

    def fork(
        self, module: str, arguments: Sequence[str], stdout: int, stderr: int, *, within: int | None = None
    ) -> Forked:
        """Run a program as `start` does, with file descriptors of the caller's for standard output and error.

        Raises:
            TestbedError: the server does not answer.
        """
        request = {"module": module, "arguments": list(arguments), "within": within}
        return Forked(self, self.ask(request, [stdout, stderr])["pid"])

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Send a request; return the reply.

        Raises:
            TestbedError: the server does not answer.
        """
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            reply = self._channel.recv(MAX_REQUEST_BYTES)
            reason = "it has ended"
        except OSError as error:
            reply, reason = b"", str(error)
        if not reply:
            message = f"the process that starts programs does not answer: {reason}; {end_of(self._log)}"
            raise TestbedError("warm start", message)
        answer: dict[str, Any] = json.loads(reply)
        return answer


class Forked:
    """A process that the server has started, with the methods of `subprocess.Popen` that matter."""

    def __init__(self, server: WarmStart, pid: int) -> None:
        """Watch `pid`; its id stays its own until the server is asked for its exit status."""
        self.pid = pid
        self._server = server
        self._descriptor = os.pidfd_open(pid)
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status, negative after a signal.

        Raises:
            subprocess.TimeoutExpired: it still runs.
            TestbedError: the server does not answer.
        """
        if self._status is None:
            if not select.select([self._descriptor], [], [], timeout)[0]:
                assert timeout is not None
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self._status = int(self._server.ask({"wait": self.pid})["status"])
            os.close(self._descriptor)
        return self._status

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and the server with it
                signal.pidfd_send_signal(self._descriptor, number)
