"""The switches that the contract is for, each started fresh: what differs between them, and nothing else knows."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from controlplane.errors import ControlPlaneError
from controlplane.session import Session
from softswitch.p4rt import Device, serve
from tests.softswitch.netns import why_not
from tests.softswitch.switch_process import SwitchProcess
from tests.switch_contract.relay import Relay
from tests.switch_contract.wire import Cables, Wire
from topology.processes.bmv2 import own_channels

DEVICE_ID = 1
IN_PROCESS, SOFTSWITCH, BMV2 = "in-process", "softswitch", "bmv2"
TARGETS = (IN_PROCESS, SOFTSWITCH, BMV2)
"""The embedded switch without a network, the same as a program on real interfaces, and upstream's switch."""

_BMV2_PROGRAM = "simple_switch_grpc"
_START_S = 30.0


class Running(NamedTuple):
    """A running switch."""

    address: str
    """HOST:PORT of its P4Runtime server."""
    cables: Cables
    """Its ports."""


def missing(target: str) -> str | None:
    """Say why a target cannot run here, None when it can."""
    if target == IN_PROCESS:
        return None
    if target == BMV2 and shutil.which(_BMV2_PROGRAM) is None:
        return f"{_BMV2_PROGRAM} (BMv2) is not on PATH"
    reason = why_not()
    return f"real frames need namespaces: {reason}" if reason else None


@contextmanager
def start(target: str, ports: range, folder: Path) -> Iterator[Running]:
    """Run a switch with an interface at each of `ports` until the block ends; `folder` is for its files."""
    with ExitStack() as stack:
        if target == IN_PROCESS:
            device = Device(DEVICE_ID)
            server = stack.enter_context(serve(device))
            yield Running(server.address, Patchboard(device))
            return
        wire = stack.enter_context(Wire(ports))
        path = folder / f"{target}.sock"
        options = ["--no-p4", "--device-id", str(DEVICE_ID)]
        for port, interface in wire.interfaces.items():
            options += ["-i", f"{port}@{interface}"]
        grpc_options = ["--", "--grpc-server-addr", f"unix:{path}"]
        if target == SOFTSWITCH:
            stack.enter_context(SwitchProcess(*options, *grpc_options, namespace=wire.namespace))
        else:
            options += own_channels(folder)
            stack.enter_context(_bmv2([*options, *grpc_options], wire.namespace, folder / "bmv2.log"))
        relay = stack.enter_context(Relay(str(path)))
        _wait_for(relay.address)
        yield Running(relay.address, wire)


class Patchboard:
    """Cables of a device in this process: what it sends is there at once."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._left: dict[int, deque[bytes]] = {}

    def send(self, port: int, frame: bytes) -> None:
        """Send a frame into `port`."""
        for out, out_frame in self._device.inject(port, frame, 0):
            self._left.setdefault(out, deque()).append(out_frame)

    def receive(self, port: int) -> bytes:
        """Return the next frame that left `port`; LookupError when there is none."""
        try:
            return self._left[port].popleft()
        except (KeyError, IndexError):
            raise LookupError(f"nothing left port {port}") from None

    def carries(self, frame: bytes) -> bool:
        """Return that every frame gets through."""
        return True


@contextmanager
def _bmv2(options: list[str], namespace: str, log: Path) -> Iterator[None]:
    command = ["ip", "netns", "exec", namespace, _BMV2_PROGRAM, *options]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(_START_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(address: str) -> None:
    end = time.monotonic() + _START_S
    pause = threading.Event()
    while True:
        try:
            Session(address, DEVICE_ID, 1.0).close()
            return
        except ControlPlaneError as error:
            if time.monotonic() > end:
                raise AssertionError(f"the switch did not start in {_START_S:g} s: {error}") from error
        pause.wait(0.02)
