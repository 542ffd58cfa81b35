"""A switch process that is killed and started again under a running controller: real frames, real P4Runtime."""

from __future__ import annotations

import itertools
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from controlplane.controller import ControllerCore, ControllerEvent, EventKind
from controlplane.controller_driver import ControllerDriver
from controlplane.desired import desired_state
from controlplane.target import Target
from p4src.constants import NotReplicated
from p4src.names import Table
from softswitch.p4rt import Device, serve
from tests.controlplane.jobs import JobText
from tests.controlplane.rig import BMV2
from tests.controlplane.test_flow_starts import segment
from tests.softswitch.netns import ip, why_not
from topology.processes.bmv2 import free_port, own_channels

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(why_not() is not None, reason=f"real frames need namespaces: {why_not()}"),
]
JOB = JobText().job()
FLOW = JOB.flows[0]
SHADOW = JOB.shadows[0]
PORTS = (FLOW.source.port, FLOW.target.port, SHADOW.port)
ISN = 0xFFFF_FF00
WAIT_S = 20.0
_SERIAL = itertools.count()


class Cables:
    """A veth pair for each port, the switch at the near end, a raw socket at the far one."""

    def __init__(self) -> None:
        self.stem = f"ck{os.getpid()}{next(_SERIAL)}"
        self.near = {port: f"{self.stem}s{port}" for port in PORTS}
        self.far: dict[int, socket.socket] = {}
        for port, name in self.near.items():
            peer = f"{self.stem}h{port}"
            ip("link", "add", name, "type", "veth", "peer", "name", peer)
            for end in (name, peer):
                Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
                ip("link", "set", end, "up")
            raw = self.far[port] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            raw.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
            raw.bind((peer, 3))

    def send(self, port: int, frame: bytes) -> None:
        self.far[port].send(frame)

    def receive(self, port: int, timeout_s: float = WAIT_S) -> Ether | None:
        if not select.select([self.far[port]], [], [], timeout_s)[0]:
            return None
        return Ether(self.far[port].recv(2000))

    def close(self) -> None:
        for raw in self.far.values():
            raw.close()
        for name in self.near.values():
            subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


@contextmanager
def running(kind: str, cables: Cables, address: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a switch on the cables; it is killed at the end."""
    program = [sys.executable, "-m", "softswitch"] if kind == "softswitch" else [BMV2]
    command = [*program, "--no-p4", "--device-id", "1"]
    if kind == "bmv2":
        command += own_channels(folder)
    for port, name in cables.near.items():
        command += ["-i", f"{port}@{name}"]
    with (folder / "switch.log").open("ab") as log:
        process = subprocess.Popen([*command, "--", "--grpc-server-addr", address], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)


def data(port: int, offset: int, isn: int = ISN) -> bytes:
    return segment(JOB, FLOW, port=port, seq=(isn + 1 + offset) % 2**32, payload=b"x" * 100)


def syn(port: int, isn: int = ISN) -> bytes:
    return segment(JOB, FLOW, port=port, seq=isn, flags="S")


@pytest.mark.parametrize("kind", ["softswitch", "bmv2"])
def test_a_killed_switch_goes_on_at_the_right_position(kind: str, tmp_path: Path) -> None:
    if kind == "bmv2" and shutil.which(BMV2) is None:
        pytest.skip(f"{BMV2} is not on PATH")
    source, target, shadow = PORTS
    events: list[ControllerEvent] = []
    address = f"127.0.0.1:{free_port()}"
    standby = Device(1)
    with ExitStack() as stack:
        cables = Cables()
        stack.callback(cables.close)
        spare = stack.enter_context(serve(standby))
        core = ControllerCore([address, spare.address], desired_state([JOB]))
        controller = stack.enter_context(ControllerDriver(core, 1, on_event=events.append))
        with running(kind, cables, address, tmp_path) as process:
            assert controller.wait_ready(WAIT_S), events
            cables.send(source, syn(40000))
            assert cables.receive(target) == Ether(syn(40000))
            replica = cables.receive(shadow)
            assert replica is not None
            assert replica[TCP].seq == 0
            assert controller.wait(lambda core: len(core.journal) == 1, WAIT_S)
            assert controller.wait_ready(WAIT_S)
            # The standby is prepared: it never saw the SYN.
            copies = dict(standby.inject(source, data(40000, 500), 0))
            assert Ether(copies[shadow])[TCP].seq == 501
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT_S)
            assert controller.wait(lambda core: not core.is_ready(address), WAIT_S)
        with running(kind, cables, address, tmp_path):
            began = time.monotonic()
            assert controller.wait_ready(WAIT_S), events
            print(f"{kind}: {time.monotonic() - began:.3f} s until it was restored")
            original = data(40000, 1000)
            cables.send(source, original)
            assert cables.receive(target) == Ether(original)
            replica = cables.receive(shadow)
            assert replica is not None
            assert (replica[TCP].seq, replica[IP].dst) == (1001, str(SHADOW.ip))
            # A new connection sets the register again, and the old one's entry gives nobody a position any more.
            cables.send(source, syn(40001, isn=5))
            assert cables.receive(target) is not None
            assert cables.receive(shadow) is not None
            cables.send(source, data(40000, 1100))
            cables.send(source, data(40001, 7, isn=5))
            assert [cables.receive(target) for _ in range(2)] == [Ether(data(40000, 1100)), Ether(data(40001, 7, 5))]
            replica = cables.receive(shadow)
            assert replica is not None
            assert (replica[TCP].sport, replica[TCP].seq) == (40001, 8)
            assert controller.wait(lambda core: core.journal.starts()[0].src_port == 40001, WAIT_S)
            assert controller.wait_ready(WAIT_S)
            with Target.connect(address, 1) as reader:
                state, counters = reader.read_counters()
            assert state.table(Table.FLOW_BASE) == ()
            assert counters.not_replicated[NotReplicated.UNKNOWN_ISN].packets == 0
            assert counters.not_replicated[NotReplicated.LATE_CONNECTION].packets == 1
            # What the old connection left in the standby is gone too.
            assert dict(standby.inject(source, data(40000, 500), 1)).keys() == {target}
            assert Ether(dict(standby.inject(source, data(40001, 7, isn=5), 2))[shadow])[TCP].seq == 8
            kinds = [event.kind for event in events if event.switch == address]
            assert kinds.count(EventKind.LOST) == 1
    restored = [event for event in events if event.kind is EventKind.INSTALLED and "after_s" in event.details]
    assert [event.details["connections"] for event in restored] == [1]
