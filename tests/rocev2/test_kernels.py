"""The compiled kernels do what their references do, on frames good and bad."""

from __future__ import annotations

import random

import numpy as np
import pytest

from packets.batch import PacketBatch
from packets.headers import HEADER, Headers
from packets.reference import decode
from rocev2.encode import Traffic, encode
from rocev2.frames import Endpoint, Transport, frame
from rocev2.headers import FRAME, Frames, Verdict, read_rows
from rocev2.messages import number_messages
from rocev2.opcodes import KNOWN

ATOMICS = {0x12, 0x13, 0x14, 0x52, 0x53, 0x54}  # read, never written


def batch_of(seed: int) -> PacketBatch:
    """Return frames of every opcode, of an all-reduce, and damaged ones, some cut by the snapshot length."""
    rng = random.Random(seed)
    host = [Endpoint(bytes(6), bytes(size - 1) + bytes((number,))) for size in (4, 16) for number in (1, 2)]
    frames = [packet.data for packet in encode(Traffic(buckets=(900,), mtu=256, p2p=True)).packets]
    for opcode in sorted(KNOWN.keys() - ATOMICS):
        for size in (0, 5, 24):
            packet = Transport(opcode, 7, rng.getrandbits(24), bytes(size), rng.getrandbits(64), 9, size, 4, 0x60)
            ends = host[:2] if rng.random() < 0.5 else host[2:]
            frames.append(frame(ends[0], ends[1], 4242, packet, vlans=(5,) * rng.randrange(3)))
    known = frame(host[0], host[1], 4242, Transport(4, 7, 8, bytes(8)))
    frames.append(known[:42] + b"\xff" + known[43:])
    for good in list(frames):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 3)):
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        frames += [bytes(bad), bytes(bad[: rng.randrange(len(bad))]), good[: rng.randrange(len(good))]]
    return PacketBatch.of(frames, 1, [len(data) + rng.choice([0, 100]) for data in frames])


@pytest.mark.parametrize("seed", range(3))
def test_frames_are_read_alike(seed: int) -> None:
    batch = batch_of(seed)
    headers: Headers = np.zeros(len(batch), HEADER)
    decode(batch.data, batch.starts, batch.lengths, batch.wire_lengths, batch.link_types, False, headers)
    found: list[Frames] = []
    for run in (read_rows.reference, read_rows.compiled()):
        found.append(np.zeros(len(batch), FRAME))
        run(batch.data, batch.starts, batch.lengths, headers, found[-1])
    assert set(found[0]["verdict"].tolist()) == set(Verdict)
    for name in FRAME.names or ():
        assert np.array_equal(found[0][name], found[1][name]), name


def test_messages_are_numbered_alike() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        count = int(rng.integers(1, 40))
        opcode = rng.integers(6, 12, count).astype(np.uint8)
        psn = np.cumsum(rng.choice([1, 1, 1, 2], count)) + (1 << 24)
        size = rng.choice([256, 256, 256, 512, 8, 0], count)
        length = rng.choice([256, 512, 520, 1024, 8, 0], count).astype(np.uint32)
        results = []
        for run in (number_messages.reference, number_messages.compiled()):
            numbers = np.zeros(count, np.int64)
            results.append((run(opcode, psn, size, length, numbers), numbers.tolist()))
        assert results[0] == results[1]
