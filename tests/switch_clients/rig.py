"""Switches for clients that were not written with our code in mind: embedded and BMv2, with and without ports."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from softswitch.p4rt import Device, serve
from tests.softswitch.netns import Host, Star, why_not
from tests.softswitch.switch_process import SwitchProcess
from topology.processes.bmv2 import free_port, own_channels

TARGETS = ("softswitch", "bmv2")
BMV2 = "simple_switch_grpc"
DEVICE_ID = 1
START_S = 20.0
MTU = 9000
HOSTS = 3
_EAGER = [("grpc.initial_reconnect_backoff_ms", 20), ("grpc.min_reconnect_backoff_ms", 20)]


@dataclass(frozen=True)
class Network:
    """A running switch with a host at each of its ports 1, 2, 3..."""

    address: str
    """Of its P4Runtime server."""
    hosts: dict[int, Host]
    """Port -> host."""


@contextmanager
def control_only(target: str) -> Iterator[str]:
    """Run a fresh switch without ports and without a program; yield the address of its P4Runtime server."""
    if target == "softswitch":
        with serve(Device(DEVICE_ID)) as server:
            yield server.address
        return
    with tempfile.TemporaryDirectory(prefix="switch-") as folder:
        # BMv2 takes no port 0, and does not fail at a port that is taken.
        address = f"127.0.0.1:{free_port()}"
        with _bmv2(address, Path(folder), None):
            yield address


@contextmanager
def wired(target: str) -> Iterator[Network]:
    """Run a fresh switch in a namespace, each port a veth pair to a host of its own."""
    missing = why_not()
    if missing is not None:
        pytest.skip(f"real frames need namespaces: {missing}")
    _need(target)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switch-")))
        star = stack.enter_context(Star(HOSTS, MTU))
        # Reachable from outside of the switch's network namespace.
        address = f"unix:{folder}/p4rt.sock"
        if target == "softswitch":
            stack.enter_context(SwitchProcess(*_arguments(address, star), namespace=star.switch))
        else:
            stack.enter_context(_bmv2(address, folder, star))
        yield Network(address, star.hosts)


def _arguments(address: str, star: Star | None) -> list[str]:
    ports = star.interfaces if star is not None else {}
    interfaces = [word for number, name in ports.items() for word in ("-i", f"{number}@{name}")]
    return ["--no-p4", "--device-id", str(DEVICE_ID), *interfaces, "--", "--grpc-server-addr", address]


def _need(target: str) -> None:
    if target == "bmv2" and shutil.which(BMV2) is None:
        pytest.skip(f"{BMV2} (BMv2) is not installed")


@contextmanager
def _bmv2(address: str, folder: Path, star: Star | None) -> Iterator[None]:
    _need("bmv2")
    own = own_channels(folder)
    inside = ["ip", "netns", "exec", star.switch] if star is not None else []
    log = folder / "bmv2.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*inside, BMV2, *own, *_arguments(address, star)], cwd=folder, stdout=output, stderr=output
        )
    try:
        with grpc.insecure_channel(address, _EAGER) as channel:
            try:
                grpc.channel_ready_future(channel).result(START_S)
            except grpc.FutureTimeoutError:
                pytest.fail(f"{BMV2} does not answer: exit status {process.poll()}\n{log.read_text()}")
        yield
    finally:
        process.terminate()
        process.wait(START_S)
