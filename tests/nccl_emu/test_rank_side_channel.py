"""The side-channel client against a real shadow node's server."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkmate_common.recovery.point import unpack_tensors
from checkmate_common.recovery.tensors import bytes_of
from checkmate_common.sidechannel.side_channel_pb2 import RecordReply, StateHeader, StepRecord
from checkmate_common.sidechannel.upload import state_chunks
from jobspec.model import Job
from nccl_emu.errors import SideChannelError
from nccl_emu.shadow_client.record_sender import RecordSender
from nccl_emu.shadow_client.restore import restore_trainer
from nccl_emu.shadow_client.shadow_session import MAX_WAITING, ShadowSession
from nccl_emu.shadow_client.side_channel import GrpcSideChannel, SideChannel
from nccl_emu.tcp import TcpFlags
from nccl_emu.training.digits import Digits
from nccl_emu.training.trainer import DataParallelTrainer
from packets.frame import parse_frame
from packets.template import FrameTemplate
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.serve.service import ShadowServer
from tests.nccl_emu.ring_tools import make_job
from tests.nccl_emu.ring_wire import Wire

DIGITS = Digits.load()
WORKLOAD = {"hidden": [21], "batch_size": 32, "bucket_bytes": 3000}


class Shadow:
    """A shadow node with its server; replicas are handed over by `replicate`."""

    def __init__(self, job: Job, address: str) -> None:
        self.job = job
        self.now = 0.0
        self.node = ShadowNode(ShadowCore(job, "sh0", ShadowOptions()), lambda: self.now)
        self.server = ShadowServer(self.node, address)

    def replicate(self, frames: list[bytes]) -> None:
        """Do what the switch does to tagged frames: the shadow's addresses, and stream positions."""
        initial: dict[tuple[str, int], int] = {}
        shadow = self.job.shadows[0]
        for frame in frames:
            seen = parse_frame(frame)
            if seen is None or seen.segment.dscp != self.job.dscp.primary:
                continue
            segment = seen.segment
            if segment.flags & TcpFlags.SYN:
                initial[seen.src_ip, segment.src_port] = segment.seq
            (flow,) = (f for f in self.job.flows if str(f.source.ip) == seen.src_ip)
            to_shadow = FrameTemplate(seen.src_mac, shadow.mac, seen.src_ip, str(shadow.ip))
            position = (segment.seq - initial[seen.src_ip, segment.src_port]) % (1 << 32)
            values = {name: getattr(segment, name) for name in segment.__slots__}
            values |= {"dst_port": shadow.base_port + flow.id, "seq": position}
            self.node.on_frames([to_shadow.build(type(segment)(**values))])


@pytest.fixture(params=["unix", "tcp"])
def shadow(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shadow]:
    address = f"unix:{tmp_path}/shadow" if request.param == "unix" else "127.0.0.1:0"
    shadow = Shadow(make_job(2, workload=WORKLOAD), address)
    yield shadow
    shadow.server.stop()


@pytest.fixture
def channel(shadow: Shadow) -> Iterator[GrpcSideChannel]:
    channel = GrpcSideChannel(shadow.server.address, timeout=10.0)
    yield channel
    channel.close()


def test_a_recovery_point_of_two_steps_comes_back_bit_for_bit(shadow: Shadow, channel: GrpcSideChannel) -> None:
    """Attach, upload, announce flows, train over the wire, record; then restore what the shadow rebuilt."""
    job = shadow.job
    group = job.groups[0]
    trainers = [DataParallelTrainer(job, group, rank, 3, DIGITS) for rank in range(2)]
    wire = Wire(job)
    assert channel.status("dp0").epoch == 0
    assert channel.attach(trainers[0].attach_request(1)).need_state
    channel.upload_state("dp0", 1, trainers[0].state_safetensors())
    assert channel.status("dp0").epoch == 1
    for rank, node in enumerate(wire.nodes):
        node.connect(1, 1, trainers[0].layout, wire.now, random.Random(rank))
        for flow_id, port in node.flows_to_open():
            channel.open_flow("dp0", 1, flow_id, port)
        node.open(wire.now)
    wire.run(wire.connected)
    for step in (1, 2):
        for node, trainer in zip(wire.nodes, trainers, strict=True):
            trainer.compute(step)
            node.start_all_reduce(step, trainer.buckets, wire.now)
        wire.run(lambda: all(node.done for node in wire.nodes))
        for trainer in trainers:
            trainer.apply(step)
            channel.record_step(trainer.step_record(step, 1))
    shadow.replicate(wire.seen)
    assert channel.wait_for_step("dp0", 2, 5.0).replica_step == 2
    point = channel.recovery_point("dp0")
    assert point.manifest.step == 2
    assert channel.recovery_point("dp0", 1).manifest.step == 1
    for rank, trainer in enumerate(trainers):
        reborn = restore_trainer(point, job, group, rank, DIGITS)
        for name, tensor in trainer.state_tensors().items():
            assert bytes(bytes_of(tensor)) == bytes(bytes_of(reborn.state_tensors()[name]))
        assert reborn.compute(3) == trainer.compute(3)


def test_refusals_carry_call_code_and_address(shadow: Shadow, channel: GrpcSideChannel) -> None:
    with pytest.raises(SideChannelError, match=r"OpenFlow to .* failed with FAILED_PRECONDITION") as caught:
        channel.open_flow("dp0", 1, 0, 40000)
    assert (caught.value.call, caught.value.address) == ("OpenFlow", shadow.server.address)
    with pytest.raises(SideChannelError, match=r"GetRecoveryPoint .* NOT_FOUND: .*no recovery point yet"):
        channel.recovery_point("dp0")
    assert channel.status("nobody").epoch == 0
    channel.close()
    with pytest.raises(SideChannelError, match="CANCELLED"):
        channel.status("dp0")


def test_nobody_there_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    channel = GrpcSideChannel(f"unix:{tmp_path}/nobody", timeout=0.2)
    with pytest.raises(SideChannelError, match=r"GetStatus .* DEADLINE_EXCEEDED"):
        channel.status("dp0")
    channel.close()


def test_the_client_waits_for_a_server_that_starts_later() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    channel = GrpcSideChannel(f"127.0.0.1:{port}", timeout=20.0)
    started: list[Shadow] = []
    late = threading.Timer(0.3, lambda: started.append(Shadow(make_job(2), f"127.0.0.1:{port}")))
    late.start()
    assert channel.status("dp0").epoch == 0
    late.join()
    channel.close()
    started[0].server.stop()


@pytest.mark.parametrize("size", [0, 1, 1000, 2500])
def test_a_state_travels_in_chunks_with_one_header(size: int) -> None:
    state = random.Random(size).randbytes(size)
    chunks = list(state_chunks(StateHeader(group="dp0", epoch=7), state, size=1000))
    assert b"".join(chunk.data for chunk in chunks) == state
    assert all(len(chunk.data) <= 1000 for chunk in chunks)
    assert [chunk.HasField("header") for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
    assert (chunks[0].header.group, chunks[0].header.epoch) == ("dp0", 7)


def test_an_upload_larger_than_a_message_arrives_whole() -> None:
    """5 MiB: more than gRPC takes in one message."""
    job = make_job(2, workload={"hidden": [20000], "batch_size": 2})
    shadow = Shadow(job, "127.0.0.1:0")
    channel = GrpcSideChannel(shadow.server.address)
    trainer = DataParallelTrainer(job, job.groups[0], 0, 1, DIGITS)
    state = trainer.state_safetensors()
    assert len(state) > 5 << 20
    channel.attach(trainer.attach_request(1))
    channel.upload_state("dp0", 1, state)
    with pytest.raises(SideChannelError, match="UploadState"):
        channel.upload_state("dp0", 1, state[:-4])
    assert set(unpack_tensors(state)) == set(trainer.state_tensors())
    channel.close()
    shadow.server.stop()


class StuckChannel:
    """A shadow whose record calls return only when told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.records: list[int] = []

    def record_step(self, record: StepRecord) -> RecordReply:
        self.go_on.wait(20)
        self.records.append(record.step)
        return RecordReply()


def make_sender(channel: object) -> tuple[RecordSender, list[tuple[int, str]]]:
    lost: list[tuple[int, str]] = []
    session = ShadowSession(as_side_channel(channel), "dp0", 9, (), lambda step, reason: lost.append((step, reason)))
    return RecordSender(session), lost


def as_side_channel(channel: object) -> SideChannel:
    return channel  # type: ignore[return-value]


def test_records_wait_in_the_background_and_the_queue_is_bounded() -> None:
    stuck = StuckChannel()
    sender, lost = make_sender(stuck)
    for step in range(1, MAX_WAITING + 12):
        sender.send(StepRecord(step=step))
    assert stuck.records == []
    assert len(lost) == 11
    assert lost[-1] == (MAX_WAITING + 11, f"{MAX_WAITING} records wait already")
    assert sender.finish(0.1) == "step records still wait after 0.1 s"
    stuck.go_on.set()


def test_finish_sends_what_is_queued() -> None:
    stuck = StuckChannel()
    sender, lost = make_sender(stuck)
    for step in range(1, 101):
        sender.send(StepRecord(step=step))
    stuck.go_on.set()
    assert sender.finish(10.0) is None
    assert stuck.records == list(range(1, 101))
    assert lost == []


def test_a_record_that_the_shadow_refuses_is_told_and_training_goes_on(
    shadow: Shadow, channel: GrpcSideChannel
) -> None:
    sender, lost = make_sender(channel)
    channel.attach(DataParallelTrainer(shadow.job, shadow.job.groups[0], 0, 3, DIGITS).attach_request(10))
    sender.send(StepRecord(group="dp0", epoch=9, step=4))
    sender.send(StepRecord(group="dp0", epoch=9, step=5))
    assert sender.finish(10.0) is None
    assert [step for step, _ in lost] == [4, 5]
    assert all("RecordStep" in reason for _, reason in lost)
