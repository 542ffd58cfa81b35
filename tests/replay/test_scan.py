"""Frame headers are found wherever segments are cut, by the compiled kernel as by its reference."""

from __future__ import annotations

import random

import numpy as np
import pytest

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import HEADER_BYTES, FrameHeader
from checkmate_common.stream.ring import Phase
from replay import scan
from replay.scan import Candidates, Tails, find_candidates, headers_in

RUNS = [find_candidates.reference, find_candidates.compiled()]


def _found(run, segments: list[tuple[int, int, bytes]], room: int) -> tuple[list[tuple[int, int, bytes]], list[object]]:
    """Return segment, sequence number and bytes of each candidate, and what is kept of the streams."""
    lengths = np.array([len(data) for _, _, data in segments], np.int64)
    data = np.frombuffer(b"".join(data for _, _, data in segments), np.uint8)
    sequences = np.array([sequence for _, sequence, _ in segments], np.int64)
    streams = np.array([stream for stream, _, _ in segments], np.int64)
    tails, found, all_found, at = Tails(4), Candidates(room), [], 0
    while at < len(segments):
        before = at
        at, count = run(
            at, data, np.cumsum(lengths) - lengths, lengths, sequences, streams, tails.following, tails.sizes,
            tails.bytes, found.rows, found.sequences, found.headers,
        )  # fmt: skip
        assert at > before
        for index in range(count):
            all_found.append((int(found.rows[index]), int(found.sequences[index]), found.headers[index].tobytes()))
    kept = [tails.bytes[number, : tails.sizes[number]].tobytes() for number in range(4)]
    return all_found, [tails.following.tolist(), kept]


@pytest.mark.parametrize("seed", range(60))
def test_the_kernel_equals_its_reference(seed: int) -> None:
    """Random segments in which parts of the magic are frequent, repeated, lost, and around the wrap."""
    rng = random.Random(seed)
    segments: list[tuple[int, int, bytes]] = []
    following = [rng.randrange(1 << 32), (1 << 32) - 50, 0, 7]
    for _ in range(rng.randrange(1, 60)):
        stream = rng.randrange(4)
        length = rng.choice([1, 3, 30, 62, 63, 64, 65, 130, 1400])
        parts = b"".join(rng.choice([b"CKMT", b"C", b"CKM", b"\0", rng.randbytes(50)]) for _ in range(length))
        data = parts[:length]
        sequence = following[stream] if rng.random() < 0.8 else rng.randrange(1 << 32)
        following[stream] = (sequence + len(data)) % (1 << 32)
        segments.append((stream, sequence, data))
    room = rng.choice([1, 2, 50, 4096])
    assert _found(RUNS[0], segments, room) == _found(RUNS[1], segments, room)


@pytest.mark.parametrize("run", RUNS, ids=["reference", "compiled"])
@pytest.mark.parametrize("cut", [*range(1, HEADER_BYTES + 60, 7), HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1])
def test_a_header_is_found_wherever_it_is_cut(run, cut: int) -> None:
    header = FrameHeader(
        job=1, group=2, epoch=3, channel=0, step=4, layout_version=5, bucket=0, phase=Phase.ALL_GATHER, hop=0, chunk=1,
        rank=0, dtype=DType.FLOAT32, element_offset=0, payload_bytes=4, payload_crc=6,
    ).pack()  # fmt: skip
    text = bytes(50) + header + bytes(70)
    first = (1 << 32) - 60  # so that the header begins behind the wrap
    pieces = [(0, first, text[:cut]), (0, (first + cut) % (1 << 32), text[cut:])]
    [(row, sequence, found)], _ = _found(run, pieces, 8)
    assert (row, sequence, found) == (int(cut < 50 + HEADER_BYTES), (first + 50) % (1 << 32), header)
    # What came between them is missing: no header.
    assert _found(run, [pieces[0], (0, first + 1000, text[cut:])], 8)[0] == ([] if 50 < cut < 50 + HEADER_BYTES else [
        (int(cut <= 50), (first + 50) % (1 << 32) if cut > 50 else (first + 1050 - cut) % (1 << 32), header)
    ])  # fmt: skip
    assert [at for at, _ in headers_in(text)] == [50]


def test_streams_are_forgotten_and_more_come() -> None:
    tails = Tails(2)
    numbers = [tails.take() for _ in range(5)]
    assert len(set(numbers)) == 5
    tails.sizes[numbers[1]] = 9
    tails.give_back(numbers[1])
    assert tails.take() == numbers[1]
    assert (tails.following[numbers[1]], tails.sizes[numbers[1]]) == (-1, 0)
    assert tails.bytes.shape[1] == scan.TAIL
