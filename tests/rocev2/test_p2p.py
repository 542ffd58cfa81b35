"""p2p messages: they fill what the captured direction cannot show, and nothing that cannot be proven."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rocev2.encode import Capture, Encoded, Traffic, encode, to_packets
from rocev2.faults import lose
from rocev2.frames import Endpoint, frame
from rocev2.report import DecodedCapture, decode
from tests.rocev2.oracle import rows, run

TRAFFIC = Traffic(p2p=True, buckets=(2500,), steps=3)


@pytest.fixture(scope="module")
def capture() -> Capture:
    return encode(TRAFFIC)


def one_way(packets: list[Encoded]) -> list[Encoded]:
    return [packet for packet in packets if packet.source == 0]


def test_they_supply_what_one_direction_lacks(capture: Capture) -> None:
    found = run(capture, one_way(capture.packets), use_p2p=True)
    assert [item.tensor for item in found.all_reduces] == capture.tensors
    assert [item.from_p2p for item in found.all_reduces] == [2500 - 2048] * 3
    assert [(m.outcome, m.all_reduce, m.start) for m in found.p2p] == [("supplies", n, 8192) for n in range(3)]
    without = run(capture, one_way(capture.packets), use_p2p=False)
    assert [item.missing_elements for item in without.all_reduces] == [[(2048, 2500)]] * 3


def test_they_replace_packets_that_the_all_gather_lost(capture: Capture) -> None:
    """With both directions their place is proven by the bytes around a hole."""
    place = next(n for n, p in enumerate(capture.packets) if p.source == 1 and p.shown is not None)
    packets = lose(capture.packets, [place])
    assert not run(capture, packets, use_p2p=False).all_reduces[0].complete
    found = run(capture, packets, use_p2p=True)
    assert [item.tensor for item in found.all_reduces] == capture.tensors
    assert found.p2p[0].outcome == "agrees"
    assert len(found.all_reduces[0].missing_psn) == 1  # it is still said what was lost


def test_a_lost_message_is_not_replaced_by_the_next_one(capture: Capture) -> None:
    """Two all-reduces lack the same part, one message is there: nobody can tell whose it is."""
    first = [n for n, p in enumerate(capture.packets) if p.p2p and p.shown and p.shown.all_reduce == 0]
    found = run(capture, one_way(lose(capture.packets, first)), use_p2p=True)
    for item, tensor in zip(found.all_reduces, capture.tensors, strict=True):
        assert np.array_equal(rows(item.data, 4)[item.covered], rows(tensor, 4)[item.covered])
    assert not found.all_reduces[0].complete
    assert found.p2p[0].outcome == "ambiguous"


def with_payload(packets: list[Encoded], payload: bytes) -> DecodedCapture:
    """Decode packets with the p2p messages' bytes replaced."""
    hosts = [Endpoint(bytes(6), bytes(15) + bytes((n,))) for n in (1, 2)]
    frames = []
    for packet in packets:
        sent, start = packet.sent.packet, 0
        if packet.p2p and packet.shown is not None:
            start = packet.shown.start - 8192
            sent = replace(sent, payload=payload[start : start + len(sent.payload)])
        data = frame(hosts[packet.source], hosts[1 - packet.source], packet.sent.udp_source, sent)
        frames.append(replace(packet, data=data))
    return decode(to_packets(frames), use_p2p=True, dtype="float32", file="x")


def test_a_message_of_another_part_is_not_put_into_the_hole(capture: Capture) -> None:
    """As long as the hole, but the bytes are those of elements that are known: it belongs there."""
    single = encode(replace(TRAFFIC, steps=1))
    copy = single.tensors[0][400 : 400 + (2500 - 2048) * 4]
    found = with_payload(one_way(single.packets), copy)
    assert found.all_reduces[0].missing_elements == [(2048, 2500)]
    assert [(m.outcome, m.start) for m in found.p2p] == [("agrees", 400)]


def test_a_conflict_is_reported_and_the_all_gather_wins() -> None:
    single = encode(replace(TRAFFIC, steps=1))
    found = with_payload(single.packets, np.arange(2500 - 2048, dtype="<f4").tobytes())
    assert found.all_reduces[0].tensor == single.tensors[0]
    assert found.all_reduces[0].conflicts > 400
    assert [(m.outcome, m.start) for m in found.p2p] == [("conflict", 8192)]


def test_a_periodic_copy_proves_no_place() -> None:
    single = encode(replace(TRAFFIC, steps=1, dtype="int32"))
    constant = np.full(2500, 18, "<i4").tobytes()
    # Every reduced element alike: the message fits everywhere, and so nowhere.
    packets = []
    for packet in one_way(single.packets):
        sent = packet.sent.packet
        if packet.shown is not None and not packet.p2p:
            flags = np.frombuffer(sent.payload, "<u4").copy()
            flags[0::2] = 18
            sent = replace(sent, payload=flags.tobytes())
            packet = replace(packet, sent=replace(packet.sent, packet=sent))
        packets.append(packet)
    found = with_payload(packets, constant)
    assert found.all_reduces[0].missing_elements == [(2048, 2500)]
    assert [m.outcome for m in found.p2p] == ["ambiguous"]
