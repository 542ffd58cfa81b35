"""From one direction between two ranks: broadcasts before an all-reduce are not taken for its chunks."""

from __future__ import annotations

import pytest

from capture.model import Packet
from rocev2.encode import Traffic, encode
from rocev2.report import decode
from tests.fuzz_inputs.surface_rocev2 import _agrees


@pytest.mark.parametrize("late_sizes", [False, True])
@pytest.mark.parametrize("prologue", [(8,), (1000, 2, 8), (16, 8, 100)])
@pytest.mark.parametrize("buckets", [(4096,), (4096, 1500)])
def test_every_prefix_tells_the_truth_or_nothing(buckets: tuple[int, ...], prologue: tuple[int, ...], late_sizes: bool):
    """With the buckets' sizes; all chunks of 4096 elements are of one size, which tells the phases nothing."""
    capture = encode(Traffic(buckets=buckets, steps=2, seed=18, prologue=prologue, late_sizes=late_sizes))
    told = 0
    for source in sorted({packet.source for packet in capture.packets}):
        mine = [packet.data for packet in capture.packets if packet.source == source]
        for count in range(1, len(mine) + 1, 3):
            packets = [Packet(n, n * 1000, data, len(data), 0, 1, 0) for n, data in enumerate(mine[:count], 1)]
            found = decode(packets, use_p2p=False, dtype="float32", file="x", bucket_elements=buckets)
            told += len(found.all_reduces)
            for item in found.all_reduces:
                assert any(_agrees(item, tensor) for tensor in capture.tensors), (source, count)
    assert told or len(buckets) == 1
