"""Captures that lack packets, or have them twice or elsewhere: what is given is the truth, what is lost is named."""

from __future__ import annotations

import random
from functools import cache
from ipaddress import IPv4Address

import pytest

from gloo.decoder import Decoder
from gloo.wire import Header, Opcode, Prefix, build_header, build_slot
from packets.batch import PacketBatch
from packets.decode import decode
from tests.gloo.encoder import Made, Sent, Traffic, feed, make, tcp_frame
from tests.gloo.test_decode import check

SMALL = {
    2: Traffic(ranks=2, shapes=((9, 5), (9,), (6, 9)), layout=((2, 1), (0,)), steps=2, mss=150),
    3: Traffic(ranks=3, shapes=((9, 5), (9,), (6, 9)), layout=((2, 1), (0,)), steps=2, mss=150, close=False),
    4: Traffic(ranks=4, shapes=((9, 5), (9,), (6, 9)), layout=((1, 2), (0,)), steps=2, mss=90,
               unused=(frozenset(), frozenset({0}))),
}  # fmt: skip


@cache
def made(ranks: int) -> Made:
    return make(SMALL[ranks])


def run(captures, size: int = 1 << 20):
    return feed(Decoder(), captures, size)


def lost_bytes(job: Made, sent: list[Sent], without: Sent) -> dict[tuple[int, int], set[int]]:
    """Return the reduced bytes, by step and bucket, that no packet but `without` carries."""
    found: dict[tuple[int, int], set[int]] = {}
    for step, bucket, start, end in without.carries:
        found.setdefault((step, bucket), set()).update(range(start, end))
    for packet in sent:
        if packet is not without:
            for step, bucket, start, end in packet.carries:
                found.get((step, bucket), set()).difference_update(range(start, end))
    return {key: lost for key, lost in found.items() if lost}


def missing_bytes(job: Made, steps) -> dict[tuple[int, int], set[int]]:
    """Return the reduced bytes, by step and bucket, that the decoder says are missing."""
    found: dict[tuple[int, int], set[int]] = {}
    sizes = [4 * g.size for g in job.initial]
    for _, step in steps:
        late = step.number > 1 or job.traffic.unused is not None
        layout = job.traffic.layout if late else (tuple(range(len(sizes))),)
        for number, bucket in enumerate(layout):
            at = 0
            for index in bucket:
                for hole in step.missing:
                    if hole.parameter == index:
                        lost = found.setdefault((step.number, number), set())
                        for start, end in hole.ranges:
                            lost.update(range(at + start, at + end))
                at += sizes[index]
    return found


@pytest.mark.parametrize(("ranks", "selected"), [(2, (0,)), (2, (1,)), (2, (0, 1)), (3, (1,)), (3, (0, 2)), (4, (2,))])
def test_any_one_packet_lost_costs_what_it_alone_carried(ranks, selected):
    job = made(ranks)
    sent = [packet for packet in job.sent if set(packet.ends) & set(selected)]
    sent_some = random.Random(7).sample(sent, min(len(sent), 120))
    lost_some = 0
    for without in sent_some:
        captures = [[p.data for p in job.capture(rank) if p is not without] for rank in selected]
        steps = run(captures)
        check(job, steps, complete=False)
        if without.layout:
            continue  # what the rest means may hang on it
        assert [step.number for _, step in steps] == list(range(1, job.traffic.steps + 1))
        unused = job.traffic.unused or ()
        expected = lost_bytes(job, sent, without)
        for step, indices in enumerate(unused, 1):
            for index in indices:  # nobody misses the zeros of an unused parameter
                at = 4 * sum(job.initial[i].size for i in job.traffic.layout[1] if i < index)
                expected.get((step, 1), set()).difference_update(range(at, at + 4 * job.initial[index].size))
        assert missing_bytes(job, steps) == {key: lost for key, lost in expected.items() if lost}
        lost_some += bool(expected)
    assert lost_some or len(selected) > 1


@pytest.mark.parametrize("seed", range(6))
def test_swapped_and_doubled_packets_change_nothing(seed):
    rng, job = random.Random(seed), made(3)
    frames = [packet.data for packet in job.capture(1)]
    for _ in range(30):
        at = rng.randrange(6, len(frames) - 1)
        frames[at], frames[at + 1] = frames[at + 1], frames[at]
    for _ in range(30):
        frames.insert(rng.randrange(6, len(frames)), frames[rng.randrange(len(frames))])
    check(job, run([frames], 50))


@pytest.mark.parametrize("seed", range(8))
def test_many_lost_packets_never_make_a_wrong_gradient(seed):
    rng, job = random.Random(seed), made(2 + seed % 3)
    share = rng.choice((0.01, 0.05, 0.3))
    captures = [[p.data for p in job.capture(r) if rng.random() >= share] for r in range(1 + seed % 2)]
    check(job, run(captures, 40), complete=False)


@pytest.mark.parametrize("ranks", [2, 3])
def test_truncated_and_late_captures(ranks):
    job = made(ranks)
    whole = [packet.data for packet in job.capture(0)]
    for share in range(1, 20):
        at = len(whole) * share // 20
        check(job, run([whole[:at]]), complete=False)
        check(job, run([whole[at:]]), complete=False)
        # A whole capture of another rank beside it.
        steps = run([whole[at:], [packet.data for packet in job.capture(1)]])
        check(job, steps, complete=True)


def test_copies_that_differ_are_not_believed():
    job = made(2)
    captures = [[packet.data for packet in job.capture(rank)] for rank in (0, 1)]
    carrying = [n for n, packet in enumerate(job.capture(0)) if packet.carries]
    frame = captures[0][carrying[3]]
    # Two words exchanged: the checksum is still right.
    captures[0][carrying[3]] = frame[:-8] + frame[-4:] + frame[-8:-4]
    steps = run(captures)
    check(job, steps, complete=False)
    (step,) = [step for _, step in steps if not step.complete]
    assert step.number == job.capture(0)[carrying[3]].carries[0][0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_without_one_direction_of_a_connection(ranks):
    """Reduced bytes that the other directions show are there; notices alone are not needed."""
    job = made(ranks)
    for source, destination in {(packet.data[29], packet.data[33]) for packet in job.capture(0)}:
        frames = [p.data for p in job.capture(0) if (p.data[29], p.data[33]) != (source, destination)]
        steps = run([frames])
        check(job, steps, complete=False)
        if ranks == 3 and (source, destination) in ((11, 10), (10, 12)):
            continue  # data of the ring
        assert ranks == 2 or all(step.complete for _, step in steps)


@pytest.mark.parametrize("begun", [True, False])
def test_a_forged_number_far_ahead_costs_nothing(begun):
    job = make(Traffic(ranks=2, close=False))
    packets = [packet.data for packet in job.capture(0)]
    headers = decode(PacketBatch.of(packets))
    rows = [row for row, header in enumerate(headers) if header["payload_length"]]
    row = rows[-1] if begun else rows[0]
    last = headers[row]
    forged = build_header(Header(Opcode.DATA, build_slot(Prefix.ALLREDUCE, 0xFFFFFFFF), 8)) + bytes(8)
    ends = [IPv4Address(int(last[f"{end}_low"])) for end in ("source", "destination")]
    ports = (int(last["source_port"]), int(last["destination_port"]))
    seq = (int(last["seq"]) + int(last["payload_length"])) % (1 << 32)
    packet = tcp_frame(*ends, *ports, seq, int(last["ack"]), int(last["flags"]), forged)
    steps = feed(Decoder(), [[*packets[: row + 1], packet]])
    if begun:
        check(job, steps[:-1])
        assert "was not captured" in (steps[-1][1].problem or "")
    else:
        assert steps == []
