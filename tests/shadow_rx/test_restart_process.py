"""A shadow process that is killed (SIGKILL) in the middle of a step, and started again with its store."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from checkmate_common.sidechannel.side_channel_pb2 import Status
from nccl_emu.shadow_client.shadow_session import ShadowSession
from nccl_emu.shadow_client.side_channel import GrpcSideChannel
from tests.shadow_rx.twin import Twin, as_bytes, make_layout
from tests.shadow_rx.wire import make_job

INTERFACE = "lo"
KILLED_AT = (2, 5)
STEPS = 8
PATIENCE_S = 40.0


class Process:
    """The shadow as a process on the loopback interface."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = make_job(2)
        self.address = f"unix:{folder}/s"
        (folder / "job.yaml").write_text(yaml.safe_dump(self.job.model_dump(mode="json")))
        self.process: subprocess.Popen[str] | None = None

    def start(self, *options: str) -> None:
        command = [
            sys.executable, "-m", "shadow_rx", "--job", str(self.folder / "job.yaml"), "--shadow", "sh0",
            "--iface", INTERFACE, "--listen", self.address, "--store", str(self.folder / "store"),
            "--events", str(self.folder / "events.jsonl"), *options,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def await_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        assert json.loads(line)["event"] == "ready"

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def shadow(tmp_path: Path) -> Iterator[Process]:
    shadow = Process(tmp_path)
    shadow.start()
    yield shadow
    shadow.kill()


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="packet sockets need root")
@pytest.mark.timeout(240)
def test_a_killed_shadow_resumes_and_ends_verified(shadow: Process) -> None:
    shadow.await_ready()
    job = shadow.job
    twin = Twin(job, make_layout())
    channel = GrpcSideChannel(shadow.address, 20.0)
    attach = twin.attach(1, communicator="c", uploads_on_demand=True)
    refused: list[tuple[int, str]] = []
    sessions = []
    for rank in range(2):
        flows = [(m.flow_id, m.source_port) for m in twin.open_flows() if job.flows[m.flow_id - 3].rank == rank]
        told = attach if rank == 0 else None
        sessions.append(ShadowSession(channel, "dp0", 1, flows, lambda *what: refused.append(what), told))
    sessions[0].begin(twin.state_bytes)
    for session in sessions:
        session.announce()
    rng = random.Random(4)
    truth = {}
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind((INTERFACE, 0))
    for step in range(1, STEPS + 1):
        frames = twin.frames(twin.train())
        truth[step] = as_bytes(twin.state())
        cut = rng.randrange(len(frames)) if step in KILLED_AT else len(frames)
        for frame in frames[:cut]:
            wire.send(frame)
        if step in KILLED_AT:
            shadow.kill()
            shadow.start("--resume")
            for session in sessions:
                assert session.flush(), "nothing waits yet"
        for frame in frames[cut:]:
            wire.send(frame)
        for rank, record in enumerate(twin.records(1)):
            sessions[rank].offer(record)
        if step in KILLED_AT:
            shadow.await_ready()
            status = channel.status("dp0")
            assert status.durable_step == status.replica_step < step, "what is on storage is there at once"
        flush(sessions)
        if sessions[0].wants_state(step):
            sessions[0].offer_state(step, twin.state_bytes())
            flush(sessions)
        if step not in KILLED_AT:
            channel.wait_for_step("dp0", step, 2.0)
            await_durable(channel)
    wire.close()
    assert refused == []
    status = channel.wait_for_step("dp0", STEPS, 5.0)
    assert status.replica_step == STEPS, status
    status = await_durable(channel)
    assert status.durable_step == STEPS, status
    lost = {gap.step: gap for gap in status.gaps}
    assert set(KILLED_AT) <= set(lost)
    assert len(lost) <= 2 * len(KILLED_AT)
    for step in truth.keys() - lost.keys():
        assert as_bytes({k: v for k, v in channel.recovery_point("dp0", step).tensors.items()
                         if not k.startswith("rank/")}) == truth[step]  # fmt: skip
    assert all(gap.detail for gap in lost.values())
    channel.close()


def await_durable(channel: GrpcSideChannel) -> Status:
    """Return the status once everything that is replicated is on storage: a kill before that would lose it, too."""
    deadline = time.monotonic() + PATIENCE_S
    while (status := channel.status("dp0")).durable_step < status.replica_step and time.monotonic() < deadline:
        time.sleep(0.02)
    return status


def flush(sessions: list[ShadowSession]) -> None:
    """Send what waits, as `RecordSender` does: again and again until the shadow is there and knows the communicator."""
    deadline = time.monotonic() + PATIENCE_S
    while not all(session.flush() for session in sessions):
        assert time.monotonic() < deadline, "the shadow does not come back"
        time.sleep(0.02)
