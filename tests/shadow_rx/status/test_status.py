"""What a status tells of lags, coverage, buffers, load and totals; as a message; from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checkmate.cli import app
from checkmate_common.sidechannel import side_channel_pb2 as pb
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.publish.publisher import DirectPublisher, Publisher
from shadow_rx.serve.service import ShadowServer
from shadow_rx.serve.status_message import status_message
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.twin import tensor_bytes, upload
from tests.shadow_rx.wire import make_job

HEADER = 64


class StatusRig(Rig):
    """A rig whose core sits in a node with the rig's clock."""

    def __init__(self, publisher: Publisher | None = None, **job: object) -> None:
        super().__init__(make_job(**job))  # type: ignore[arg-type]
        self.core = ShadowCore(self.job, "sh0", ShadowOptions(memory_limit=1 << 20))
        self.node = ShadowNode(self.core, lambda: self.now, publisher, self.events.append)

    def begin(self) -> None:  # type: ignore[override]
        self.epoch += 1
        self.first_step = self.twin.step + 1
        self.port = 40000 + 1000 * self.epoch
        request = self.twin.attach(self.epoch, communicator=f"c{self.epoch}", uploads_on_demand=True)
        if self.node.attach(request):
            upload(self.node, self.epoch, self.twin.state_bytes())
        for message in self.twin.open_flows(self.epoch, self.port):
            self.node.open_flow(message)

    def send(self, frames) -> None:  # type: ignore[no-untyped-def]
        self.node.on_frames(frames)

    def record(self, digest: bool = False) -> None:
        for message in self.twin.records(self.epoch, digest):
            self.node.record(message)


def test_before_the_first_attach_there_is_nothing_to_tell() -> None:
    status = StatusRig().node.status("dp0")
    assert status.health.collecting == 0
    assert status.health.coverage == ()
    assert status.health.replica_lag.steps == status.health.durable_lag.steps == 0
    assert status.health.buffers.memory_bytes == 0
    assert status.health.buffers.memory_limit == 1 << 20


def test_lags_in_steps_seconds_and_bytes_with_their_reasons() -> None:
    rig = StatusRig()
    rig.begin()
    rig.now = 10.0
    rig.step()
    rig.now = 12.0
    frames = rig.train()
    rig.send(frames[:3])
    rig.record()  # announced at 12, and never complete
    rig.now = 15.0
    status = rig.node.status("dp0")
    lag = status.health.replica_lag
    sent = sum(len(frame) - 54 for frame in frames[:3])
    wanted = sum(len(frame) - 54 for frame in frames)
    assert (lag.steps, lag.seconds, lag.bytes, lag.reason) == (1, 3.0, wanted - sent, "lost_bytes")
    assert "bytes missing" in lag.detail
    durable = status.health.durable_lag
    assert (durable.steps, durable.seconds, durable.bytes) == (1, 5.0, rig.twin.layout.nbytes)
    assert (durable.reason, durable.detail) == ("storage_error", "this shadow was given no storage")
    rig.send(frames[3:])
    assert rig.node.status("dp0").health.replica_lag.steps == 0


def test_a_step_without_records_is_announced_by_nobody_and_one_with_some_waits_for_the_others() -> None:
    rig = StatusRig()
    rig.begin()
    rig.send(rig.train())
    assert rig.node.status("dp0").health.replica_lag.steps == 0
    rig.now = 1.0
    rig.node.record(rig.twin.records(1)[0])
    rig.now = 4.0
    lag = rig.node.status("dp0").health.replica_lag
    assert (lag.steps, lag.seconds, lag.bytes, lag.reason) == (1, 3.0, 0, "side_channel_missing")


@pytest.mark.parametrize("hops", [(0,), (0, 1)])
def test_coverage_of_the_step_that_is_being_collected(hops: tuple[int, ...]) -> None:
    rig = StatusRig(hops=hops)
    rig.begin()
    rig.step()
    gradient = rig.twin.train()
    frames = rig.twin.frames(gradient, 1, 1, port=rig.port)
    rig.send(frames[: len(frames) // 2])
    status = rig.node.status("dp0")
    assert status.health.collecting == 2
    flows = {flow.flow_id: flow for flow in status.health.coverage}
    assert sorted(flows) == [flow.id for flow in rig.job.flows]
    total = sum(flow.primary_expected for flow in flows.values())
    plan = rig.core.group("dp0").progress.epoch.assembler.plan  # type: ignore[union-attr]
    assert total == rig.twin.layout.nbytes + HEADER * plan.frames
    assert sum(flow.primary for flow in flows.values()) == sum(len(f) - 54 for f in frames[: len(frames) // 2])
    again = sum(flow.redundant_expected for flow in flows.values())
    assert again == (total if len(hops) > 1 else 0)
    assert all(flow.redundant == 0 for flow in flows.values())


def test_buffers_are_counted_byte_by_byte(tmp_path: Path) -> None:
    rig = StatusRig(DirectPublisher(RecoveryStore(tmp_path)))
    rig.begin()
    for _ in range(3):
        rig.step()
    rig.send(rig.train()[:1])
    buffers = rig.node.status("dp0").health.buffers
    state = sum(len(tensor_bytes(tensor)) for tensor in rig.twin.state().values())
    epoch = rig.core.group("dp0").progress.epoch
    assert epoch is not None
    assert (buffers.slots, buffers.slots_used, buffers.held, buffers.hold) == (4, 1, 2, 2)
    assert buffers.collecting_bytes == 4 * epoch.assembler.plan.nbytes
    # The live copy, and two recovery points with their gradients; the newest is the state to go back to as well.
    assert buffers.state_bytes == 3 * state + 2 * rig.twin.layout.nbytes
    assert buffers.memory_bytes <= buffers.reserved_bytes < buffers.memory_limit
    assert rig.core.group("dp0").room() == buffers.memory_limit - buffers.reserved_bytes


def test_totals_count_losses_resyncs_and_what_was_stored(tmp_path: Path) -> None:
    rig = StatusRig(DirectPublisher(RecoveryStore(tmp_path)))
    rig.begin()
    rig.step()
    rig.send(rig.train()[1:])
    rig.record()
    rig.step()
    wanted = rig.node.core.group("dp0").needs(0)
    assert wanted.state_wanted
    upload(rig.node, 1, rig.twin.state_bytes(), 3)
    rig.step()
    status = rig.node.status("dp0")
    assert (status.trained_step, status.replica_step, status.durable_step) == (4, 4, 4)
    totals = status.health.totals
    assert (totals.replicated_steps, totals.stored_steps, totals.resyncs) == (3, 3, 1)
    assert totals.lost_steps == {"lost_bytes": 1}
    assert totals.unstored_steps == {}


def test_the_message_has_everything() -> None:
    rig = StatusRig()
    rig.begin()
    rig.now = 1.0
    rig.step()
    message = status_message(rig.node.status("dp0"))
    plain = pb.Status.FromString(message.SerializeToString())
    assert plain == message
    assert message.buffers.memory_limit_bytes == 1 << 20
    assert message.load.nodes_needed == 1
    assert len(message.apply_durations.upper_bounds) == len(message.apply_durations.cumulative_counts)
    assert message.apply_durations.cumulative_counts[-1] == 1
    # Whatever is added to the status later has to be told too.
    told = {field.name for field, _ in message.ListFields()}
    silent = {"confirmed", "state_wanted", "state_from", "pending_bytes", "discarded", "replica_lag", "durable_step"}
    assert {field.name for field in pb.Status.DESCRIPTOR.fields} - told <= silent


# ---- the command ----


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[StatusRig, ShadowServer]]:
    rig = StatusRig(DirectPublisher(RecoveryStore(tmp_path)))
    server = ShadowServer(rig.node, "127.0.0.1:0")
    yield rig, server
    server.stop()


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["status", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    return done.exit_code, done.stdout, done.stderr


def test_the_command_shows_the_three_numbers_and_the_reason(served: tuple[StatusRig, ShadowServer]) -> None:
    rig, server = served
    code, out, _ = run(server.address)
    assert code == 0
    assert "not attached yet" in out
    rig.begin()
    rig.step()
    rig.send(rig.train()[:2])
    rig.record()
    code, out, _ = run(server.address)
    assert code == 0
    for text in ("trained", "replica", "durable", "lost_bytes", "Received of step 2", "1.049 MB", "of 4 steps being"):
        assert text in out, text


def test_the_command_prints_json_with_numbers_as_numbers(served: tuple[StatusRig, ShadowServer]) -> None:
    rig, server = served
    rig.begin()
    rig.step()
    code, out, _ = run(server.address, "--group", "dp0", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["job"], found["shadow"]) == ("test", "sh0")
    (group,) = found["groups"]
    assert (group["trained_step"], group["replica_step"], group["durable_step"]) == (1, 1, 1)
    assert group["replica_lag"] == {"steps": 0, "seconds": 0.0, "bytes": 0, "reason": "", "detail": ""}
    assert group["buffers"]["memory_limit_bytes"] == 1 << 20
    assert group["apply_durations"]["upper_bounds"][-1] is None
    assert [flow["flow_id"] for flow in group["coverage"]] == [flow.id for flow in rig.job.flows]


def test_the_command_names_what_is_wrong(served: tuple[StatusRig, ShadowServer]) -> None:
    _, server = served
    code, _, err = run(server.address, "--group", "nobody")
    assert code == 2
    assert "serves no group 'nobody'; it serves dp0" in err
    code, _, err = run("127.0.0.1:1")
    assert code == 2
    assert "nothing answers" in err
    assert "is it running" in err
    code, _, err = run("nonsense")
    assert code == 2
    assert "error" in err.lower()


def test_watching_goes_on_until_it_is_interrupted(served: tuple[StatusRig, ShadowServer]) -> None:
    rig, server = served
    command = [
        sys.executable,
        "-m",
        "checkmate.cli",
        "status",
        server.address,
        "--watch",
        "--json",
        "--interval",
        "0.05",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        rig.begin()
        rig.step()
        while not (last := json.loads(process.stdout.readline()))["groups"][0]["replica_step"]:
            pass
        server.stop()
        while "error" not in (absent := json.loads(process.stdout.readline())):
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode in (0, 130), err
    assert first["groups"][0]["epoch"] == 0
    assert last["groups"][0]["trained_step"] == 1
    assert "shadow node at" in absent["error"]
