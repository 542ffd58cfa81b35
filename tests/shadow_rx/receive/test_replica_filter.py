from __future__ import annotations

import random
from collections import Counter

import numba
import pytest

from jobspec.model import Job
from packets.batch import PacketBatch
from placement.discard import Discard
from placement.segments import Replica
from shadow_rx.receive import replica_filter as capture
from shadow_rx.receive.replica_filter import Rejected, ReplicaFilter
from tests.shadow_rx.wire import ACK, RST, SYN, fix_tcp_checksum, make_job, replica


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


def test_a_batch_is_what_its_frames_are_one_by_one(job: Job, taker: ReplicaFilter) -> None:
    """Good ones, foreign ones and every kind of damage, among each other."""
    rng = random.Random(5)
    frames: list[bytes] = []
    for index in range(600):
        flow = job.flows[index % len(job.flows)]
        good = replica(
            job, flow, 5000, rng.randrange(1 << 32), rng.randbytes(rng.randrange(80)), rng.choice([ACK, SYN])
        )
        changed = bytearray(good)
        at = rng.choice([0, 5, 12, 13, 14, 17, 20, 23, 26, 33, 36, 37, 40, 46, 47, len(good) - 1])
        changed[at] ^= 1 << rng.randrange(8)
        frames += [
            good,
            bytes(changed),
            fix_tcp_checksum(bytes(changed)) if at > 33 else good,
            good[: rng.randrange(len(good))],
            replica(job, flow, 5000, 1, b"x", RST),
            replica(job, flow, 5000, 1, b"x", vlan=7),
            replica(job, flow, 5000, 1, b"x", dst_port=rng.choice([1, 40, 65535])),
            replica(job, flow, 5000, 1, b"x", src_ip=b"\x09\x09\x09\x09"),
        ]
    expected: Counter[Discard] = Counter()
    replicas: list[tuple[Replica, bool]] = []
    for frame in frames:
        taken = taker.take(frame)
        if isinstance(taken, Replica):
            replicas.append((taken, False))
        else:
            expected[taken.cause] += 1
            if taken.replica is not None:
                replicas.append((taken.replica, True))
    counted: Counter[Discard] = Counter()
    found = taker.select(PacketBatch.of(frames), counted)
    assert [(found.replica(i), bool(found.damaged[i])) for i in range(len(found))] == replicas
    assert +counted == expected
    assert len(expected) >= 7


def test_the_kernel_takes_what_the_reference_takes(
    job: Job, taker: ReplicaFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(6)
    frames = [
        replica(
            job, flow, rng.randrange(1 << 16), rng.choice([1, (1 << 32) - 1]), rng.randbytes(rng.randrange(80)), flags
        )
        for flow in job.flows
        for flags in (ACK, SYN, SYN | ACK)
    ]
    for foreign in (b"other", replica(job, job.flows[0], 1, 1, b"x", RST)):
        for batch in (PacketBatch.of(frames), PacketBatch.of([*frames, foreign]), PacketBatch.of([])):
            plain, compiled = Counter[Discard](), Counter[Discard]()
            expected = taker.select(batch, plain)
            with monkeypatch.context() as patch:
                patch.setattr(capture, "_take_all", capture._take_all.compiled())
                found = taker.select(batch, compiled)
            assert [found.replica(i) for i in range(len(found))] == [expected.replica(i) for i in range(len(expected))]
            assert plain == compiled
            assert not found.damaged.any()


def test_the_kernel_is_compiled_before_it_is_called(
    job: Job, taker: ReplicaFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments that the loader compiles it for are of the types that it gets."""
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr(capture, "_take_all", lambda *args: bool(seen.append(args)))
    taker.select(PacketBatch.of([replica(job, job.flows[0], 1, 1, b"x")]), Counter())
    assert [numba.typeof(value) for value in seen[0]] == [numba.typeof(value) for value in capture._example()]
