"""The installed BMv2 (simple_switch_grpc), whose options depend on how it was built."""

from __future__ import annotations

import functools
import re
import shutil
import socket
import subprocess
from pathlib import Path

from topology.errors import TestbedError

PROGRAM = "simple_switch_grpc"
_OPTION = re.compile(r"--[a-z][a-z0-9-]+")


def find() -> str:
    """Return the path of BMv2.

    Raises:
        TestbedError: it is not installed.
    """
    path = shutil.which(PROGRAM)
    if path is None:
        raise TestbedError("switch", f"{PROGRAM} is not on PATH", "install BMv2, or use SWITCH=softswitch")
    return path


def options() -> frozenset[str]:
    """Return the options that BMv2 lists in its help.

    Raises:
        TestbedError: it is not installed, or does not run.
    """
    return _options(find())


@functools.cache
def _options(path: str) -> frozenset[str]:
    try:
        shown = subprocess.run(
            [path, "--help"], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TestbedError("switch", f"{path} --help fails: {error}") from error
    found = frozenset(_OPTION.findall(shown.stdout + shown.stderr))
    if "--no-p4" not in found:
        output = (shown.stdout + shown.stderr).strip()[-2000:] or "nothing"
        problem = f"{path} --help does not list --no-p4, with exit status {shown.returncode}"
        raise TestbedError("switch", f"{problem}; it says: {output}")
    return found


def own_channels(folder: Path | None = None) -> list[str]:
    """Return the arguments that give a BMv2 its own addresses for Thrift and nanomsg notifications.

    By default every BMv2 of a machine uses the same ones. A build without Thrift or nanomsg exits when it is given
    their options, so these are left out.

    Args:
        folder: existing folder for the socket of the notifications; None uses a TCP port.

    Raises:
        TestbedError: as `options`.
    """
    known = options()
    words = []
    if "--thrift-port" in known:
        words += ["--thrift-port", str(free_port())]
    if "--notifications-addr" in known:
        address = f"tcp://127.0.0.1:{free_port()}" if folder is None else f"ipc://{folder}/notifications.ipc"
        words += ["--notifications-addr", address]
    return words


def check_mutual_tls() -> None:
    """Check that BMv2 supports mutual TLS; older versions and builds without it exit with their help text.

    Raises:
        TestbedError: it does not; or as `options`.
    """
    if "--grpc-server-with-client-auth" not in options():
        raise TestbedError("switch", f"this {PROGRAM} has no mutual TLS (--grpc-server-with-client-auth)",
                           "build a newer BMv2, leave --tls out, or use SWITCH=softswitch")  # fmt: skip


def free_port() -> int:
    """Return a TCP port that is free now. BMv2 accepts no port 0 and does not fail on a port in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
