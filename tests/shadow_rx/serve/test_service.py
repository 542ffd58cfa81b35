"""The side channel over gRPC, on a unix socket and on TCP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from checkmate_common.recovery.point import decode_recovery_point
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel import side_channel_pb2_grpc as rpc
from checkmate_common.sidechannel.upload import state_header
from shadow_rx.core import ShadowCore
from shadow_rx.errors import ShadowError
from shadow_rx.node import ShadowNode
from shadow_rx.publish.publisher import DirectPublisher
from shadow_rx.serve.service import ShadowServer
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.twin import Twin, as_bytes, make_layout
from tests.shadow_rx.wire import make_job


class Setup:
    def __init__(self, path: Path) -> None:
        self.job = make_job()
        self.twin = Twin(self.job, make_layout([(400, 700), (33,)], 1 << 20), "SGD", {"lr": 0.1, "momentum": 0.9})
        self.node = ShadowNode(ShadowCore(self.job, "sh0"), lambda: 0.0, DirectPublisher(RecoveryStore(path / "store")))
        self.server = ShadowServer(self.node, f"unix:{path}/side.sock")
        self.channel = grpc.insecure_channel(self.server.address)
        self.stub = rpc.ShadowStub(self.channel)

    def upload(self, epoch: int, chunk: int = 1 << 20) -> None:
        data = self.twin.state_bytes()
        parts = [data[i : i + chunk] for i in range(0, len(data), chunk)]
        header = state_header("dp0", epoch, data)
        self.stub.UploadState(pb.StateChunk(header=None if i else header, data=p) for i, p in enumerate(parts))

    def begin(self, epoch: int = 1) -> None:
        assert self.stub.Attach(self.twin.attach(epoch)).need_state
        self.upload(epoch)
        for message in self.twin.open_flows(epoch):
            self.stub.OpenFlow(message)

    def step(self) -> None:
        gradient = self.twin.train()
        self.node.on_frames(self.twin.frames(gradient, mss=1448))
        for message in self.twin.records():
            self.stub.RecordStep(message)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.channel.close()
    setup.server.stop()
    setup.node.close()


def test_a_job_over_the_side_channel(setup: Setup) -> None:
    setup.begin()
    setup.step()
    setup.step()
    status = setup.stub.WaitForStep(pb.WaitRequest(group="dp0", step=2, timeout_seconds=5))
    assert (status.trained_step, status.replica_step, status.durable_step) == (2, 2, 2)
    assert list(status.gaps) == []
    assert status == setup.stub.GetStatus(pb.StatusRequest(group="dp0"))
    assert status.replica_payload_bytes > 2 * setup.twin.layout.nbytes
    chunks = list(setup.stub.GetRecoveryPoint(pb.RecoveryPointRequest(group="dp0")))
    assert len(chunks) > 2, "a large state comes in several messages"
    manifest, state = "".join(chunk.manifest_json for chunk in chunks), b"".join(chunk.data for chunk in chunks)
    point = decode_recovery_point(manifest, state)
    assert point.manifest.step == 2
    tensors = {k: v for k, v in point.tensors.items() if not k.startswith("rank/")}
    assert as_bytes(tensors) == as_bytes(setup.twin.state())


def _refusal(call: Callable[..., Any], *arguments: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        _finish(call(*arguments))
    return caught.value.code(), caught.value.details()


def _finish(result: Any) -> None:
    """Read a stream of answers to its end; a single answer is there already."""
    if not hasattr(result, "SerializeToString"):
        list(result)


def test_refusals_carry_code_and_field(setup: Setup) -> None:
    stub, twin = setup.stub, setup.twin
    code, details = _refusal(stub.Attach, twin.attach(1, job="other"))
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "job: 'other', this shadow serves job 'test'")
    setup.begin()
    code, details = _refusal(stub.Attach, twin.attach(1))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details.startswith("epoch: 1 is not newer")
    code, details = _refusal(stub.GetStatus, pb.StatusRequest(group="x"))
    assert (code, details) == (grpc.StatusCode.NOT_FOUND, "group: shadow 'sh0' serves no group 'x'; it serves dp0")
    code, details = _refusal(stub.GetRecoveryPoint, pb.RecoveryPointRequest(group="dp0", step=9))
    assert (code, details[:5]) == (grpc.StatusCode.NOT_FOUND, "step:")
    code, details = _refusal(stub.UploadState, iter(()))
    assert (code, details[:7]) == (grpc.StatusCode.INVALID_ARGUMENT, "header:")
    code, _ = _refusal(stub.UploadState, iter([pb.StateChunk(data=b"x")]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    header = state_header("dp0", 1, bytes(9))
    other = state_header("dp0", 1, bytes(8))
    code, _ = _refusal(stub.UploadState, iter([pb.StateChunk(header=header), pb.StateChunk(header=other)]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    for timeout in (-1.0, float("nan"), float("inf"), 1e9):
        request = pb.WaitRequest(group="dp0", step=1, timeout_seconds=timeout)
        code, details = _refusal(stub.WaitForStep, request)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith("timeout_seconds")
    setup.step()
    assert stub.GetStatus(pb.StatusRequest(group="dp0")).replica_step == 1, "refused requests cost nothing"


def test_waiting_calls_leave_workers_for_the_others(setup: Setup) -> None:
    setup.begin()
    ended = threading.Semaphore(0)
    waits = []
    for _ in range(40):
        wait = setup.stub.WaitForStep.future(pb.WaitRequest(group="dp0", step=1, timeout_seconds=60))
        wait.add_done_callback(lambda _: ended.release())
        waits.append(wait)
    for _ in range(40 - 16):
        assert ended.acquire(timeout=20), "all but 16 calls are refused at once"
    refused = [wait for wait in waits if wait.done()]
    assert {wait.code() for wait in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    setup.step()
    answered = [wait.result(timeout=20) for wait in waits if wait not in refused]
    assert len(answered) == 16
    assert {status.replica_step for status in answered} == {1}


def test_a_cancelled_wait_frees_its_worker_and_stop_ends_all(setup: Setup) -> None:
    setup.begin()
    for _ in range(3):
        waits = [
            setup.stub.WaitForStep.future(pb.WaitRequest(group="dp0", step=1, timeout_seconds=600)) for _ in range(16)
        ]
        assert setup.stub.GetStatus(pb.StatusRequest(group="dp0")).epoch == 1
        for wait in waits:
            wait.cancel()
    last = setup.stub.WaitForStep.future(pb.WaitRequest(group="dp0", step=1, timeout_seconds=600))
    done = threading.Event()
    last.add_done_callback(lambda _: done.set())
    setup.server.stop(grace=5)
    assert done.wait(10)


def test_tcp_addresses_and_ports_that_are_taken(setup: Setup) -> None:
    server = ShadowServer(setup.node, "127.0.0.1:0")
    try:
        assert not server.address.endswith(":0")
        with grpc.insecure_channel(server.address) as channel:
            assert rpc.ShadowStub(channel).GetStatus(pb.StatusRequest(group="dp0"), timeout=10).epoch == 0
        with pytest.raises(ShadowError, match="cannot listen"):
            ShadowServer(setup.node, server.address)
    finally:
        server.stop()
