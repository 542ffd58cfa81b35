"""States that are uploaded: what is refused before it is kept, what is checked, and what the ranks' digests confirm."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from checkmate_common.recovery.point import decode_manifest, pack_tensors, unpack_tensors
from checkmate_common.recovery.reasons import GapReason
from checkmate_common.recovery.state import DEFAULT_STATE
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel import side_channel_pb2_grpc as rpc
from checkmate_common.sidechannel.limits import MAX_MESSAGE_BYTES, MAX_RECORD_BYTES
from checkmate_common.sidechannel.log import read_log
from checkmate_common.sidechannel.upload import state_chunks, state_header
from nccl_emu.errors import SideChannelError
from nccl_emu.shadow_client.side_channel import GrpcSideChannel
from shadow_rx import node as node_module
from shadow_rx.apply.upload import prepare
from shadow_rx.core import ShadowCore
from shadow_rx.errors import Refusal, ShadowError
from shadow_rx.logs.event_log import EventLog
from shadow_rx.logs.message_log import MessageLog
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.peers.connections import GrpcPeer
from shadow_rx.publish.snapshot import EncodedPoint
from shadow_rx.serve.service import ShadowServer
from shadow_rx.serve.status_message import status_message
from shadow_rx.serve.upload_budget import UploadBudget
from tests.shadow_rx.resync_rig import ResyncRig
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.test_node import NodeRig
from tests.shadow_rx.twin import Twin, make_layout, upload
from tests.shadow_rx.wire import make_job


def flipped(state: bytes, name: str) -> bytes:
    """Return a state with one wrong bit in one tensor, a safetensors file that is sound in itself."""
    tensors = unpack_tensors(state)
    tensors[name].reshape(-1).view(torch.int32)[0] ^= 1 << 24
    return pack_tensors(tensors)


# ---- what digests cover ----


@pytest.mark.parametrize("name", ["optim/layer.0/exp_avg_sq", "optim/layer.1/step", "param/layer.0"])
def test_a_wrong_bit_anywhere_in_a_resync_is_never_published(name: str) -> None:
    rig = ResyncRig(digest=True)
    rig.begin()
    rig.step()
    rig.train()
    rig.record()
    while rig.wanted() is None:
        rig.step()
    step = rig.twin.step
    rig.upload(1, flipped(rig.saved[step], name), rig.now, step)
    gap = rig.group.progress.explain(step)
    assert gap is not None
    assert gap.reason is GapReason.DIGEST_MISMATCH
    rig.step()
    rig.answer()
    rig.step()
    assert rig.core.status("dp0").replica_step == rig.twin.step, "the next state is asked for, and right"
    rig.check_truth()


@pytest.mark.parametrize("name", ["optim/layer.0/exp_avg_sq", "optim/layer.0/exp_avg"])
def test_a_wrong_bit_in_the_first_state_is_never_published(name: str) -> None:
    rig = Rig(make_job(digests=True))
    rig.twin.train()
    rig.begin(upload=False)
    rig.upload(1, flipped(rig.twin.state_bytes(), name))
    rig.send(rig.train())
    rig.record(digest=True)
    assert rig.snapshots() == []
    (lost,) = rig.lost()
    assert lost.gap.reason is GapReason.DIGEST_MISMATCH
    assert "optimizer state" in lost.gap.detail or "parameters" in lost.gap.detail


def test_ranks_whose_optimizer_states_differ_are_told_apart() -> None:
    rig = Rig(make_job(digests=True))
    rig.begin()
    rig.send(rig.train())
    messages = rig.twin.records(1, digest=True)
    messages[1].optimizer_digest = bytes(32)
    for message in messages:
        rig.send_record(message, rig.now)
    (lost,) = rig.lost()
    assert lost.gap.detail == "ranks 0 and 1 have different optimizer state"


@pytest.mark.parametrize("digests", [True, False])
def test_what_was_confirmed_is_said(digests: bool) -> None:
    rig = Rig(make_job(digests=digests))
    rig.begin()
    rig.send(rig.train())
    rig.record(digest=digests)
    expected = ("parameters", "optimizer") if digests else ()
    assert rig.snapshots()[0].confirmed == expected
    assert tuple(status_message(rig.core.status("dp0")).confirmed) == expected
    node = ShadowNode(rig.core, lambda: 0.0)
    manifest = decode_manifest(node.recovery_point("dp0", 1).manifest_json)
    assert tuple(manifest.confirmed) == expected


# ---- what is refused, and when ----


def test_a_state_counts_only_when_its_digest_fits() -> None:
    rig = NodeRig(None)
    assert rig.node.attach(rig.twin.attach(1))
    state = rig.twin.state_bytes()
    sound = state_header("dp0", 1, state)
    bare = pb.StateHeader(group="dp0", epoch=1, state_bytes=len(state))
    for header, data, field in (
        (bare, state, "header.state_sha256"),
        (sound, flipped(state, "param/layer.0"), "header.state_sha256"),
        (sound, state[:-1], "header.state_bytes"),
    ):
        with pytest.raises(ShadowError) as refused:
            rig.node.upload(header, data)
        assert refused.value.field == field
    assert rig.node.attach(rig.twin.attach(2)), "nothing was taken: the state is still needed"
    assert upload(rig.node, 2, state)


class Served:
    """A node with two groups' worth of nothing: only its server and a stub."""

    def __init__(self, path: Path, limit: int) -> None:
        self.twin = Twin(make_job(), make_layout())
        self.node = ShadowNode(ShadowCore(self.twin.job, "sh0", ShadowOptions(memory_limit=limit)), lambda: 0.0)
        self.server: ShadowServer = ShadowServer(self.node, f"unix:{path}/side.sock")
        self.channel = grpc.insecure_channel(self.server.address)
        self.stub: Any = rpc.ShadowStub(self.channel)  # type: ignore[no-untyped-call]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, 1 << 20)
    yield served
    served.channel.close()
    served.server.stop()


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code().name, caught.value.details()


def test_group_epoch_and_size_are_refused_before_any_data(served: Served) -> None:
    """The client sends its header and then nothing: the refusal comes all the same."""
    go_on = threading.Event()

    def first_only(header: pb.StateHeader) -> Iterator[pb.StateChunk]:
        yield pb.StateChunk(header=header)
        go_on.wait(20)

    def told(**changes: Any) -> tuple[str, str]:
        fields = {"group": "dp0", "epoch": 1, "state_bytes": 9, "state_sha256": bytes(32), **changes}
        return refusal(lambda: served.stub.UploadState(first_only(pb.StateHeader(**fields)), timeout=20))

    try:
        assert told(group="no such")[0] == "NOT_FOUND"
        assert told()[0] == "FAILED_PRECONDITION"
        served.stub.Attach(served.twin.attach(1))
        assert told(epoch=9)[0] == "FAILED_PRECONDITION"
        assert told(state_bytes=(1 << 20) + 1)[0] == "RESOURCE_EXHAUSTED"
        code, details = told(state_sha256=b"")
        assert (code, details.partition(":")[0]) == ("INVALID_ARGUMENT", "header.state_sha256")
    finally:
        go_on.set()


def test_a_state_longer_than_it_says_is_cut_short(served: Served) -> None:
    served.stub.Attach(served.twin.attach(1))
    header = state_header("dp0", 1, bytes(100))
    code, details = refusal(lambda: served.stub.UploadState(state_chunks(header, bytes(101), 50), timeout=20))
    assert (code, details.partition(":")[0]) == ("INVALID_ARGUMENT", "header.state_bytes")


def test_a_newer_upload_of_a_group_ends_an_older_one(served: Served) -> None:
    """As when the trainer's host has died: its connection stays open, and the next one must not wait for it."""
    served.stub.Attach(served.twin.attach(1))
    state = served.twin.state_bytes()
    go_on, began = threading.Event(), threading.Event()

    def stuck() -> Iterator[pb.StateChunk]:
        yield pb.StateChunk(header=state_header("dp0", 1, state))
        began.set()
        go_on.wait(20)

    old = served.stub.UploadState.future(stuck(), timeout=60)
    try:
        assert began.wait(20)
        deadline = time.monotonic() + 20
        while not old.done() and time.monotonic() < deadline:
            served.stub.UploadState(state_chunks(state_header("dp0", 1, state), state), timeout=20)
        assert old.done()
        assert old.code() is grpc.StatusCode.CANCELLED
    finally:
        go_on.set()


def test_uploads_share_one_budget() -> None:
    budget, ended = UploadBudget(100), list[str]()
    first = budget.begin("a", 60, lambda: ended.append("a"))
    with pytest.raises(ShadowError) as refused:
        budget.begin("b", 41, lambda: ended.append("b"))
    assert refused.value.code is Refusal.UNAVAILABLE
    second = budget.begin("b", 40, lambda: ended.append("b"))
    third = budget.begin("a", 50, lambda: ended.append("newer a"))
    assert ended == ["a"]
    assert not budget.end(first)
    assert budget.end(second)
    assert budget.end(third)
    budget.end(budget.begin("c", 100, lambda: None))


# ---- the lock ----


def test_frames_come_in_while_a_state_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = NodeRig(None)
    rig.node.attach(rig.twin.attach(1))
    checking, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        checking.set()
        assert go_on.wait(20)
        return prepare(*arguments)

    monkeypatch.setattr(node_module, "prepare", slow)
    uploader = threading.Thread(target=upload, args=(rig.node, 1, rig.twin.state_bytes()))
    uploader.start()
    assert checking.wait(20)
    taken = threading.Thread(target=rig.node.on_frames, args=([b"\0" * 60],))
    taken.start()
    taken.join(20)
    waited = taken.is_alive()
    go_on.set()
    uploader.join(20)
    assert not waited, "capture waited for an upload"
    assert rig.node.status("dp0").discarded == {"not_for_us": 1}


def test_frames_come_in_while_the_disk_of_the_logs_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what the ranks tell, nor what happens to steps, is written while the node's lock is held."""
    rig = NodeRig(None)
    messages, events = MessageLog(tmp_path / "side-channel.bin"), EventLog(tmp_path / "events.jsonl")
    rig.node = ShadowNode(rig.core, lambda: rig.now, observe=events, messages=messages)
    write, go_on = os.write, threading.Event()

    def slow(descriptor: int, data: bytes) -> int:
        assert go_on.wait(20)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", slow)
    done = threading.Event()

    def run() -> None:
        rig.begin()
        rig.step()
        rig.step()
        done.set()

    worker = threading.Thread(target=run)
    worker.start()
    in_time = done.wait(20)
    go_on.set()
    worker.join(20)
    messages.close()
    events.close()
    assert in_time, "the node waited for a disk"
    assert rig.node.status("dp0").replica_step == 2
    entries = [type(entry.message).__name__ for entry in read_log(tmp_path / "side-channel.bin")]
    assert entries == ["AttachRequest", "StateChunk", *["OpenFlowRequest"] * 3, *["StepRecord"] * 6]
    assert (tmp_path / "events.jsonl").read_text().count("\n") == 4


def test_a_log_keeps_messages_as_they_were_accepted(tmp_path: Path) -> None:
    """A rank in the same process may go on to change what it has sent."""
    log = MessageLog(tmp_path / "side-channel.bin")
    rig = NodeRig(None)
    rig.node = ShadowNode(rig.core, lambda: rig.now, messages=log)
    message = rig.twin.attach(1)
    sent = pb.AttachRequest()
    sent.CopyFrom(message)
    rig.node.attach(message)
    message.rejoin = True
    log.close()
    (entry,) = read_log(tmp_path / "side-channel.bin")
    assert entry.message == sent


def test_what_changed_meanwhile_is_noticed() -> None:
    rig = NodeRig(None)
    rig.node.attach(rig.twin.attach(1))
    plan = rig.group.plan_upload(1, 0)
    state = prepare(plan, rig.twin.state_bytes())
    rig.node.attach(rig.twin.attach(2))
    with pytest.raises(ShadowError, match="not the current epoch"):
        rig.group.take_upload(state)


# ---- what is larger than a message ----


def test_state_that_no_record_can_carry_is_refused_when_the_job_attaches() -> None:
    job = make_job()
    rules = {**DEFAULT_STATE, "ema.*": {"origin": "snapshot", "every": 5}}
    twin = Twin(job.model_validate({**job.model_dump(mode="json"), "state": rules}), make_layout())
    core = ShadowCore(twin.job, "sh0")
    message = twin.attach(1)
    small = pb.StateObjectInfo(name="ema.a", kind="tensor", shape=[MAX_RECORD_BYTES // 8], dtype="float32")
    large = pb.StateObjectInfo(name="ema.b", kind="tensor", shape=[MAX_RECORD_BYTES // 8 + 2], dtype="float32")
    listed = sorted([*message.state_objects, small, large], key=lambda info: info.name)
    del message.state_objects[:]
    message.state_objects.extend(listed)
    with pytest.raises(ShadowError) as refused:
        core.group("dp0").attach(message)
    assert refused.value.code is Refusal.RESOURCE_EXHAUSTED
    assert refused.value.field == "state_objects"
    assert f"ema.b ({MAX_RECORD_BYTES // 2 + 8} bytes, declared snapshot by 'ema.*')" in refused.value.message
    message.state_objects.remove(large)
    assert core.group("dp0").attach(message)


def test_a_rank_does_not_send_a_record_that_cannot_arrive() -> None:
    channel = GrpcSideChannel("unix:/nowhere")
    record = pb.StepRecord(group="dp0", epoch=1, step=7)
    record.objects["ema.b"].raw = bytes(MAX_MESSAGE_BYTES)
    record.objects["rng"].raw = bytes(9)
    with pytest.raises(SideChannelError, match=r"step 7 .* its largest object is 'ema.b'"):
        channel.record_step(record)
    channel.close()


def test_a_peer_gives_a_manifest_larger_than_a_message(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = "\N{SNOWMAN}x" * (MAX_MESSAGE_BYTES // 4 + 5)
    assert len(manifest.encode()) > MAX_MESSAGE_BYTES
    point = EncodedPoint(manifest, b"state")
    monkeypatch.setattr(served.node, "recovery_point", lambda group, step: point)
    peer = GrpcPeer(served.server.address)
    assert peer.recovery_point("dp0", 1 << 30) == point
    with pytest.raises(ShadowError, match="raise the memory limit"):
        peer.recovery_point("dp0", MAX_MESSAGE_BYTES // 4)
    peer.close()
