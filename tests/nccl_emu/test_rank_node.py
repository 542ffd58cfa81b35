"""Ranks with their TCP on a seeded, lossy, in-memory wire."""

from __future__ import annotations

import random

import pytest
import torch

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import HEADER_BYTES
from checkmate_common.stream.layout import ParamSpec, build_layout
from jobspec.model import Job
from nccl_emu.errors import LinkError, RingError
from nccl_emu.ring.rank_node import RankNode
from nccl_emu.tcp import Segment, TcpConfig, TcpFlags, seq_add
from packets.frame import parse_frame
from packets.template import FrameTemplate
from tests.nccl_emu.ring_tools import hop_frames, make_job
from tests.nccl_emu.ring_wire import DELAY, Wire, float_layout, lossy, whole_buckets


@pytest.mark.parametrize(
    ("ranks", "channels", "mtu"), [(2, 1, 1500), (2, 2, 9000), (3, 2, 1500), (4, 1, 9000), (8, 1, 1500)]
)
def test_all_reduce_over_tcp_and_what_is_tagged(ranks: int, channels: int, mtu: int) -> None:
    job = make_job(ranks, channels, mtu)
    layout = float_layout(5003, 3, 0, 2000)
    wire = Wire(job)
    wire.connect(1, 1, layout)
    wire.run(wire.connected)
    for step in (1, 2, 3):
        wire.all_reduce(step, layout, seed=step)
    frames = 3 * hop_frames(job, layout, 0)
    tagged = sum(node.stats.tagged_payload_bytes for node in wire.nodes)
    assert tagged == 3 * layout.nbytes + HEADER_BYTES * frames
    assert sum(node.stats.sent_tagged_bytes for node in wire.nodes) == tagged
    assert all(node.stats.retransmits == 0 for node in wire.nodes)
    parsed = [seen for seen in map(parse_frame, wire.seen) if seen is not None]
    assert len(parsed) == len(wire.seen) == sum(node.stats.frames_sent for node in wire.nodes)
    assert sum(node.stats.frame_bytes for node in wire.nodes) == sum(map(len, wire.seen))
    assert all(seen.checksums_ok and seen.segment.dscp in (0, job.dscp.primary) for seen in parsed)
    assert max(len(seen.segment.payload) for seen in parsed) <= mtu - 40
    syns = [seen for seen in parsed if seen.segment.flags == TcpFlags.SYN]
    assert len(syns) == ranks * channels
    assert all(syn.segment.dscp == job.dscp.primary for syn in syns)
    bare_tagged = [s for s in parsed if s.segment.dscp and not s.segment.payload and s.segment.flags != TcpFlags.SYN]
    assert bare_tagged == []


@pytest.mark.parametrize("seed", range(12))
def test_all_reduce_on_a_bad_wire(seed: int) -> None:
    rng = random.Random(seed)
    ranks, channels = rng.choice([2, 3, 4]), rng.choice([1, 2])
    layout = float_layout(rng.randrange(1, 9000), rng.randrange(0, 3000), 1)
    wire = Wire(make_job(ranks, channels), TcpConfig(max_retransmissions=40))
    wire.impair = lossy(rng, loss=0.05, duplicate=0.05, reorder=0.1, corrupt=0.03)
    wire.connect(1, 7, layout, seed)
    wire.run(wire.connected)
    for step in (7, 8, 9):
        wire.all_reduce(step, layout, seed=seed + step)
    stats = [node.stats for node in wire.nodes]
    tagged = 3 * (layout.nbytes + HEADER_BYTES * hop_frames(wire.job, layout, 0))
    assert sum(s.tagged_payload_bytes for s in stats) == tagged
    assert sum(s.sent_payload_bytes for s in stats) > sum(s.payload_bytes for s in stats)
    assert sum(s.retransmits for s in stats) > 0
    assert sum(s.bad_checksums + s.malformed for s in stats) > 0
    for node in wire.nodes:
        node.close(wire.now)
    wire.run(lambda: all(node.closed for node in wire.nodes))
    assert [node.error for node in wire.nodes] == [None] * ranks


def test_a_faster_rank_waits_in_tcp_for_a_slower_one() -> None:
    """Bytes of the next step stay in TCP's window until the step starts; the window bounds them."""
    layout = float_layout(200_000)
    job = make_job(2, frame_payload=65536)
    wire = Wire(job, TcpConfig(receive_window=1 << 16))
    wire.connect(1, 1, layout)
    wire.run(wire.connected)
    buckets, goal = whole_buckets(layout, 2, seed=1)
    wire.nodes[0].start_all_reduce(1, buckets[0], wire.now)
    wire.run_for(5.0)
    assert not wire.nodes[0].done
    assert wire.nodes[0].stats.payload_bytes <= 1 << 16
    assert torch.equal(buckets[1][0], whole_buckets(layout, 2, seed=1)[0][1][0])
    wire.nodes[1].start_all_reduce(1, buckets[1], wire.now)
    wire.run(lambda: all(node.done for node in wire.nodes))
    assert all(torch.equal(own[0], goal[0]) for own in buckets)


def test_source_ports_are_in_range_and_never_used_twice() -> None:
    job = make_job(2, channels=2)
    layout = float_layout(10)
    node = RankNode(job, job.groups[0], 0)
    ports: dict[int, list[int]] = {}
    for epoch in range(1, 200):
        node.connect(epoch, 1, layout, 0.0, random.Random(4))  # the worst generator: it repeats itself
        for flow, port in node.flows_to_open():
            ports.setdefault(flow, []).append(port)
    assert sorted(ports) == [0, 2]
    for used in ports.values():
        assert len(set(used)) == len(used) == 199
        assert all(32768 <= port <= 60999 for port in used)
    fresh = RankNode(job, job.groups[0], 0)  # a new process that knows nothing of the old one
    fresh.connect(200, 1, layout, 0.0, random.Random(4))
    for flow, port in fresh.flows_to_open():
        assert port not in ports[flow][-63:]


def test_nothing_is_sent_before_open() -> None:
    job = make_job(2)
    node = RankNode(job, job.groups[0], 0)
    assert node.closed
    assert not node.connected
    node.connect(1, 1, float_layout(10), 0.0, random.Random(0))
    assert len(node.flows_to_open()) == 1
    assert node.take_frames() == []
    node.open(0.0)
    (frame,) = node.take_frames()
    seen = parse_frame(frame)
    assert seen is not None
    assert seen.segment.flags == TcpFlags.SYN
    assert (0, seen.segment.src_port) in node.flows_to_open()
    assert (seen.src_ip, seen.dst_ip, seen.dst_mac) == ("10.0.0.10", "10.0.0.11", "02:00:00:00:01:01")
    with pytest.raises(LinkError, match="epoch 1 was used already, expected 2"):
        node.connect(1, 1, float_layout(10), 0.0, random.Random(0))


def test_reconnect_while_segments_of_the_old_connection_are_in_flight() -> None:
    """A second epoch runs through while everything that the first one ever sent arrives again."""
    job = make_job(3)
    layout = float_layout(4000)
    wire = Wire(job)
    wire.connect(1, 1, layout)
    wire.run(wire.connected)
    wire.all_reduce(1, layout, seed=1)
    buckets, _ = whole_buckets(layout, 3, seed=2)
    for node, own in zip(wire.nodes, buckets, strict=True):
        node.start_all_reduce(2, own, wire.now)
    wire.run(lambda: wire.nodes[0].progress > 3 * layout.nbytes)
    old = list(wire.seen)
    rng = random.Random(9)
    for node in wire.nodes:
        node.abort(wire.now, silent=True)
    wire.connect(2, 2, layout)
    for frame in old:
        wire.inject(frame, rng.uniform(0, 0.2))
    wire.run(wire.connected)
    for step in range(2, 40):
        wire.all_reduce(step, layout, seed=step)
    assert all(node.error is None for node in wire.nodes)
    assert sum(node.stats.old_connections for node in wire.nodes) > 10


def test_a_late_syn_of_an_old_connection_does_not_keep_the_new_one_out() -> None:
    job = make_job(2)
    layout = float_layout(100)
    wire = Wire(job, TcpConfig(max_retransmissions=2))
    wire.connect(1, 1, layout)
    wire.run(wire.connected)
    syns = [frame for frame in wire.seen if (p := parse_frame(frame)) and p.segment.flags == TcpFlags.SYN]
    for node in wire.nodes:
        node.abort(wire.now, silent=True)
    for rank, node in enumerate(wire.nodes):
        node.connect(2, 1, layout, wire.now, random.Random(rank))
    for syn in syns:
        wire.inject(syn, 0.0)  # arrive before the new SYNs

    # Worst case: nobody answers the listener's SYN+ACK, so that it has to give up by itself.
    def swallow_answers(frame: bytes) -> list[tuple[float, bytes]]:
        seen = parse_frame(frame)
        assert seen is not None
        return [] if seen.segment.flags & TcpFlags.RST else [(DELAY, frame)]

    wire.impair = swallow_answers
    wire.run_for(5.0)
    assert all("SYN-RECEIVED" in node.waits_for() for node in wire.nodes)
    for node in wire.nodes:
        node.open(wire.now)
    wire.run(wire.connected)
    wire.impair = lambda frame: [(DELAY, frame)]
    wire.all_reduce(1, layout)


def template(job: Job, source: int, target: int) -> FrameTemplate:
    a, b = job.hosts[source], job.hosts[target]
    return FrameTemplate(a.mac, b.mac, str(a.ip), str(b.ip))


def test_segments_of_no_connection_get_what_tcp_prescribes() -> None:
    job = make_job(3)
    node = RankNode(job, job.groups[0], 1)
    layout = float_layout(100)
    ack = Segment(40000, 4000, 111, 222, TcpFlags.ACK, 1000, b"late")
    syn = Segment(40001, 4000, 5, 0, TcpFlags.SYN, 1000)
    reset = Segment(40000, 4000, 111, 222, TcpFlags.RST | TcpFlags.ACK, 0)
    wire = Wire(job)
    wire.nodes[1] = node
    wire.connect(1, 1, layout)
    wire.run(wire.connected)
    before = node.stats.frames_sent
    for segment in (syn, reset):
        node.on_frame(template(job, 0, 1).build(segment), wire.now)
    assert node.stats.frames_sent == before
    node.on_frame(template(job, 0, 1).build(ack), wire.now)
    (frame,) = node.take_frames()
    answer = parse_frame(frame)
    assert answer is not None
    assert answer.segment.flags == TcpFlags.RST
    assert (answer.segment.seq, answer.segment.dst_port) == (222, 40000)
    assert node.stats.old_connections == 3
    wire.all_reduce(1, layout)


def test_frames_for_others_and_damaged_frames_are_counted_and_dropped() -> None:
    job = make_job(4)
    wire = Wire(job)
    layout = float_layout(100)
    wire.connect(1, 1, layout)
    wire.run(wire.connected)
    node = wire.nodes[1]
    was = node.stats.not_ours
    segment = Segment(40000, 4000, 111, 222, TcpFlags.ACK, 1000, b"late")
    frame = template(job, 0, 1).build(segment)
    others = [
        template(job, 0, 2).build(segment),  # another MAC address
        template(job, 3, 1).build(segment),  # no neighbour in the ring
        frame[:12] + b"\x08\x06" + frame[14:],  # not IPv4
    ]
    a, b, c = job.hosts[0], job.hosts[1], job.hosts[2]
    others.append(FrameTemplate(a.mac, b.mac, str(a.ip), str(c.ip)).build(segment))  # another address
    for other in others:
        node.on_frame(other, wire.now)
    assert node.stats.not_ours == was + len(others)
    node.on_frame(frame[:-1] + b"\0", wire.now)
    assert node.stats.bad_checksums == 1
    for size in (0, 5, 13, 20, 40):
        node.on_frame(frame[:size], wire.now)
    assert node.stats.malformed + node.stats.not_ours == was + len(others) + 5
    assert node.take_frames() == []
    wire.all_reduce(1, layout)


def test_a_peer_that_crashes_is_an_error_that_names_flow_and_host() -> None:
    job = make_job(3)
    layout = float_layout(4000)
    wire = Wire(job)
    wire.connect(1, 1, layout)
    wire.run(wire.connected)
    buckets, _ = whole_buckets(layout, 3, seed=2)
    for rank in (0, 2):
        wire.nodes[rank].start_all_reduce(1, buckets[rank], wire.now)
    wire.nodes[1].abort(wire.now)
    wire.run(lambda: wire.nodes[0].error is not None and wire.nodes[2].error is not None)
    to_dead, from_dead = wire.nodes[0].error, wire.nodes[2].error
    assert isinstance(to_dead, LinkError)
    assert isinstance(from_dead, LinkError)
    assert (to_dead.reason, to_dead.flow, to_dead.peer) == ("reset", 0, "r1")
    assert (from_dead.reason, from_dead.flow, from_dead.peer) == ("reset", 1, "r1")
    assert not wire.nodes[0].done


def test_a_peer_whose_host_dies_is_noticed_by_retransmissions() -> None:
    job = make_job(2)
    layout = float_layout(4000)
    wire = Wire(job, TcpConfig(max_retransmissions=3))
    wire.connect(1, 1, layout)
    wire.run(wire.connected)
    wire.nodes[1].abort(wire.now, silent=True)
    buckets, _ = whole_buckets(layout, 2, seed=2)
    wire.nodes[0].start_all_reduce(1, buckets[0], wire.now)
    wire.run(lambda: wire.nodes[0].error is not None)
    error = wire.nodes[0].error
    assert isinstance(error, LinkError)
    assert error.reason == "retransmission_limit"
    assert wire.nodes[1].stats.frames_sent < 6


def test_a_peer_that_closes_before_the_step_is_complete() -> None:
    job = make_job(2)
    layout = float_layout(4000)
    wire = Wire(job)
    wire.connect(1, 1, layout)
    wire.run(wire.connected)
    buckets, _ = whole_buckets(layout, 2, seed=2)
    wire.nodes[0].start_all_reduce(1, buckets[0], wire.now)
    wire.nodes[1].close(wire.now)
    wire.run(lambda: wire.nodes[0].error is not None)
    error = wire.nodes[0].error
    assert isinstance(error, LinkError)
    assert error.reason == "closed_early"


def test_a_wrong_stream_is_a_ring_error_of_the_node() -> None:
    """The ranks disagree on the layout: the receiving rank says so, nothing is raised from on_frame."""
    job = make_job(2)
    wire = Wire(job)
    layouts = float_layout(4000), build_layout([ParamSpec("p0", (4000,), DType.FLOAT32)], 1, version=2)
    for rank, node in enumerate(wire.nodes):
        node.connect(1, 1, layouts[rank], 0.0, random.Random(rank))
        node.open(0.0)
    wire.run(wire.connected)
    for node in wire.nodes:
        node.start_all_reduce(1, [torch.ones(4000)], wire.now)
    wire.run(lambda: all(node.error for node in wire.nodes))
    error = wire.nodes[1].error
    assert isinstance(error, RingError)
    assert (error.field, error.flow, error.step, error.frame) == ("layout_version", 0, 1, 0)


def test_sequence_numbers_may_wrap() -> None:
    class NearTheEnd(random.Random):
        def getrandbits(self, k: int) -> int:
            return seq_add(0, -1000) if k == 32 else super().getrandbits(k)

    job = make_job(2)
    layout = float_layout(9000)
    wire = Wire(job)
    for node in wire.nodes:
        node.connect(1, 1, layout, 0.0, NearTheEnd(1))
        node.open(0.0)
    wire.run(wire.connected)
    wire.all_reduce(1, layout)
    frames = 2 * 5  # two chunks of 18000 bytes in frames of 4096
    assert sum(node.stats.tagged_payload_bytes for node in wire.nodes) == layout.nbytes + HEADER_BYTES * frames
