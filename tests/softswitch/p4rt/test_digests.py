"""Digest bundling: buffer, duplicates, acknowledgement and time-outs, with the time given by the test."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from finsy.proto import p4d, p4r

from softswitch.p4rt.digests import MAX_BUFFERED, MAX_LIST, DigestQueue, DigestTable
from softswitch.p4rt.errors import Code, P4RuntimeError
from softswitch.p4rt.p4data import GroupType, ScalarType
from softswitch.p4rt.schema import DigestInfo, Schema
from tests.softswitch.p4rt_client import DELETE, IDS, INSERT, MODIFY, load_info

TYPE = GroupType("struct", (ScalarType("bit", 48), ScalarType("bit", 9)))
INFO = DigestInfo(77, "learn_t", TYPE)
MS = 1_000_000


def make(timeout_ns: int = 0, size: int = 0, ack_ns: int = 0) -> DigestQueue:
    return DigestQueue(INFO, config(timeout_ns, size, ack_ns))


def config(timeout_ns: int = 0, size: int = 0, ack_ns: int = 0) -> p4r.DigestEntry.Config:
    return p4r.DigestEntry.Config(max_timeout_ns=timeout_ns, max_list_size=size, ack_timeout_ns=ack_ns)


def values(lists: Iterable[p4r.DigestList]) -> list[list[int]]:
    """The first member of every message, list by list."""
    return [[int.from_bytes(data.struct.members[0].bitstring, "big") for data in item.data] for item in lists]


def test_no_timeout_sends_each_message_at_once() -> None:
    queue = make(size=10)
    queue.learn((1, 2), 5)
    [item] = queue.due_lists(5, timestamp_ns=123)
    assert item == p4r.DigestList(
        digest_id=77,
        list_id=1,
        timestamp=123,
        data=[p4d.P4Data(struct=p4d.P4StructLike(members=[p4d.P4Data(bitstring=b"\1"), p4d.P4Data(bitstring=b"\2")]))],
    )
    assert list(queue.due_lists(6, 0)) == []


def test_messages_wait_for_the_timeout_of_the_first() -> None:
    queue = make(timeout_ns=2 * MS, size=10)
    assert queue.deadline_us() is None
    queue.learn((1, 0), 1000)
    queue.learn((2, 0), 2500)
    queue.learn((1, 0), 2600)
    assert queue.deadline_us() == 3000
    assert values(queue.due_lists(2999, 0)) == []
    assert values(queue.due_lists(3000, 0)) == [[1, 2]]
    assert queue.deadline_us() is None


def test_full_list_goes_out_before_its_timeout() -> None:
    queue = make(timeout_ns=1000 * MS, size=2)
    for number in range(5):
        queue.learn((number, 0), 0)
    assert values(queue.due_lists(0, 0)) == [[0, 1], [2, 3]]
    assert values(queue.due_lists(1_000_000, 0)) == [[4]]


def test_list_without_a_limit_is_bounded_all_the_same() -> None:
    queue = make()
    for number in range(MAX_LIST + 1):
        queue.learn((number, 0), 0)
    assert [len(item.data) for item in queue.due_lists(0, 0)] == [MAX_LIST, 1]


def test_unacknowledged_messages_are_not_sent_again_until_acked_or_expired() -> None:
    queue = make(ack_ns=5 * MS)

    def learned(number: int, now_us: int) -> list[list[int]]:
        queue.learn((number, 0), now_us)
        return values(queue.due_lists(now_us, 0))

    assert learned(1, 0) == [[1]]
    assert learned(2, 10) == [[2]]
    assert learned(1, 4999) == []
    queue.acknowledge(2)
    assert learned(2, 4999) == [[2]]
    assert learned(1, 5000) == [[1]]
    queue.acknowledge(12345)
    assert learned(1, 5001) == []
    queue.forget_unacknowledged()
    assert learned(1, 5002) == [[1]]


def test_without_ack_timeout_nothing_is_remembered() -> None:
    queue = make()
    for _ in range(2):
        queue.learn((1, 0), 0)
        assert values(queue.due_lists(0, 0)) == [[1]]


def test_buffer_is_bounded_and_losses_are_counted() -> None:
    queue = make(timeout_ns=MS)
    for number in range(MAX_BUFFERED + 3):
        queue.learn((number, 0), 0)
    assert queue.dropped == 3
    assert sum(len(item.data) for item in queue.due_lists(1000, 0)) == MAX_BUFFERED


@pytest.fixture
def table() -> DigestTable:
    return DigestTable(Schema.build(load_info()))


def entry(**settings: int) -> p4r.DigestEntry:
    return p4r.DigestEntry(digest_id=IDS("digest", "learn_t"), config=config(**settings))


def refusal(table: DigestTable, kind: p4r.Update.Type.ValueType, wanted: p4r.DigestEntry) -> Code:
    with pytest.raises(P4RuntimeError) as caught:
        table.write(kind, wanted)
    return caught.value.code


def test_digest_is_ignored_until_enabled(table: DigestTable) -> None:
    table.learn("learn_t", (1, 2), 0)
    table.write(INSERT, entry())
    [(digest_id, queue)] = table.queues()
    assert digest_id == IDS("digest", "learn_t")
    assert list(queue.due_lists(0, 0)) == []
    table.learn("learn_t", (1, 2), 0)
    assert len(list(queue.due_lists(0, 0))) == 1


def test_configuration_life_cycle_and_its_errors(table: DigestTable) -> None:
    assert refusal(table, MODIFY, entry()) is Code.NOT_FOUND
    assert refusal(table, DELETE, entry()) is Code.NOT_FOUND
    assert refusal(table, INSERT, p4r.DigestEntry(digest_id=5)) is Code.NOT_FOUND
    assert refusal(table, INSERT, entry(size=-1)) is Code.INVALID_ARGUMENT
    table.write(INSERT, entry(size=3))
    assert refusal(table, INSERT, entry()) is Code.ALREADY_EXISTS
    undo = table.write(MODIFY, entry(size=4))
    assert [e.digest_entry.config.max_list_size for e in table.read(p4r.DigestEntry())] == [4]
    undo()
    assert [e.digest_entry for e in table.read(p4r.DigestEntry())] == [entry(size=3)]
    restore = table.write(DELETE, entry())
    assert list(table.read(p4r.DigestEntry())) == []
    restore()
    assert list(table.read(entry())) == list(table.read(p4r.DigestEntry())) != []


def test_acknowledgement_for_an_unknown_digest_is_refused(table: DigestTable) -> None:
    table.acknowledge(p4r.DigestListAck(digest_id=IDS("digest", "learn_t"), list_id=1))
    with pytest.raises(P4RuntimeError, match="digest_id 5") as caught:
        table.acknowledge(p4r.DigestListAck(digest_id=5, list_id=1))
    assert caught.value.code is Code.INVALID_ARGUMENT
