"""Starts Python programs as forks of one process that has imported their modules (`fork_server_program`)."""

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
from topology.processes.child import Child, log_tail, spawn
from topology.processes.fork_server_program import MAX_REQUEST_BYTES

PRELOADED_MODULES = (
    "nccl_emu.__main__", "shadow_rx.__main__", "topology.simulation.impairing_bridge",
    "scapy.layers.inet", "torch._dynamo",  # with the first frame; by torch, with the first optimizer
)  # fmt: skip
"""Modules that the server imports by default."""
_READY_SECONDS = 120.0


class ForkServer:
    """A fork server; a context manager that ends the server and, with it, all programs that still run."""

    def __init__(self, log: Path, modules: Sequence[str] = PRELOADED_MODULES, folder: Path | None = None) -> None:
        """Start the server, which imports the modules in the background.

        Args:
            log: file for its messages.
            modules: modules to import.
            folder: working directory of all programs, None for the caller's.

        Raises:
            TestbedError: it cannot be started.
        """
        self._log = log
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_READY_SECONDS)
        command = [sys.executable, "-m", "topology.processes.fork_server_program", str(other.fileno()), *modules]
        with other:
            self._server = spawn("fork server", command, log, subprocess.DEVNULL, [other.fileno()], folder)

    def __enter__(self) -> ForkServer:
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
            name: name for messages, such as ``rank 2``.
            module: the program.
            arguments: its command-line arguments.
            log: file for standard error, appended to.
            within: id of a process whose network and mount namespaces it enters, as Mininet's mnexec does.

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
    ) -> ForkedProcess:
        """Run a program as `start` does, with the caller's file descriptors for standard output and error.

        Raises:
            TestbedError: the server does not answer.
        """
        request = {"module": module, "arguments": list(arguments), "within": within}
        return ForkedProcess(self, self.request(request, [stdout, stderr])["pid"])

    def request(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Send a request; return the reply.

        Raises:
            TestbedError: the server does not answer.
        """
        try:
            socket.send_fds(self._channel, [json.dumps(message).encode()], descriptors)
            reply = self._channel.recv(MAX_REQUEST_BYTES)
            reason = "it has ended"
        except OSError as error:
            reply, reason = b"", str(error)
        if not reply:
            raise TestbedError("fork server", f"it does not answer: {reason}; {log_tail(self._log)}")
        answer: dict[str, Any] = json.loads(reply)
        return answer


class ForkedProcess:
    """A process forked by the server; implements `child.Process`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        """Watch `pid`, which is not reused until the server has returned its exit status."""
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
            self._status = int(self._server.request({"wait": self.pid})["status"])
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
            with contextlib.suppress(ProcessLookupError):  # it has ended, with the server
                signal.pidfd_send_signal(self._descriptor, number)
