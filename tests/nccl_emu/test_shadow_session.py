"""What a rank tells a shadow node that answers late, twice, not at all, or that was started again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from checkmate_common.sidechannel.side_channel_pb2 import (
    AttachReply,
    AttachRequest,
    RecordReply,
    StateObjectInfo,
    Status,
)
from checkmate_common.sidechannel.side_channel_pb2 import StepRecord as Record
from nccl_emu.__main__ import parse_options
from nccl_emu.errors import SideChannelError
from nccl_emu.shadow_client.shadow_session import MAX_WAITING, ShadowSession


@dataclass
class Node:
    """A shadow node as the channel to it shows it."""

    epoch: int = 0
    need_state: bool = True
    down: bool = False
    reply: RecordReply = field(default_factory=RecordReply)
    calls: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    attached: list[AttachRequest] = field(default_factory=list)

    def _note(self, call: str) -> None:
        if self.down:
            raise SideChannelError(call, "UNAVAILABLE", "is down")
        if call != "attach" and self.epoch == 0:
            raise SideChannelError(call, "FAILED_PRECONDITION", "not attached")
        self.calls.append(call)

    def attach(self, request: AttachRequest) -> AttachReply:
        self._note("attach")
        self.epoch = request.epoch
        kept = AttachRequest()
        kept.CopyFrom(request)
        self.attached.append(kept)
        return AttachReply(need_state=self.need_state and not request.rejoin)

    def upload_state(self, group: str, epoch: int, state: bytes, step: int = 0, *, final: bool = False) -> bool:
        self._note(f"upload {step}{' final' if final else ''}")
        return True

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        self._note(f"open {flow_id} {source_port}")

    def record_step(self, record: Record) -> RecordReply:
        self._note(f"record {record.step}")
        self.records.append(record)
        reply, self.reply = self.reply, RecordReply()
        return reply

    def status(self, group: str) -> Status:
        if self.down:
            raise SideChannelError("GetStatus", "UNAVAILABLE", "is down")
        return Status(group=group, epoch=self.epoch)


Make = Callable[[Node, bool], ShadowSession]


@pytest.fixture
def lost() -> list[tuple[int, str]]:
    return []


@pytest.fixture
def make(lost: list[tuple[int, str]]) -> Make:
    def make(node: Node, leads: bool) -> ShadowSession:
        attach = AttachRequest(group="g", epoch=2, first_step=5) if leads else None
        session = ShadowSession(node, "g", 2, [(3, 40000)], lambda *what: lost.append(what), attach)  # type: ignore[arg-type]
        session.begin(lambda: b"state")
        session.announce()
        return session

    return make


def test_what_waits_is_sent_in_order_once_the_shadow_is_there(make: Make, lost: list[tuple[int, str]]) -> None:
    node = Node()
    session = make(node, True)
    assert node.calls == ["attach", "upload 0", "open 3 40000"]
    node.down = True
    for step in (5, 6, 7):
        session.offer(Record(step=step))
        assert not session.flush()
    session.offer_state(7, b"state")
    node.down = False
    assert session.flush()
    assert node.calls[3:] == ["record 5", "record 6", "record 7", "upload 7"]
    assert (lost, session.waiting) == ([], 0)


def test_a_shadow_that_was_started_again_is_told_everything_again(make: Make, lost: list[tuple[int, str]]) -> None:
    node = Node()
    session = make(node, True)
    session.offer(Record(step=5, state_digest=b"d", state_objects=[StateObjectInfo(name="a")]))
    assert session.flush()
    node.epoch = 0
    node.calls.clear()
    session.offer(Record(step=6, state_digest=b"d"))
    assert not session.flush()
    assert node.calls == ["attach"]
    assert (node.attached[-1].rejoin, node.attached[-1].current_step) == (True, 6)
    node.reply = RecordReply(flows_unknown=True, list_wanted=True)
    assert session.flush()
    assert node.calls == ["attach", "record 6", "open 3 40000", "record 6"]
    assert [info.name for info in node.records[-1].state_objects] == ["a"]
    assert lost == []


def test_other_ranks_wait_until_rank_0_has_announced_it(make: Make, lost: list[tuple[int, str]]) -> None:
    node = Node(epoch=2)
    session = make(node, False)
    node.epoch = 0
    session.offer(Record(step=5))
    assert not session.flush()
    node.epoch = 2
    assert session.flush()
    assert (node.calls[-1], lost) == ("record 5", [])


def test_rank_0_announces_it_though_it_has_nothing_left_to_tell(make: Make, lost: list[tuple[int, str]]) -> None:
    """A shadow node that starts again after rank 0's last record, and before another rank's."""
    node = Node()
    leader, other = make(node, True), make(node, False)
    leader.offer(Record(step=5))
    assert leader.flush()
    leader.rejoin_if_forgotten()
    assert len(node.attached) == 1
    node.epoch = 0
    other.offer(Record(step=5))
    assert leader.flush()
    assert not other.flush()
    other.rejoin_if_forgotten()
    assert not other.flush()
    node.down = True
    leader.rejoin_if_forgotten()  # it cannot be asked: not forgotten as far as is known
    node.down = False
    leader.rejoin_if_forgotten()
    assert (node.attached[-1].rejoin, node.attached[-1].current_step) == (True, 5)
    assert other.flush()
    assert lost == []


def test_the_last_record_is_told_again_to_a_shadow_that_lost_it(make: Make, lost: list[tuple[int, str]]) -> None:
    node = Node()
    leader, other = make(node, True), make(node, False)
    for session in (leader, other):
        session.offer_again()
        assert not session.waiting, "there is none yet"
        session.offer(Record(step=4))
        session.offer(Record(step=5, state_digest=b"d", state_objects=[StateObjectInfo(name="a")]))
        session.offer_again()
        assert session.waiting == 2, "it waits already"
        assert session.flush()
    node.epoch = 0
    node.records.clear()
    leader.rejoin_if_forgotten()
    for session in (leader, other):
        session.offer_again()
        assert session.flush()
    assert [record.step for record in node.records] == [5, 5]
    assert all(record.state_objects for record in node.records)
    assert lost == []


def test_a_state_is_offered_only_where_it_is_asked_for_and_once(make: Make) -> None:
    node = Node()
    session = make(node, True)
    assert not session.wants_state(5)
    node.reply = RecordReply(state_wanted=True, state_from=7)
    session.offer(Record(step=5))
    session.flush()
    assert [session.wants_state(step) for step in (5, 6, 7, 8)] == [False, False, True, True]
    session.offer_state(7, b"state")
    assert not session.wants_state(8), "one is on its way"
    session.flush()
    assert not session.wants_state(8), "until it is asked for again"
    follower = make(Node(epoch=2, reply=RecordReply(state_wanted=True)), False)
    follower.offer(Record(step=5))
    follower.flush()
    assert not follower.wants_state(9), "it is rank 0's to give"


def test_what_the_shadow_refuses_is_told_and_the_next_one_sent(make: Make, lost: list[tuple[int, str]]) -> None:
    node = Node()
    session = make(node, True)
    node.epoch = 3

    def refuse(record: Record) -> RecordReply:
        raise SideChannelError("RecordStep", "FAILED_PRECONDITION", "epoch 2 is over")

    node.record_step = refuse  # type: ignore[method-assign]
    session.offer(Record(step=5))
    session.offer(Record(step=6))
    assert session.flush()
    assert [step for step, _ in lost] == [5, 6]
    assert node.calls.count("attach") == 1, "a communicator that is over does not come back"


def test_the_queue_is_bounded(make: Make, lost: list[tuple[int, str]]) -> None:
    node = Node()
    session = make(node, True)
    node.down = True
    for step in range(5, 5 + MAX_WAITING + 3):
        session.offer(Record(step=step))
    assert session.waiting == MAX_WAITING
    assert [step for step, _ in lost] == [5 + MAX_WAITING + i for i in range(3)]


def test_a_rank_takes_an_address_for_each_node() -> None:
    words = "--job j --group g --rank 0 --iface i --iterations 1 --out o"
    options = parse_options([*words.split(), "--side-channel", "unix:/a", "--side-channel", "127.0.0.1:5"])
    assert options.side_channels == ("unix:/a", "127.0.0.1:5")
    assert options.resync
    assert not parse_options([*words.split(), "--side-channel", "unix:/a", "--no-resync"]).resync
