"""The process: captures from a real interface, in a network namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import torch
import yaml
from typer.testing import CliRunner

from checkmate.cli import app
from checkmate_common.recovery.point import read_recovery_point
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel import side_channel_pb2_grpc as rpc
from checkmate_common.sidechannel.upload import state_chunks, state_header
from jobspec.store import StoreSpec
from shadow_rx.__main__ import main
from tests.shadow_rx.twin import Twin, as_bytes, make_layout
from tests.shadow_rx.wire import make_job

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None,
        reason="needs root and network namespaces",
    ),
]
# Sends each frame of standard input (16-bit length, then the bytes) from one end of a veth pair of the namespace.
_SENDER = """
import socket, struct, sys
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((sys.argv[1], 0))
while head := sys.stdin.buffer.read(2):
    out.send(sys.stdin.buffer.read(struct.unpack("!H", head)[0]))
    sys.stdout.buffer.write(b".")
    sys.stdout.buffer.flush()
"""


@pytest.fixture
def namespace() -> Iterator[list[str]]:
    """Return the prefix of commands that run in a new namespace with veth pairs ``rank`` - ``shadow``.

    A second pair is ``rank-b`` - ``shadow-b``.
    """
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != b"ready\n":
        pytest.skip("network namespaces are not permitted here")
    enter = ["nsenter", "--net", "--target", str(holder.pid)]
    for command in (
        "ip link add rank mtu 9000 type veth peer name shadow mtu 9000",
        "ip link add rank-b mtu 9000 type veth peer name shadow-b mtu 9000",
        "sysctl -qw net.ipv6.conf.all.disable_ipv6=1",
        "ip link set rank up",
        "ip link set shadow up",
        "ip link set rank-b up",
        "ip link set shadow-b up",
    ):
        subprocess.run([*enter, *command.split()], check=True)
    yield enter
    assert holder.stdin is not None
    holder.stdin.close()
    holder.wait(10)
    holder.stdout.close()


class Sender:
    def __init__(self, enter: list[str], interface: str = "rank") -> None:
        self.process = subprocess.Popen(
            [*enter, sys.executable, "-c", _SENDER, interface], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def send(self, frames: list[bytes]) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for frame in frames:
            self.process.stdin.write(struct.pack("!H", len(frame)) + frame)
        self.process.stdin.flush()
        assert self.process.stdout.read(len(frames)) == b"." * len(frames)

    def close(self) -> None:
        self.process.communicate(timeout=10)


def _start(enter: list[str], *arguments: str) -> subprocess.Popen[str]:
    command = [*enter, sys.executable, "-m", "shadow_rx", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_process_follows_a_job(namespace: list[str], tmp_path: Path) -> None:
    # Each step as a whole, so that --stored-steps 2 leaves two of them.
    job = make_job().model_copy(update={"store": StoreSpec(base_every=1)})
    twin = Twin(job, make_layout([(300, 70), (33,)], 40_000))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job.model_dump(mode="json")))
    process = _start(
        namespace, "--job", f"{tmp_path}/job.yaml", "--shadow", "sh0", "--iface", "shadow",
        "--listen", f"unix:{tmp_path}/side.sock", "--store", f"{tmp_path}/store", "--stored-steps", "2",
        "--window", "3",
    )  # fmt: skip
    sender = Sender(namespace)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["event"], ready["job"], ready["groups"]) == ("ready", "test", ["dp0"])
        assert ready["pid"] == process.pid
        with grpc.insecure_channel(ready["listen"]) as channel:
            stub = rpc.ShadowStub(channel)
            assert stub.Attach(twin.attach()).need_state
            state = twin.state_bytes()
            stub.UploadState(state_chunks(state_header("dp0", 1, state), state))
            for message in twin.open_flows():
                stub.OpenFlow(message)
            sender.send(twin.syns())
            sent = 0
            for step in range(1, 6):
                frames = twin.frames(twin.train(), mss=8960)
                sender.send([b"\xff" * 6 + frames[0][6:], *frames])
                sent += len(frames)
                for message in twin.records():
                    stub.RecordStep(message)
                status = stub.WaitForStep(pb.WaitRequest(group="dp0", step=step, timeout_seconds=20))
                assert status.replica_step == step, status
            assert status.replica_packets == sent + len(job.flows)
            assert status.discarded == {"not_for_us": 5}
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=20)
        final = json.loads(output)
        assert (final["event"], final["capture_error"], errors) == ("final", None, "")
        # Step numbers are 64-bit, which the protobuf JSON mapping writes as text.
        assert final["groups"]["dp0"]["durableStep"] == "5"
        assert process.returncode == 0
        assert sorted(p.name for p in (tmp_path / "store/dp0/epoch-0001").iterdir()) == [
            "step-00000004", "step-00000005",
        ]  # fmt: skip
        point = read_recovery_point(tmp_path / "store/dp0/epoch-0001/step-00000005")
        tensors = {k: v for k, v in point.tensors.items() if not k.startswith("rank/")}
        assert as_bytes(tensors) == as_bytes(twin.state())
    finally:
        sender.close()
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_a_process_tells_its_status_and_serves_metrics(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(make_job().model_dump(mode="json")))
    process = _start(
        [], "--job", f"{tmp_path}/job.yaml", "--shadow", "sh0", "--iface", "lo", "--listen", "127.0.0.1:0",
        "--metrics", "127.0.0.1:0", "--events", f"{tmp_path}/events.jsonl", "--store", f"{tmp_path}/store",
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=20) as reply:
            text = reply.read().decode()
        assert 'checkmate_shadow_trained_step{group="dp0",shadow="sh0",training_job="test"} 0.0' in text
        shown = CliRunner().invoke(app, ["status", ready["listen"], "--json"])
        assert json.loads(shown.stdout)["shadow"] == "sh0"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
        assert json.loads(output)["event"] == "final"
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_replicas_are_taken_from_every_interface(namespace: list[str], tmp_path: Path) -> None:
    """As with a standby switch: a part comes the one way, the rest the other, and the first way goes down."""
    job = make_job()
    twin = Twin(job, make_layout([(300, 70), (33,)], 40_000))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job.model_dump(mode="json")))
    process = _start(
        namespace, "--job", f"{tmp_path}/job.yaml", "--shadow", "sh0", "--iface", "shadow", "--iface", "shadow-b",
        "--listen", f"unix:{tmp_path}/side.sock",
    )  # fmt: skip
    one, other = Sender(namespace), Sender(namespace, "rank-b")
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["interfaces"] == ["shadow", "shadow-b"]
        with grpc.insecure_channel(ready["listen"]) as channel:
            stub = rpc.ShadowStub(channel)
            assert stub.Attach(twin.attach()).need_state
            state = twin.state_bytes()
            stub.UploadState(state_chunks(state_header("dp0", 1, state), state))
            for message in twin.open_flows():
                stub.OpenFlow(message)
            one.send(twin.syns())
            for step in range(1, 4):
                frames = twin.frames(twin.train(), mss=8960)
                if step < 3:
                    one.send(frames[::2])
                    other.send(frames[1::2])
                else:
                    subprocess.run([*namespace, "ip", "link", "set", "shadow", "down"], check=True)
                    other.send(frames)
                for message in twin.records():
                    stub.RecordStep(message)
                status = stub.WaitForStep(pb.WaitRequest(group="dp0", step=step, timeout_seconds=20))
                assert status.replica_step == step, status
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
        assert json.loads(output)["capture_error"] == "interface shadow: [Errno 100] Network is down"
    finally:
        one.close()
        other.close()
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--job": "missing.yaml"}, "missing.yaml"),
        ({"--shadow": "sh9"}, "no shadow 'sh9'"),
        ({"--iface": "nowhere"}, "nowhere"),
        ({"--window": "1"}, "window: 1, expected at least 2"),
        ({"--stored-steps": "0"}, "stored steps: 0, expected at least 1"),
        ({"--listen": "unix:/nowhere/at/all.sock"}, "cannot listen"),
    ],
)
def test_a_process_that_cannot_start_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], message: str
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(make_job().model_dump(mode="json")))
    options = {
        "--job": f"{tmp_path}/job.yaml", "--shadow": "sh0", "--iface": "lo", "--listen": "127.0.0.1:0",
        "--store": f"{tmp_path}/store", "--threads": str(torch.get_num_threads()), **change,
    }  # fmt: skip
    threads = threading.active_count()
    assert main([part for pair in options.items() for part in pair]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert message in errors
    assert threading.active_count() == threads
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
