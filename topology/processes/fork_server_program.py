"""A fork server, ``python -m topology.processes.fork_server_program FD MODULE...``: imports modules, forks programs.

Importing torch and its compiler takes each rank and shadow node 3 to 4 seconds of processor time, most of a testbed run
on a small machine. A forked program is an ordinary process with its own session, namespaces, signals and exit status,
whose modules are imported already.

Requests arrive on the sequenced-packet socket FD. Each is a JSON object and gets one in reply:

* ``{"module", "arguments", "within"}``, with file descriptors for standard output and error: fork, enter the network
  and mount namespaces of process `within` (null: stay), run the module as ``python -m`` does. Reply: ``{"pid"}``.
* ``{"wait": pid}``: of a program that has ended. Reply: ``{"status"}``, negative after a signal.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topology.processes.child import die_with_parent

MAX_REQUEST_BYTES = 1 << 16
_NAMESPACES = ("net", "mnt")


@dataclass(frozen=True)
class Program:
    """What a forked process runs."""

    module: str
    arguments: tuple[str, ...]


def serve(channel: socket.socket) -> Program | None:
    """Answer requests until the other end closes, then return None. In a forked process, return its program."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, 2)
        if not data:
            return None
        request: dict[str, Any] = json.loads(data)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            reply = {"status": os.waitstatus_to_exitcode(status)}
        else:
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                channel.close()
                _detach(server, descriptors, request["within"])
                return Program(request["module"], tuple(request["arguments"]))
            for descriptor in descriptors:
                os.close(descriptor)
            reply = {"pid": pid}
        channel.send(json.dumps(reply).encode())


def _detach(server: int, descriptors: Sequence[int], within: int | None) -> None:
    """Make a forked process independent of the server, except that it ends when the server ends."""
    os.setsid()
    die_with_parent(server)
    for number, descriptor in zip((1, 2), descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if within is not None:
        folder = Path.cwd()
        for name in _NAMESPACES:
            _enter(f"/proc/{within}/ns/{name}")
        os.chdir(folder)


def _enter(path: str) -> None:
    """Enter a namespace (setns(2))."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(descriptor)


def main(arguments: Sequence[str]) -> int:
    """Import the modules and serve; in a forked process, run its program."""
    for name in arguments[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # otherwise garbage collection would copy the shared pages in each process
    program = serve(socket.socket(fileno=int(arguments[0])))
    if program is not None:
        sys.argv = [program.module, *program.arguments]
        for name in (program.module, f"{program.module}.__main__"):
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)  # runpy runs the module itself again; its imports stay
        runpy.run_module(program.module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
