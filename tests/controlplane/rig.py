"""Switches for the tests: the embedded one in this process, and BMv2 where it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.errors import ControlPlaneError
from controlplane.target import Target
from softswitch.p4rt import Device, serve
from topology.processes.bmv2 import free_port, own_channels

BMV2 = "simple_switch_grpc"


@contextmanager
def embedded(device: Device) -> Iterator[str]:
    """Serve `device`; yield its address."""
    with serve(device) as server:
        yield server.address


@contextmanager
def embedded_process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the embedded switch as a program, without interfaces; yield the process and its address."""
    command = [sys.executable, "-m", "softswitch", "--no-p4", "--device-id", "1"]
    command += ["--", "--grpc-server-addr", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["grpc"]
        finally:
            process.terminate()


@contextmanager
def bmv2(folder: Path, device_id: int = 1) -> Iterator[str]:
    """Run BMv2 without interfaces; yield its address."""
    address = f"127.0.0.1:{free_port()}"
    own = own_channels(folder)
    command = [BMV2, "--no-p4", "--device-id", str(device_id), *own, "--", "--grpc-server-addr", address]
    with (folder / "bmv2.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        eventually(lambda: process.poll() is not None or _answers(address), "BMv2 answers")
        assert process.poll() is None, (folder / "bmv2.log").read_text()
        yield address
    finally:
        process.terminate()
        process.wait(10)


def _answers(address: str) -> bool:
    try:
        Target.connect(address, 1).close()
    except ControlPlaneError:
        return False
    return True


@contextmanager
def switch(kind: str, folder: Path, device_id: int = 1) -> Iterator[str]:
    """Run a fresh switch of one kind; yield its address. Skips the test where the kind is not installed."""
    if kind == "softswitch":
        with embedded(Device(device_id)) as address:
            yield address
    else:
        if shutil.which(BMV2) is None:
            pytest.skip(f"{BMV2} is not installed")
        with bmv2(folder, device_id) as address:
            yield address


def eventually(holds: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Wait until `holds()` is true; fail after `timeout_s` seconds."""
    end = time.monotonic() + timeout_s
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < end, f"not in {timeout_s} s: {what}"
        pause.wait(0.01)
