"""Losses, duplicates, reordering and retransmissions at random: no wrong element, ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocev2.encode import Capture, Encoded, Traffic, encode
from rocev2.faults import duplicate, lose, reorder, retransmit
from tests.rocev2.oracle import assert_exact, assert_no_wrong_element, run

SIZES = st.one_of(st.integers(1, 200), st.integers(200, 3000), st.sampled_from([1024, 2048, 3072]))


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    late = draw(st.booleans())
    return Traffic(
        ranks=draw(st.sampled_from([2, 2, 3, 4])),
        channels=draw(st.sampled_from([1, 1, 2])),
        dtype=draw(st.sampled_from(["float32", "float16", "bfloat16", "int32", "float64"])),
        buckets=tuple(draw(st.lists(SIZES, min_size=1, max_size=3))),
        steps=draw(st.integers(1, 2)),
        seed=draw(st.integers(0, 1000)),
        mtu=draw(st.sampled_from([256, 1024, 4096])),
        ipv6=draw(st.booleans()),
        first_psn=draw(st.sampled_from([0, (1 << 24) - 5])),
        late_sizes=late,
        split=late and draw(st.booleans()),
        prologue=tuple(draw(st.lists(st.sampled_from([2, 8, 1000, 2048]), max_size=2))),
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(traffics(), st.data())
def test_no_element_is_ever_wrong(traffic: Traffic, data: st.DataObject) -> None:
    capture = encode(traffic)
    packets = damage(capture.packets, data)
    assert_no_wrong_element(capture, packets)


def damage(packets: list[Encoded], data: st.DataObject) -> list[Encoded]:
    count = len(packets)
    kind = data.draw(st.sampled_from(["few", "burst", "one way", "late start", "early end", "none"]))
    if kind == "few":
        packets = lose(packets, data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=12)))
    elif kind == "burst":
        start = data.draw(st.integers(0, count - 1))
        packets = lose(packets, range(start, start + data.draw(st.integers(1, 40))))
    elif kind == "one way":
        source = data.draw(st.sampled_from(sorted({packet.source for packet in packets})))
        packets = [packet for packet in packets if packet.source == source]
    elif kind == "late start":
        packets = packets[data.draw(st.integers(0, count - 1)) :]
    elif kind == "early end":
        packets = packets[: data.draw(st.integers(1, count))]
    if data.draw(st.booleans()):
        places = data.draw(st.sets(st.integers(0, len(packets) - 1), max_size=20))
        packets = duplicate(packets, places, data.draw(st.integers(1, 30)))
    if data.draw(st.booleans()):
        packets = reorder(packets, data.draw(st.integers(0, 99)), data.draw(st.sampled_from([2, 5, 10, 20])))
    return packets


@pytest.mark.parametrize(
    ("traffic", "start", "lost", "seed", "distance"),
    [
        # A step that nobody saw was taken for the first of an all-reduce.
        (Traffic(channels=2, dtype="float16", buckets=(1542, 2436, 3072), seed=483, mtu=4096, ipv6=False,
                 prologue=(2048,)), 64, {1}, 2, 2),
        (Traffic(dtype="float64", buckets=(1024, 289), seed=617, mtu=4096, ipv6=False, first_psn=(1 << 24) - 5,
                 late_sizes=True, prologue=(2048,)), 18, set(), 34, 10),
        # The second channel was left out.
        (Traffic(channels=2, buckets=(93, 2584, 109), seed=615, mtu=4096, ipv6=False, late_sizes=True,
                 prologue=(1000,)), 56, {37}, 68, 20),
    ],
)  # fmt: skip
def test_late_starts_that_are_out_of_order(
    traffic: Traffic, start: int, lost: set[int], seed: int, distance: int
) -> None:
    """Found at random; each was decoded wrongly once."""
    capture = encode(traffic)
    assert_no_wrong_element(capture, reorder(lose(capture.packets[start:], lost), seed, distance))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_what_is_anchored_is_covered(data: st.DataObject) -> None:
    """Packets in the middle of messages, however many are lost, cost their own elements and no others.

    First and last packets stay, so that every message has a beginning; copies change nothing.
    """
    capture = TRAFFIC[data.draw(st.sampled_from(sorted(TRAFFIC)))]
    middles = [place for place, packet in enumerate(capture.packets) if packet.sent.packet.opcode == 7]
    packets = lose(capture.packets, data.draw(st.sets(st.sampled_from(middles), max_size=len(middles))))
    copies = data.draw(st.sets(st.integers(0, len(packets) - 1), max_size=30))
    packets = duplicate(packets, copies, data.draw(st.integers(1, 50)))
    found = assert_exact(capture, packets)
    assert sum(pair.duplicates for pair in found.queue_pairs) == sum(
        packets_with_psn(packets, place) for place in range(len(packets))
    )
    assert all(pair.conflicting == 0 for pair in found.queue_pairs)


TRAFFIC: dict[str, Capture] = {
    "two": encode(Traffic(buckets=(5000,))),
    "three": encode(Traffic(ranks=3, buckets=(4000, 900), mtu=512)),
    "wrap": encode(Traffic(channels=2, first_psn=(1 << 24) - 9, buckets=(5000,), dtype="float16", mtu=256)),
}


def packets_with_psn(packets: list[Encoded], place: int) -> bool:
    """Return whether the request at `place` was seen before."""
    here = packets[place]
    if here.sent.packet.opcode > 11:
        return False
    return any(other is here for other in packets[:place])


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("case", sorted(TRAFFIC))
def test_go_back_n_retransmission_changes_nothing(case: str, lost: bool) -> None:
    capture = TRAFFIC[case]
    data = [place for place, packet in enumerate(capture.packets) if packet.sent.packet.payload and packet.shown]
    for place in data[:: max(1, len(data) // 15)]:
        assert_exact(capture, retransmit(capture.packets, place, 6, lost))


def test_a_retransmission_that_differs_is_reported_and_neither_copy_used() -> None:
    capture = encode(Traffic(buckets=(3000,)))
    other = encode(Traffic(buckets=(3000,), seed=2))
    place = next(p for p, packet in enumerate(capture.packets) if packet.shown and packet.sent.packet.opcode == 7)
    shown = capture.packets[place].shown
    assert shown is not None
    packets: list[Any] = list(capture.packets)
    packets.insert(place + 3, other.packets[place])
    found = run(capture, packets)
    assert sum(pair.conflicting for pair in found.queue_pairs) == 1
    assert found.all_reduces[0].missing_elements == [(shown.start // 4, shown.stop // 4)]
    psn = capture.packets[place].sent.packet.psn
    assert [(m.first, m.last) for m in found.all_reduces[0].missing_psn] == [(psn, psn)]
