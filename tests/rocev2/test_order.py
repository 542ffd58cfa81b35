"""The order in which a capture has its packets proves nothing: the truth, or not complete, whatever the order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import pytest

from capture.model import Packet
from capture.reader import open_capture
from rocev2.encode import Capture, Encoded, Traffic, encode
from rocev2.faults import duplicate, lose
from rocev2.report import DecodedCapture, decode
from tests.rocev2.oracle import assert_exact, run

SMALL = {
    "broadcast before": Traffic(prologue=(8,), buckets=(200,)),
    "equal chunks": Traffic(prologue=(30,), buckets=(2048,), mtu=4096),
    "three ranks": Traffic(ranks=3, buckets=(300,)),
    "p2p, one way": Traffic(p2p=True, buckets=(1100,), steps=2, mtu=4096),
}


def whole(found: DecodedCapture) -> bool:
    """Return whether everything that was found is called complete, and nothing is open."""
    return not found.open and bool(found.all_reduces) and all(item.complete for item in found.all_reduces)


def small(case: str) -> tuple[Capture, list[Encoded]]:
    capture = encode(SMALL[case])
    one_way = case.endswith("one way")
    return capture, [packet for packet in capture.packets if packet.source == 0 or not one_way]


def tensors(capture: Capture, packets: Sequence[Encoded]) -> list[bytes | None]:
    return [item.tensor for item in run(capture, packets, use_p2p=True).all_reduces]


@pytest.mark.parametrize("case", SMALL)
def test_any_two_packets_changing_places_change_nothing(case: str) -> None:
    capture, packets = small(case)
    assert tensors(capture, packets) == capture.tensors
    pairs = list(combinations(range(len(packets)), 2))
    for first, second in random.Random(1).sample(pairs, min(len(pairs), 400)):
        swapped = list(packets)
        swapped[first], swapped[second] = packets[second], packets[first]
        assert tensors(capture, swapped) == capture.tensors, (first, second)


@pytest.mark.parametrize("case", SMALL)
def test_any_packet_twice_changes_nothing_and_without_it_nothing_wrong_is_complete(case: str) -> None:
    capture, packets = small(case)
    for place in range(len(packets)):
        for later in (1, len(packets)):
            assert tensors(capture, duplicate(packets, [place], later)) == capture.tensors
        found = run(capture, lose(packets, [place]), use_p2p=True)
        if whole(found):
            assert [item.tensor for item in found.all_reduces] == capture.tensors, place
        assert {item.tensor for item in found.all_reduces} <= {None, *capture.tensors}


@pytest.mark.parametrize("late", [1, 40, 400, 5000])
@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(prologue=(8, 1500), buckets=(2500, 700), steps=4),
        Traffic(buckets=(2048,), steps=8),
        Traffic(ranks=3, channels=2, buckets=(6144, 300), steps=3),
    ],
)
def test_directions_of_other_clocks_change_nothing(traffic: Traffic, source: int, late: int) -> None:
    capture = encode(traffic)
    times = {id(packet): place + late * (packet.source == source) for place, packet in enumerate(capture.packets)}
    assert_exact(capture, sorted(capture.packets, key=lambda packet: times[id(packet)]))


@pytest.mark.parametrize(
    ("folder", "name", "use_p2p"),
    [
        ("captures", "iter_40000_p2p_iter2.pcapng", True),
        ("captures", "iter_80000.pcapng", False),
        ("captures", "rdma32.pcapng", False),
        ("cases", "nccl-control-layouts/ring2-nccl-2.18.pcap", False),
    ],
)
@pytest.mark.parametrize("damage", ["swap", "shuffle", "backwards"])
def test_real_captures_in_another_order(
    shared: Callable[[str, str], Path], folder: str, name: str, use_p2p: bool, damage: str
) -> None:
    with open_capture(shared(folder, name)) as reader:
        packets = list(reader)
    expected = found_in(packets, use_p2p)
    rng = random.Random(8)
    for _ in range(12 if damage == "swap" else 1):
        other = list(packets)
        if damage == "swap":
            first, second = rng.sample(range(len(packets)), 2)
            other[first], other[second] = other[second], other[first]
        elif damage == "shuffle":
            rng.shuffle(other)
        else:
            other.reverse()
        assert found_in(other, use_p2p) == expected


def found_in(packets: list[Packet], use_p2p: bool) -> list[tuple[bytes, bytes]]:
    found = decode(packets, use_p2p=use_p2p, dtype=None, file="x")
    return [(item.covered.tobytes(), item.data) for item in found.all_reduces]


@pytest.mark.parametrize(
    "traffic",
    [
        # The broadcast looks like one more chunk of the all-reduces behind it.
        Traffic(prologue=(1024,), buckets=(2048,), steps=2),
        Traffic(prologue=(1024, 1024), buckets=(2048,), steps=2),
    ],
)
def test_what_fits_more_than_one_reading_is_not_complete(traffic: Traffic) -> None:
    capture = encode(traffic)
    found = run(capture, capture.packets)
    assert not whole(found)
    assert found.open
    assert "fit more than one reading" in found.notes[0]
    assert {item.tensor for item in found.all_reduces} <= {None, *capture.tensors}


def test_a_capture_that_begins_late_says_so() -> None:
    capture = encode(Traffic(buckets=(2500,), steps=4))
    found = run(capture, capture.packets[len(capture.packets) // 2 :])
    assert not whole(found)
    assert "begins after step 0" in found.notes[0]


@pytest.mark.parametrize(
    "options",
    [
        {"buckets": (2500,)},
        {"buckets": (2048,), "steps": 3},  # equal chunks: six steps might be three all-reduces of two
        {"ranks": 3, "buckets": (2500, 3072), "steps": 2, "prologue": (8, 1500)},
        {"ranks": 4, "channels": 2, "buckets": (5000, 700)},
        {"buckets": (20000,), "steps": 2, "mtu": 4096},
    ],
)
def test_a_rank_that_forwards_once_more_begins_no_other_all_reduce(options: dict[str, object]) -> None:
    capture = encode(Traffic(forward_again=True, **options))  # type: ignore[arg-type]
    found = assert_exact(capture, capture.packets)
    assert whole(found)
    assert not any(item.missing_psn for item in found.all_reduces)


def test_one_direction_of_a_ring_that_forwards_once_more_names_nothing_that_never_was() -> None:
    capture = encode(Traffic(forward_again=True, buckets=(2500,), steps=2))
    found = run(capture, [packet for packet in capture.packets if packet.source == 0])
    assert [item.elements for item in found.all_reduces] == [2500, 2500]
    assert [item.missing_psn for item in found.all_reduces] == [(), ()]


def test_what_was_not_begun_is_not_lost() -> None:
    """A capture ends within an all-reduce: only packets that are known to have been sent are missing."""
    capture = encode(Traffic(buckets=(2500, 2500)))
    sent: dict[int, int] = {}
    for cut in range(len(capture.packets) // 2, len(capture.packets), 3):
        packets = capture.packets[:cut]
        for packet in packets:
            if packet.sent.packet.dest_qp < 0x9000:
                sent[packet.sent.packet.dest_qp] = max(sent.get(packet.sent.packet.dest_qp, 0), packet.sent.packet.psn)
        for item in run(capture, packets).all_reduces:
            assert item.complete or not item.covered.all()
            if item.index == 0:
                assert item.missing_psn == ()
