"""TCP in a capture: gaps, repetitions, connections, frames of ours."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from capture.model import LINKTYPE_ETHERNET, Packet
from jobspec.loader import load_job
from jobspec.model import Job
from packets.batch import PacketBatch
from replay.inspect_tcp import TcpDirection, TcpTraffic
from replay.segments import Seen, look
from tests.tools.test_dissector import FRAMES, STREAM, cut

JOB = load_job(Path(__file__).parents[2] / "examples" / "two-shadows.yaml")
ISN = 0xFFFFF000
"""The stream wraps."""


def packet(
    at: int | None,
    data: bytes = b"",
    flags: str = "A",
    *,
    source: str = "10.0.0.1",
    destination: str = "10.0.0.2",
    port: int = 4000,
    isn: int = ISN,
    snaplen: int = 65535,
) -> Packet:
    """Return a segment at stream position `at`, None for the SYN."""
    seq = isn if at is None else isn + 1 + at
    frame = bytes(
        Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
        / IP(src=source, dst=destination)
        / TCP(sport=50000, dport=port, seq=seq % 2**32, flags=flags)
        / Raw(data)
    )
    return Packet(1, 0, frame[:snaplen], len(frame), 0, LINKTYPE_ETHERNET, 0)


def seen_of(packet: Packet) -> Seen:
    [seen] = look([PacketBatch.of([packet.data], packet.link_type, [packet.original_length])])
    assert seen.tcp
    return seen


def inspected(packets: list[Packet], job: Job | None = None) -> list[TcpDirection]:
    traffic = TcpTraffic(job)
    for each in packets:
        traffic.add(seen_of(each))
    assert traffic.unlisted == 0
    return traffic.directions


def carried(pieces: list[tuple[int, bytes]], *, syn: bool = True) -> list[Packet]:
    begin = [packet(None, flags="S")] if syn else []
    return begin + [packet(at, data) for at, data in pieces]


def test_a_whole_connection() -> None:
    [found] = inspected([*carried(cut(STREAM, [1460])), packet(len(STREAM), flags="FA")])
    assert (found.source, found.destination) == ("10.0.0.1:50000", "10.0.0.2:4000")
    assert (found.syn, found.fin, found.rst, found.isn) == (1, 1, 0, ISN)
    assert found.packets == 2 + -(-len(STREAM) // 1460)
    assert found.payload_bytes == len(STREAM)
    assert (found.missing_bytes, found.gaps(), found.repeated_bytes) == (0, [], 0)
    assert found.frames.count == len(FRAMES)
    steps = [header.step for header, _ in FRAMES]
    assert found.frames.steps == (min(steps), max(steps))
    assert found.frames.members == {(h.job, h.group, h.channel, h.rank) for h, _ in FRAMES}
    assert found.frames.phases["reduce_scatter 0"] == sum(not header.phase and header.hop == 0 for header, _ in FRAMES)
    assert found.frames.phases.total() == len(FRAMES)


@pytest.mark.parametrize("sizes", [[1], [63, 65], [100, 7, 1460], [9000]], ids=str)
def test_frames_are_found_however_the_stream_is_cut(sizes: list[int]) -> None:
    stream = STREAM[:4400] if sizes == [1] else STREAM
    [found] = inspected(carried(cut(stream, sizes)))
    headers = 5 if sizes == [1] else len(FRAMES)
    assert found.frames.count == headers


@given(st.integers(0, 2**32 - 1), st.sets(st.integers(0, 25), max_size=10), st.booleans())
def test_gaps_are_exactly_what_is_lost(isn: int, lost: set[int], syn: bool) -> None:
    pieces = cut(STREAM[:26_000], [1000])
    kept = [(number, piece) for number, piece in enumerate(pieces) if number not in lost]
    packets = [packet(at, data, isn=isn) for _, (at, data) in kept]
    if syn:
        packets.insert(0, packet(None, flags="S", isn=isn))
    [found] = inspected(packets)
    numbers = [number for number, _ in kept]
    low = 0 if syn else numbers[0]
    missing = [number for number in lost if low <= number < numbers[-1]]
    assert found.missing_bytes == 1000 * len(missing)
    listed = {byte // 1000 for start, stop in found.gaps() for byte in range(start, stop, 1000)}
    assert {number + low for number in listed} == set(missing)


def test_repetitions_and_another_order() -> None:
    pieces = cut(STREAM, [1000])
    twice = [*pieces, *pieces[3:7]]
    [found] = inspected(carried(twice))
    assert (found.repeated_bytes, found.missing_bytes, found.frames.count) == (4000, 0, len(FRAMES))
    random.Random(3).shuffle(pieces)
    [found] = inspected(carried(pieces))
    assert (found.repeated_bytes, found.missing_bytes) == (0, 0)


def test_a_port_that_is_used_again_is_another_connection() -> None:
    first, second = carried([(0, b"a" * 50)]), [packet(None, flags="S", isn=7), packet(0, b"b" * 20, isn=7)]
    # A repeated SYN is none.
    found = inspected([*first[:1], *first, packet(50, flags="R"), *second])
    assert [(each.syn, each.rst, each.payload_bytes, each.isn) for each in found] == [(2, 1, 50, ISN), (1, 0, 20, 7)]


def test_segments_that_were_cut_short_count_with_what_they_had() -> None:
    pieces = cut(STREAM, [1000])
    [found] = inspected([packet(at, data, snaplen=120) for at, data in pieces])
    assert (found.payload_bytes, found.missing_bytes) == (len(STREAM), 0)


def test_a_header_with_a_wrong_crc_is_none() -> None:
    stream = bytearray(STREAM)
    stream[20] ^= 1
    [found] = inspected(carried(cut(bytes(stream), [1460])))
    assert found.frames.count == len(FRAMES) - 1


def test_flows_of_the_job_have_names() -> None:
    flow = JOB.flows[4]
    shadow = flow.shadows[1]
    ends = (str(flow.source.ip), str(flow.target.ip), flow.tcp_port)
    found = inspected(
        [
            packet(0, b"x", source=ends[0], destination=ends[1], port=ends[2]),
            packet(0, b"x", source=ends[0], destination=str(shadow.ip), port=shadow.base_port + flow.id),
            packet(0, b"x", source=ends[0], destination=ends[1], port=ends[2] + 77),
        ],
        JOB,
    )
    name = f"flow {flow.id}: dp0 {flow.source.name}->{flow.target.name} channel {flow.channel}"
    assert [each.role for each in found] == [name, f"replica to sh1 of {name}", None]


def test_further_connections_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.inspect_tcp.MAX_CONNECTIONS", 3)
    traffic = TcpTraffic()
    for port in range(5):
        each = packet(0, b"x", port=port)
        traffic.add(seen_of(each))
    assert (len(traffic.directions), traffic.unlisted) == (3, 2)
