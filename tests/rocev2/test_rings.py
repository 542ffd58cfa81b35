"""Rings: who is rank 0, how many there are, and what keeps hosts from being one."""

from __future__ import annotations

import pytest

from rocev2.encode import Capture, Encoded, Traffic, encode
from rocev2.opcodes import ACKNOWLEDGE
from tests.rocev2.oracle import assert_exact, assert_no_wrong_element, run


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("channels", [1, 2])
def test_ranks_and_channels_are_found(ranks: int, channels: int) -> None:
    capture = encode(Traffic(ranks=ranks, channels=channels, buckets=(channels * ranks * 1024 - 100,)))
    found = assert_exact(capture, capture.packets)
    assert [(item.ranks, item.channels, item.protocol) for item in found.all_reduces] == [(ranks, channels, "LL")]
    data = {pair.dest_qp: (pair.rank, pair.channel) for pair in found.queue_pairs if pair.role == "LL"}
    assert sorted(data.values()) == [(rank, channel) for rank in range(ranks) for channel in range(channels)]
    assert {pair.role for pair in found.queue_pairs} == {"LL", "control"}


def data_only(capture: Capture) -> list[Encoded]:
    """Return the packets without control writes and acknowledgements: nothing names a rank."""
    return [
        packet
        for packet in capture.packets
        if packet.sent.packet.opcode != ACKNOWLEDGE and packet.sent.packet.dest_qp < 0x9000
    ]


def test_without_control_writes_unequal_chunks_tell_rank_0() -> None:
    capture = encode(Traffic(ranks=3, buckets=(2500, 300)))
    assert_exact(capture, data_only(capture))


def test_without_control_writes_equal_chunks_do_not() -> None:
    capture = encode(Traffic(ranks=3, buckets=(3072,)))
    found = assert_no_wrong_element(capture, data_only(capture))
    assert not any(item.covered.any() for item in found.all_reduces)
    assert found.unresolved


def test_an_open_chain_of_hosts_is_no_ring() -> None:
    """One link of four ranks: how many there are cannot be seen."""
    capture = encode(Traffic(ranks=4, buckets=(5000,)))
    link = [packet for packet in capture.packets if packet.sent.packet.dest_qp in (0x1000, 0x9000)]
    found = run(capture, link)
    assert found.all_reduces == ()
    assert "no closed ring" in found.notes[0]


def test_one_rank_of_three_seen_with_what_it_announces_is_not_enough_for_a_ring_but_two_are() -> None:
    capture = encode(Traffic(ranks=3, buckets=(2500,)))
    one = [packet for packet in capture.packets if packet.source == 0]
    assert run(capture, one).all_reduces == ()
    two = [packet for packet in capture.packets if packet.source != 2]
    found = assert_exact(capture, two)
    assert found.all_reduces[0].ranks == 3
