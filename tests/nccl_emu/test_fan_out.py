"""One side channel to several shadow nodes, and a rank's command line with several addresses."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from jobspec.recovery_point import RecoveryPoint
from jobspec.sidechannel.side_channel_pb2 import AttachReply, AttachRequest, Status, StepRecord
from nccl_emu.__main__ import parse_options
from nccl_emu.errors import SideChannelError
from nccl_emu.fan_out import FanOutSideChannel


@dataclass
class Node:
    """A shadow node as the channel to it shows it."""

    need_state: bool = True
    fails: bool = False
    epoch: int = 0
    replica_step: int = 0
    calls: list[str] = field(default_factory=list)

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.fails:
            raise SideChannelError(call, "UNAVAILABLE", "is down", "here")

    def attach(self, request: AttachRequest) -> AttachReply:
        self._note("attach")
        return AttachReply(need_state=self.need_state)

    def upload_state(self, group: str, epoch: int, state: bytes) -> None:
        self._note("upload_state")

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        self._note("open_flow")

    def record_step(self, record: StepRecord) -> None:
        self._note("record_step")

    def status(self, group: str) -> Status:
        self._note("status")
        return Status(group=group, epoch=self.epoch, replica_step=self.replica_step)

    def recovery_point(self, group: str, step: int = 0) -> RecoveryPoint:
        self._note("recovery_point")
        return RecoveryPoint(manifest=self, tensors={})  # type: ignore[arg-type]

    def wait_for_step(self, group: str, step: int, timeout: float) -> Status:
        self._note("wait_for_step")
        return Status(group=group, epoch=self.epoch, replica_step=self.replica_step)


def test_every_node_is_told_everything_and_state_goes_where_it_is_wanted() -> None:
    nodes = [Node(), Node(need_state=False), Node()]
    channel = FanOutSideChannel(nodes)
    assert channel.attach(AttachRequest(group="g", epoch=1)).need_state
    channel.upload_state("g", 1, b"state")
    channel.open_flow("g", 1, 0, 40000)
    channel.record_step(StepRecord(step=1))
    assert [node.calls for node in nodes] == [
        ["attach", "upload_state", "open_flow", "record_step"],
        ["attach", "open_flow", "record_step"],
        ["attach", "upload_state", "open_flow", "record_step"],
    ]
    assert not FanOutSideChannel([Node(need_state=False)] * 2).attach(AttachRequest()).need_state


@pytest.mark.parametrize("call", ["attach", "upload_state", "open_flow", "record_step"])
def test_a_node_that_fails_does_not_keep_a_call_from_the_others(call: str) -> None:
    nodes = [Node(), Node(fails=True), Node()]
    channel = FanOutSideChannel(nodes)
    arguments = {
        "attach": (AttachRequest(),),
        "upload_state": ("g", 1, b""),
        "open_flow": ("g", 1, 0, 1),
        "record_step": (StepRecord(),),
    }
    with pytest.raises(SideChannelError, match="is down"):
        getattr(channel, call)(*arguments[call])
    assert [node.calls for node in nodes] == [[call]] * 3


def test_the_status_is_that_of_the_node_furthest_behind() -> None:
    channel = FanOutSideChannel([Node(epoch=2, replica_step=7), Node(epoch=1, replica_step=9), Node(epoch=2)])
    assert (channel.status("g").epoch, channel.status("g").replica_step) == (1, 9)
    ahead = FanOutSideChannel([Node(epoch=2, replica_step=7), Node(epoch=2, replica_step=6)])
    assert ahead.wait_for_step("g", 6, 0.0).replica_step == 6


def test_a_recovery_point_comes_from_the_first_node_that_has_it() -> None:
    lost, good = Node(fails=True), Node()
    point = FanOutSideChannel([lost, good]).recovery_point("g", 3)
    assert point.manifest is good  # type: ignore[comparison-overlap]
    with pytest.raises(SideChannelError, match="is down"):
        FanOutSideChannel([lost, lost]).recovery_point("g", 3)


def test_a_group_without_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one shadow node"):
        FanOutSideChannel([])


def test_a_rank_takes_an_address_for_each_node() -> None:
    words = "--job j --group g --rank 0 --iface i --iterations 1 --out o"
    options = parse_options([*words.split(), "--side-channel", "unix:/a", "--side-channel", "127.0.0.1:5"])
    assert options.side_channels == ("unix:/a", "127.0.0.1:5")
