"""Each thread of a shadow node and of a rank meets a MemoryError: it is told, and nothing waits for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
import yaml

from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel import side_channel_pb2_grpc as rpc
from nccl_emu.shadow_client.record_sender import RecordSender
from nccl_emu.shadow_client.shadow_session import ShadowSession
from nccl_emu.shadow_client.side_channel import GrpcSideChannel
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode
from shadow_rx.peers.driver import PeerDriver
from shadow_rx.publish.publisher import BackgroundPublisher
from shadow_rx.serve.metrics import PREFIX, MetricsServer
from shadow_rx.serve.service import ShadowServer
from shadow_rx.status.health import Part
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.serve.test_metrics import scrape
from tests.shadow_rx.test_node import NodeRig
from tests.shadow_rx.wire import make_job

DEADLINE_S = 20.0
netns = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None,
    reason="needs root and network namespaces",
)


def fails(*_: object) -> None:
    raise MemoryError("one bad moment")


def await_trouble(look: Callable[[], Part]) -> str:
    deadline = time.monotonic() + DEADLINE_S
    while (trouble := look().trouble) is None:
        assert time.monotonic() < deadline, "nobody tells that the thread has died"
        time.sleep(0.005)
    return trouble


@pytest.fixture
def node() -> ShadowNode:
    return ShadowNode(ShadowCore(make_job(), "sh0"), time.monotonic)


def test_the_publishers_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, told = RecoveryStore(tmp_path), threading.Event()
    monkeypatch.setattr(store, "publish", fails)
    publisher = BackgroundPublisher(store, on_death=lambda *_: told.set())
    rig = NodeRig(publisher)
    rig.begin()
    rig.step()
    assert told.wait(DEADLINE_S)
    assert "MemoryError" in await_trouble(publisher.part)
    rig.node.close()


def test_the_peer_drivers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is not held back for peers that nobody asks any more."""
    job = make_job(shadows=2)
    groups = [job.groups[0].model_copy(update={"shadows": ["sh0", "sh1"]})]
    rig = NodeRig(None)
    rig.core = ShadowCore(job.model_copy(update={"groups": groups}), "sh0")
    rig.node = ShadowNode(rig.core, lambda: rig.now)
    monkeypatch.setattr(rig.node.core.group("dp0").peers, "request", fails)
    with PeerDriver(rig.node, {"sh1": "unix:/nowhere"}) as driver:
        assert "MemoryError" in await_trouble(driver.part)
        rig.begin()
        rig.step()
        rig.node.on_frames(rig.train()[1:])
        for message in rig.twin.records(1):
            rig.node.record(message)
        for _ in range(4):
            rig.step()
    gap = rig.node.explain("dp0", 2)
    assert gap is not None
    assert gap.reason == "lost_bytes"
    assert rig.node.status("dp0").health.replica_lag.reason == "lost_bytes"
    assert not rig.core.group("dp0").progress.epoch.awaits_peers  # type: ignore[union-attr]


def test_the_metrics_thread(node: ShadowNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadow_rx.serve.metrics.metrics_http", lambda *_: _BrokenServer())
    server = MetricsServer(node, "127.0.0.1:0")
    assert "MemoryError" in await_trouble(server.part)
    server.stop()


class _BrokenServer:
    server_port = 1

    def serve_forever(self) -> None:
        fails()

    def shutdown(self) -> None:
        pytest.fail("waits for a loop that is over")

    def server_close(self) -> None:
        pass


def test_a_ranks_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = GrpcSideChannel("unix:/nowhere")
    session = ShadowSession(channel, "dp0", 1, [], lambda *_: None)
    monkeypatch.setattr(session, "send_next", fails)
    told: list[str] = []
    sender = RecordSender(session, lambda name, trouble: told.append(f"{name} {trouble}"))
    sender.send(pb.StepRecord(group="dp0", epoch=1, step=1))
    unsent = sender.finish(DEADLINE_S)
    assert unsent is not None
    assert "MemoryError" in unsent
    assert told == [f"step records {unsent}"]
    channel.close()


def test_the_status_and_the_metrics_have_every_part(node: ShadowNode, tmp_path: Path) -> None:
    node.add_part(lambda: Part("capture", "interface x: it is gone"))
    node.add_part(lambda: Part("events", lost=7))
    server, metrics = ShadowServer(node, f"unix:{tmp_path}/side.sock"), MetricsServer(node, "127.0.0.1:0")
    try:
        with grpc.insecure_channel(server.address) as channel:
            told = rpc.ShadowStub(channel).GetNodeStatus(pb.NodeStatusRequest(), timeout=10)  # type: ignore[no-untyped-call]
        assert [(part.name, part.trouble, part.lost) for part in told.parts] == [
            ("capture", "interface x: it is gone", 0), ("events", "", 7),
        ]  # fmt: skip
        found = scrape(metrics)
        common = {"training_job": "test", "shadow": "sh0"}
        for name, up, lost in (("capture", 0, 0), ("events", 1, 7)):
            labels = frozenset({**common, "part": name}.items())
            assert found[f"{PREFIX}part_up", labels] == up
            assert found[f"{PREFIX}part_lost_total", labels] == lost
    finally:
        metrics.stop()
        server.stop()


def test_connections_that_break_leave_no_traceback(node: ShadowNode, capfd: pytest.CaptureFixture[str]) -> None:
    server = MetricsServer(node, "127.0.0.1:0")
    host, port = server.address.rsplit(":", 1)
    for said in (b"", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=10) as wire:
            wire.sendall(said)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing sends a reset
    assert scrape(server)
    deadline = time.monotonic() + DEADLINE_S
    while any("process_request_thread" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    server.stop()
    assert "Traceback" not in capfd.readouterr().err


# ---- capture, on real interfaces ----

_CAPTURE = """
import socket, subprocess, sys, time
for name in ("x", "y"):
    for command in (f"link add {name}0 type veth peer name {name}1", f"link set {name}0 up", f"link set {name}1 up"):
        subprocess.run(["ip", *command.split()], check=True)
from shadow_rx.receive.live import LiveCapture

def sender(name):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind((name, 0))
    return wire

def frame(mark):
    return bytes.fromhex("020000000001020000000002 88b5") + mark + bytes(60)

def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.002)

class Node:
    def __init__(self): self.seen = []
    def on_batch(self, batch):
        found = [bytes(batch.data[at : at + 15]) for at in batch.starts]
        self.new = [frame[14:] for frame in found if frame[12:14] == b"\\x88\\xb5"]
        self.seen += self.new
    def count_kernel_drops(self, count): pass
"""
_DIES = """
class Failing(Node):
    def on_batch(self, batch): raise MemoryError("one bad moment")
told = []
capture = LiveCapture(Failing(), ["x1"], lambda *found: told.append(found))
capture.start()
sender("x0").send(frame(b"X"))
until(lambda: told)
assert "MemoryError" in capture.part().trouble, capture.part()
capture.stop()
"""
_STARVES = """
class Flooded(Node):
    # Each batch of the one interface brings as many new frames on it: it never runs empty.
    def on_batch(self, batch):
        super().on_batch(batch)
        for _ in range(self.new.count(b"X")): flood.send(frame(b"X"))
flood, quiet = sender("x0"), sender("y0")
node = Flooded()
capture = LiveCapture(node, ["x1", "y1"])
for _ in range(300): flood.send(frame(b"X"))
quiet.send(frame(b"Y"))
capture.start()
until(lambda: b"Y" in node.seen)
capture.stop()
assert capture.part().trouble is None, capture.part()
"""
_LAST = """
node = Node()
capture = LiveCapture(node, ["x1"])
wire = sender("x0")
for _ in range(1000): wire.send(frame(b"X"))
capture.start()
capture.stop()
assert node.seen.count(b"X") == 1000, len(node.seen)
"""


@netns
@pytest.mark.netns
@pytest.mark.parametrize("script", [_DIES, _STARVES, _LAST], ids=["dies", "starves", "hands over the last"])
def test_capture(script: str) -> None:
    command = ["unshare", "--net", sys.executable, "-c", _CAPTURE + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if "unshare failed" in done.stderr:
        pytest.skip("network namespaces are not permitted here")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a shadow node as a process whose capture meets a MemoryError with the first frame."""
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(make_job().model_dump(mode="json")))
    program = (
        "import sys\nfrom shadow_rx.node import ShadowNode\n"
        "def fails(self, frames): raise MemoryError('one bad moment')\n"
        "ShadowNode.on_batch = fails\nfrom shadow_rx.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    )
    options = {"--job": f"{tmp_path}/job.yaml", "--shadow": "sh0", "--iface": "lo", "--listen": "127.0.0.1:0"}
    command = [sys.executable, "-c", program, *(part for pair in options.items() for part in pair)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield running
    if running.poll() is None:
        running.send_signal(signal.SIGKILL)
    running.communicate()


@netns
@pytest.mark.netns
def test_a_process_whose_capture_dies_ends_and_says_why(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    host, port = ready["listen"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10):  # frames on the interface
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "shadow sh0: thread capture ended by MemoryError: one bad moment" in errors
    assert json.loads(output)["event"] == "final"
