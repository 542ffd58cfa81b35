"""Starts a switch process; hides the differences between softswitch and BMv2."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from checkmate_common.tls import ClientTls
from controlplane.errors import ControlPlaneError
from controlplane.target import Target
from jobspec.model import SwitchSpec
from topology.errors import TestbedError
from topology.fabric.run_tls import RunTls
from topology.processes import bmv2
from topology.processes.child import Child, follow

_READY_SECONDS = 30.0


def start_switch(
    program: str,
    spec: SwitchSpec,
    interfaces: Mapping[int, str],
    captures: Path,
    log: Path,
    address: str | None = None,
    tls: RunTls | None = None,
    certificate: str | None = None,
) -> tuple[Child, str]:
    """Start a switch and wait until its P4Runtime server answers; return the process and the server's address.

    Args:
        program: ``softswitch`` or ``bmv2``.
        spec: the switch.
        interfaces: port -> interface; all are up and configured.
        captures: folder for ``INTERFACE_in.pcap`` and ``INTERFACE_out.pcap``.
        log: file for its messages.
        address: HOST:PORT of the P4Runtime server; None uses a free port.
        tls: credentials of the run, None for plain text.
        certificate: name of the switch whose certificate it uses, by default its own.

    Raises:
        TestbedError: it is not installed, or does not start.
    """
    server = tls.switch_arguments(certificate or spec.name) if tls is not None else []
    if program == "softswitch":
        return _start_softswitch(spec, interfaces, captures, log, address, server)
    if program == "bmv2":
        controller = tls.controller() if tls is not None else None
        return _start_bmv2(spec, interfaces, captures, log, address, server, controller)
    raise TestbedError("switch", f"no program is called {program!r}", "use softswitch or bmv2")


def _common_arguments(spec: SwitchSpec, interfaces: Mapping[int, str], captures: Path) -> list[str]:
    words = ["--no-p4", "--device-id", str(spec.device_id), f"--pcap={captures}"]
    for port, interface in sorted(interfaces.items()):
        words += ["-i", f"{port}@{interface}"]
    return words


def _start_softswitch(
    spec: SwitchSpec,
    interfaces: Mapping[int, str],
    captures: Path,
    log: Path,
    requested: str | None,
    tls_options: Sequence[str],
) -> tuple[Child, str]:
    command = [sys.executable, "-m", "softswitch", *_common_arguments(spec, interfaces, captures)]
    server = ["--grpc-server-addr", requested or "127.0.0.1:0", *tls_options]
    child = Child.run(f"switch {spec.name}", [*command, "--", *server], log)
    address = ""

    def on_line(_: Child, line: dict[str, object]) -> None:
        nonlocal address
        if line.get("event") == "ready":
            address = str(line["grpc"])

    try:
        follow([child], on_line, lambda: bool(address), idle_limit=_READY_SECONDS)
    except BaseException:
        child.stop()
        raise
    return child, address


def _start_bmv2(
    spec: SwitchSpec,
    interfaces: Mapping[int, str],
    captures: Path,
    log: Path,
    requested: str | None,
    tls_options: Sequence[str],
    controller: ClientTls | None,
) -> tuple[Child, str]:
    program = bmv2.find()
    if tls_options:
        bmv2.check_mutual_tls()
    address = requested or f"127.0.0.1:{bmv2.free_port()}"
    command = [program, *_common_arguments(spec, interfaces, captures), *bmv2.own_channels()]
    child = Child.run(f"switch {spec.name}", [*command, "--", "--grpc-server-addr", address, *tls_options], log)
    deadline = time.monotonic() + _READY_SECONDS
    try:
        while True:
            try:
                Target.connect(address, spec.device_id, timeout_s=1.0, tls=controller).close()
                return child, address
            except ControlPlaneError as error:
                if not child.running or time.monotonic() > deadline:
                    raise child.failure(f"its P4Runtime server does not answer: {error}") from error
    except BaseException:
        child.stop()
        raise
