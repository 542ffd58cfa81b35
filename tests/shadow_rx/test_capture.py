from __future__ import annotations

import pytest

from jobspec.model import Job
from shadow_rx.capture import Discard, Rejected, Replica, ReplicaFilter
from tests.shadow_rx.wire import ACK, RST, SYN, make_job, replica


@pytest.fixture
def job() -> Job:
    return make_job(shadows=2)


@pytest.fixture
def taker(job: Job) -> ReplicaFilter:
    return ReplicaFilter(job.shadow("sh0"), job.flows)


@pytest.mark.parametrize("vlan", [None, 7])
@pytest.mark.parametrize("payload", [b"", b"x", b"reduced" * 200])
def test_a_replica_is_taken_apart(job: Job, taker: ReplicaFilter, vlan: int | None, payload: bytes) -> None:
    flow = job.flows[1]
    taken = taker.take(replica(job, flow, 50123, 4711, payload, vlan=vlan))
    assert isinstance(taken, Replica)
    assert (taken.flow_id, taken.source_port, taken.sequence) == (flow.id, 50123, 4711)
    assert bytes(taken.payload) == payload, "padding of short frames is not payload"


def test_payload_of_a_syn_begins_one_number_later(job: Job, taker: ReplicaFilter) -> None:
    taken = taker.take(replica(job, job.flows[0], 50123, 0, b"early", SYN))
    assert isinstance(taken, Replica)
    assert taken.sequence == 1


def _cause(taker: ReplicaFilter, frame: bytes) -> Discard:
    taken = taker.take(frame)
    assert isinstance(taken, Rejected)
    return taken.cause


def test_what_is_not_for_this_node_is_named(job: Job, taker: ReplicaFilter) -> None:
    flow = job.flows[0]
    good = replica(job, flow, 50123, 1, b"payload")
    assert _cause(taker, replica(job, flow, 50123, 1, b"payload", shadow="sh1")) is Discard.NOT_FOR_US
    assert _cause(taker, b"\x06" + good[1:]) is Discard.NOT_FOR_US
    assert _cause(taker, replica(job, flow, 50123, 1, b"p", dst_port=80)) is Discard.NOT_FOR_US
    assert _cause(taker, good[:12] + b"\x86\xdd" + good[14:]) is Discard.NOT_FOR_US
    assert _cause(taker, b"") is Discard.NOT_FOR_US


def test_what_is_not_usable_is_named(job: Job, taker: ReplicaFilter) -> None:
    flow, port = job.flows[0], job.shadow("sh0").base_port
    good = replica(job, flow, 50123, 1, b"payload!")
    assert _cause(taker, good[:50]) is Discard.TRUNCATED
    assert _cause(taker, replica(job, flow, 50123, 1, b"p", dst_port=port)) is Discard.UNKNOWN_FLOW
    assert _cause(taker, replica(job, flow, 50123, 1, b"p", src_ip=b"\x0a\0\0\x63")) is Discard.WRONG_SOURCE
    assert _cause(taker, replica(job, flow, 50123, 1, b"why", RST | ACK)) is Discard.RESET
    bad_ip = good[:22] + bytes([good[22] ^ 1]) + good[23:]
    assert _cause(taker, bad_ip) is Discard.BAD_IP_CHECKSUM
    bad_tcp = good[:60] + bytes([good[60] ^ 1]) + good[61:]
    taken = taker.take(bad_tcp)
    assert isinstance(taken, Rejected)
    assert taken.cause is Discard.BAD_TCP_CHECKSUM
    assert taken.replica is not None
    assert taken.replica.flow_id == flow.id, "its place is known, so that the report can name the step"
