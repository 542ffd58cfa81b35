"""Long captures: the same result as of short ones, in memory that does not grow with other traffic."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from capture.model import Packet
from rocev2 import decoder
from rocev2.encode import Traffic, encode
from rocev2.frames import Endpoint, Transport, frame
from rocev2.opcodes import WRITE_ONLY_IMM
from rocev2.report import decode
from tests.rocev2.oracle import assert_exact


@pytest.mark.parametrize("ranks", [2, 3])
def test_many_steps_over_the_wrap(ranks: int) -> None:
    traffic = Traffic(ranks=ranks, channels=2, buckets=(3000, 800), steps=20, mtu=256, first_psn=(1 << 24) - 900)
    capture = encode(traffic)
    assert len(capture.packets) > 5000
    assert_exact(capture, capture.packets)


def foreign(count: int) -> Iterator[Packet]:
    """Yield plain writes between two hosts, 1 KiB each: storage traffic, say."""
    ends = Endpoint(bytes(6), bytes((10, 0, 0, 1))), Endpoint(bytes(6), bytes((10, 0, 0, 2)))
    for number in range(count):
        body = Transport(WRITE_ONLY_IMM, 7, number, number.to_bytes(4, "little") * 256, 64, 2, 1024, 1024)
        data = frame(*ends, 4242, body)
        yield Packet(number + 1, 0, data, len(data), 0, 1, 0)


def test_memory_does_not_grow_with_other_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_MOST_PLAIN_BYTES", 1 << 20)
    peaks = []
    for count in (4500, 9000):
        tracemalloc.start()
        decode(foreign(count), use_p2p=True, dtype=None, file="x")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 20)
