"""The scans of capture files, compiled and in plain Python, against each other."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from capture.walk import new_table, scan_pcap, scan_pcapng
from tests.capture.builders import block, enhanced, record


def outcome(function: Any, *arguments: Any) -> tuple[Any, ...]:
    table, odd = new_table(), np.zeros(2, np.int64)
    count, position, need = function(*arguments, table, odd)
    return count, position, need, table[:, :count].tolist(), odd.tolist()


def both(kernel: Any, data: bytes, rng: random.Random, *arguments: Any) -> int:
    """Compare the two on the data, on damaged data, and on pieces of it; return how many packets were found."""
    found = 0
    for _ in range(20):
        changed = bytearray(data)
        if found:
            for _ in range(rng.choice((0, 1, 3))):
                changed[rng.randrange(len(changed))] = rng.choice((0, 1, 0xFF, rng.getrandbits(8)))
            del changed[rng.choice((len(changed), rng.randrange(len(changed)))) :]
        bytes_ = np.frombuffer(bytes(changed), np.uint8)
        slow = outcome(kernel.reference, bytes_, 0, 0, *arguments)
        assert outcome(kernel.compiled(), bytes_, 0, 0, *arguments) == slow
        found = found or slow[0]
    return int(found)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("order", "<>")
def test_pcap(seed: int, order: str) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice((0, 1, 60, 1500)) for _ in range(40)]
    data = b"".join(
        record(rng.randbytes(size), rng.getrandbits(32) or 1, rng.choice((5, 2_000_000)), order,
               original=rng.choice((size, 10, 1 << 31))) for size in sizes
    )  # fmt: skip
    assert both(scan_pcap, data, rng, order == ">", rng.choice((1, 1000)), rng.choice((1, 276))) == 40


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("order", "<>")
def test_pcapng(seed: int, order: str) -> None:
    rng = random.Random(seed)
    clocks = np.array([(1, 1000, 1, 5), (113, 1, 1, -7), (1, 1_000_000_000, 1 << 32, 0), (0, 1, -1, 0)], np.int64)
    parts: list[bytes] = []
    for _ in range(40):
        size = rng.choice((0, 1, 60, 1500))
        parts.append(
            enhanced(
                rng.randbytes(size), rng.getrandbits(rng.choice((40, 60)) if parts else 40), rng.randrange(3), order
            )
        )
        if rng.random() < 0.2:
            parts.append(block(99, rng.randbytes(40), order))
    assert both(scan_pcapng, b"".join(parts), rng, order == ">", clocks) > 0
