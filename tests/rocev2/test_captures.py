"""Real captures: what the decoder finds is what two independent decoders found."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture.model import Packet
from capture.reader import open_capture
from rocev2.report import DecodedCapture, decode
from tests.rocev2.conftest import NAMES
from tests.rocev2.parsing import RoceFrame, parse

RANK_0 = "0c42a19f58f8"


def load(folder: Path, name: str) -> list[Packet]:
    with open_capture(folder / name) as reader:
        return list(reader)


def find(packets: list[Packet], *, use_p2p: bool) -> DecodedCapture:
    return decode(packets, use_p2p=use_p2p, dtype=None, file="x")


@pytest.mark.parametrize("name", NAMES)
def test_reduced_tensors_are_as_in_truth(shared_captures: Path, truth: dict[str, Any], name: str) -> None:
    expected = truth[name]
    with open_capture(shared_captures / name) as reader:
        found = decode(reader, use_p2p=True, dtype=expected["collective"]["dtype"], file=name)
    document = found.to_json()
    assert document["packets"] == expected["packets"]
    assert document["rocev2_packets"] == expected["rocev2_packets"]
    assert document["other"] == expected["other_frames"]
    tensors = expected["reduced_tensors"]
    assert [item["elements"] for item in document["all_reduces"]] == [item["elements"] for item in tensors]
    assert [item["covered"] for item in document["all_reduces"]] == [item["covered"] for item in tensors]
    assert [item["sha256"] for item in document["all_reduces"]] == [item.get("sha256_le_bytes") for item in tensors]
    for item in document["all_reduces"]:
        assert item["ranks"] == 2
        assert item["channels"] == expected["collective"]["channels"]
        assert item["protocol"] == expected["collective"]["protocol"]
    assert found.marks.get("ud_qp1", 0) == expected["rocev2_breakdown"]["rtt_probe_ud_qp1"]
    assert found.marks.get("XRC opcode 0xaa", 0) == expected["rocev2_breakdown"]["rtt_probe_vendor_op_0xaa"]
    flows = {
        (flow["dest_qp"], flow["src_ip"]): flow for flow in expected["flows"] if flow["dest_qp"] not in (1, 0xBBBBBB)
    }
    assert {(pair.dest_qp, pair.source): pair.packets for pair in found.queue_pairs} == {
        key: flow["packets"] for key, flow in flows.items()
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("from_rank_0", [True, False])
def test_each_direction_alone_covers_what_truth_says(
    shared_captures: Path, truth: dict[str, Any], name: str, from_rank_0: bool
) -> None:
    """A capture of one mirrored direction shows less, and nothing else."""
    packets = [p for p in load(shared_captures, name) if (p.data[6:12].hex() == RANK_0) == from_rank_0]
    found = find(packets, use_p2p=True)
    key = "covered_by_A_to_B_alone" if from_rank_0 else "covered_by_B_to_A_alone"
    expected = [item[key] for item in truth[name]["reduced_tensors"] if item[key]]
    assert [int(item.covered.sum()) for item in found.all_reduces] == expected
    whole = find(load(shared_captures, name), use_p2p=True)
    for part, all_of_it in zip(found.all_reduces, whole.all_reduces, strict=False):
        covered = part.covered & all_of_it.covered
        assert np.array_equal(part.to_numpy()[covered], all_of_it.to_numpy()[covered])


def test_losses_are_named_exactly(shared_captures: Path) -> None:
    found = find(load(shared_captures, "iter_80000.pcapng"), use_p2p=True)
    (item,) = found.to_json()["all_reduces"]
    assert item["complete"] is False
    assert item["sha256"] is None
    assert item["missing_psn"] == [
        {"dest_qp": 1300, "first": 148, "last": 159},
        {"dest_qp": 3225, "first": 62, "last": 76},
        {"dest_qp": 3225, "first": 78, "last": 79},
    ]
    assert item["missing_elements"] == [[3584, 5120], [7808, 9728], [9856, 10000]]


def test_without_p2p_the_unseen_chunk_is_missing(shared_captures: Path) -> None:
    found = find(load(shared_captures, "iter_40000_p2p.pcapng"), use_p2p=False)
    (item,) = found.all_reduces
    assert item.missing_elements == [(3072, 5000)]
    assert item.missing_psn == ()  # nothing is lost: that direction was not captured
    assert [message.outcome for message in found.p2p] == ["supplies"]


def test_p2p_of_another_part_is_reported_and_not_believed(shared_captures: Path) -> None:
    packets = load(shared_captures, "allreduce+partial_p2p.pcapng")
    found = find(packets, use_p2p=True)
    (message,) = found.p2p
    assert (message.outcome, message.start) == ("conflict", 4096 * 4)
    assert message.differing > 0
    assert found.all_reduces[0].conflicts == message.differing
    assert found.all_reduces[0].from_p2p == 0
    one_way = find([p for p in packets if p.data[6:12].hex() == RANK_0], use_p2p=True)
    (item,) = one_way.all_reduces
    assert item.missing_elements == [(4096, 5000)]
    assert item.from_p2p == 0


def carried(packet: Packet, reduced_flags: dict[tuple[int, int], int], walk: dict[int, int]) -> tuple[int, int] | None:
    """Return the elements that a packet of an undamaged capture carries, by walking its queue pair in order."""
    frame = parse(packet.data, packet.original_length)
    if not isinstance(frame, RoceFrame) or not 6 <= frame.opcode <= 11 or not frame.payload:
        return None
    offset = 0 if frame.opcode in (6, 11) else walk.get(frame.dest_qp, 0)
    if frame.opcode == 10:  # a packet with an address of its own: slots start at multiples of 64 KiB
        offset = frame.address & 0xFFFF
    walk[frame.dest_qp] = offset + len(frame.payload)
    flag = int.from_bytes(frame.payload[4:8], "little")
    start = reduced_flags.get((frame.dest_qp, flag))
    return None if start is None else (start + offset // 8, start + (offset + len(frame.payload)) // 8)


CHUNKS = {  # (queue pair, flag) of each all-gather message: first element of its chunk
    "rdma32.pcapng": {(907, 2): 0, (910, 2): 2048, (713, 2): 4096},
    "allreduce+partial_p2p.pcapng": {(2204, 2): 0, (2206, 2): 2048, (1959, 2): 4096},
    "iter_40000_p2p.pcapng": {(1562, 5): 0},
}


@pytest.mark.parametrize("name", CHUNKS)
def test_every_single_lost_packet_costs_exactly_its_elements(shared_captures: Path, name: str) -> None:
    packets = load(shared_captures, name)
    (whole,) = find(packets, use_p2p=True).all_reduces
    assert whole.complete
    walk: dict[int, int] = {}
    costs = 0
    for place, packet in enumerate(packets):
        frame = parse(packet.data, packet.original_length)
        if not isinstance(frame, RoceFrame):
            continue  # cannot matter; the next test removes them all
        (item,) = find(packets[:place] + packets[place + 1 :], use_p2p=True).all_reduces
        lost = carried(packet, CHUNKS[name], walk)
        if frame.dest_qp == 1567 and frame.payload:  # p2p, the only copy of chunk 1
            first = 3072 + (frame.psn * 1024) // 4
            lost = (first, first + len(frame.payload) // 4)
        expected = [] if lost is None else [lost]
        if frame.payload and frame.dest_qp == 1562 and frame.psn < 2:
            # A step before the all-reduce is gone: it may have been of an all-reduce too, and counting p2p messages
            # proves nothing.
            expected = [(3072, 5000)]
        assert item.missing_elements == expected, packet.number
        assert np.array_equal(item.to_numpy()[item.covered], whole.to_numpy()[item.covered]), packet.number
        assert item.elements == 5000
        assert {(m.dest_qp, m.first, m.last) for m in item.missing_psn} <= {(frame.dest_qp, frame.psn, frame.psn)}
        if lost is not None:
            costs += lost[1] - lost[0]
            assert len(item.missing_psn) == 1
    assert costs == 5000  # every element was lost once


def test_other_traffic_does_not_matter(shared_captures: Path) -> None:
    packets = load(shared_captures, "rdma32.pcapng")
    roce = [p for p in packets if isinstance(parse(p.data, p.original_length), RoceFrame)]
    (item,) = find(roce, use_p2p=False).all_reduces
    assert item.complete
    assert sha256(item.data).digest() == sha256(find(packets, use_p2p=False).all_reduces[0].data).digest()
