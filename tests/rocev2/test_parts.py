"""The parts by themselves: PSN arithmetic, ordering, messages, chunk arithmetic, lines, rings, types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packets.batch import Bytes
from rocev2 import psn
from rocev2.connection import to_lines
from rocev2.control import VERSIONS, Announcement, announce, announcements
from rocev2.dtypes import canonical
from rocev2.encode import Traffic, add, encode, to_packets
from rocev2.errors import RoceError
from rocev2.headers import FRAME, Frames
from rocev2.messages import Write, cut
from rocev2.opcodes import (
    READ_REQUEST,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_LAST_IMM,
    WRITE_MIDDLE,
    WRITE_ONLY,
    WRITE_ONLY_IMM,
)
from rocev2.protocols import LL, SIMPLE
from rocev2.queue_pair import QueuePair
from rocev2.report import decode
from rocev2.shape import GRAINS, Contradiction, LoopShape, Undetermined, loops, sent_chunk, solve


class Request(NamedTuple):
    opcode: int
    psn: int
    payload: bytes = b""
    length: int = 0
    immediate: int = -1


def rows_of(items: Sequence[Request], first: int = 0) -> tuple[Frames, Bytes]:
    """Return the rows of packets, and the data that their payloads are in."""
    frames = np.zeros(len(items), FRAME)
    data = b""
    for row, item in enumerate(items):
        for name in ("opcode", "psn", "length", "immediate"):
            frames[name][row] = getattr(item, name)
        frames["address"][row], frames["order"][row] = 0x1000, first + row
        frames["payload"][row], frames["size"][row] = len(data), len(item.payload)
        data += item.payload
    return frames, np.frombuffer(data, np.uint8)


@given(st.integers(1 << 24, 1 << 40), st.integers(-psn.HALF + 1, psn.HALF))
def test_unwrap_finds_the_nearest(near: int, distance: int) -> None:
    number = near + distance
    found = psn.unwrap(psn.wrap(number), near)
    assert found == number or (distance == -psn.HALF and found == near - psn.HALF)


def test_gaps() -> None:
    assert psn.gaps([(3, 4), (7, 7)], 1, 9) == [(1, 2), (5, 6), (8, 9)]
    assert psn.gaps([], 1, 2) == [(1, 2)]
    assert psn.gaps([(1, 2)], 1, 2) == []


def to_bytes(payload: bytes) -> Bytes:
    return np.frombuffer(payload, np.uint8)


def queue_of(*items: Request, batch: int = 1000) -> QueuePair:
    queue = QueuePair()
    for first in range(0, len(items), batch):
        frames, data = rows_of(items[first : first + batch], first)
        queue.add(frames, np.ones(len(frames), np.bool_), data)
    return queue


def test_queue_pair_orders_over_the_wrap_and_drops_copies() -> None:
    queue = queue_of(*(Request(WRITE_MIDDLE, number, b"x") for number in [0xFFFFFE, 1, 0, 0xFFFFFF, 1, 3]))
    assert [psn.wrap(number) for number in queue.requests()[0]["psn"].tolist()] == [0xFFFFFE, 0xFFFFFF, 0, 1, 3]
    assert (queue.duplicates, queue.reordered, queue.lost(None, {})) == (1, 2, ((2, 2),))


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize(("again", "conflicts"), [(b"xxxx", 0), (b"xxxy", 1), (b"xxx", 1)])
def test_a_copy_is_compared_with_the_first_wherever_that_is(batch: int, again: bytes, conflicts: int) -> None:
    items = [Request(WRITE_MIDDLE, number, payload) for number, payload in enumerate([b"yyyy", b"xxxx", b"z"], 1)]
    queue = queue_of(*items, Request(WRITE_MIDDLE, 2, again), Request(WRITE_MIDDLE, 2, b"xxxx"), batch=batch)
    frames, data = queue.requests()
    kept = [data[place : place + size].tobytes() for place, size in frames[["payload", "size"]].tolist()]
    assert kept == ([b"yyyy", b"z"] if conflicts else [b"yyyy", b"xxxx", b"z"])
    assert (queue.duplicates, queue.conflicting) == ((0, 2) if conflicts else (2, 0))
    assert queue.lost(None, {}) == (((2, 2),) if conflicts else ())


@given(st.permutations(range(12)), st.sets(st.integers(1, 10)))
def test_no_order_of_arrival_changes_what_a_queue_pair_holds(numbers: list[int], gone: set[int]) -> None:
    there = [number for number in numbers if number not in gone]
    queue = queue_of(*(Request(WRITE_MIDDLE, psn.wrap(0xFFFFFA + number), b"x") for number in there))
    assert [psn.wrap(number - 0xFFFFFA) for number in queue.requests()[0]["psn"].tolist()] == sorted(there)
    lost = [psn.wrap(number - 0xFFFFFA) for low, high in queue.lost(None, {}) for number in (low, high)]
    expected = psn.gaps([(number, number) for number in sorted(there)], 0, 11)
    assert lost == [number for gap in expected for number in gap]


@pytest.mark.parametrize(
    ("length", "next_psn", "mtu", "exact", "lost"),
    [
        (2048, 5, 1024, {}, ()),
        (2048, 6, 1024, {}, ((5, 5),)),
        (2048, 5, 4096, {3: 1024}, ()),  # the response says more than other packets
        (0, 4, None, {}, ()),
        (0, 5, None, {}, ((4, 4),)),
        (1024, 7, None, {}, ()),  # four packets, if the MTU is 256
        (1024, 8, None, {}, ((7, 7),)),
    ],
)
def test_a_read_takes_as_many_psns_as_its_response_has_packets(
    length: int, next_psn: int, mtu: int | None, exact: dict[int, int], lost: tuple[tuple[int, int], ...]
) -> None:
    read, after = Request(READ_REQUEST, 3, length=length), Request(WRITE_ONLY, next_psn, b"x", 1)
    for frames in ((read, after), (after, read)):
        assert queue_of(*frames).lost(mtu, exact) == lost


def build(*items: Request) -> list[Write]:
    return cut(*queue_of(*items).requests())[0]


def test_messages_of_every_kind() -> None:
    body = bytes(256)
    done = build(
        Request(WRITE_FIRST, 0, body, 600), Request(WRITE_MIDDLE, 1, body), Request(WRITE_LAST, 2, body[:88]),
        Request(WRITE_ONLY, 3, b"abcd", 4), Request(WRITE_ONLY_IMM, 4, b"", 0, 600),
        Request(WRITE_FIRST, 5, body, 512), Request(WRITE_LAST_IMM, 6, body, 0, 512),
    )  # fmt: skip
    assert [(w.length, w.bytes, w.immediate, w.ended, w.single) for w in done] == [
        (600, 600, -1, True, False),
        (4, 4, -1, True, True),
        (0, 0, 600, True, True),
        (512, 512, 512, True, False),
    ]


def test_what_is_left_of_damaged_messages() -> None:
    body = bytes(256)
    done = build(
        Request(WRITE_MIDDLE, 11, body), Request(WRITE_LAST_IMM, 12, body[:8], 0, 520),  # FIRST 10 lost
        Request(WRITE_FIRST, 13, body, 1024), Request(WRITE_MIDDLE, 15, body),  # 14 and LAST 16 lost
        Request(WRITE_ONLY_IMM, 17, b"", 0, 0),
    )  # fmt: skip
    assert [(w.first is None, w.ended, len(w.frames)) for w in done] == [
        (True, True, 2),
        (False, False, 2),
        (False, True, 1),
    ]
    assert psn.wrap(done[1].last or 0) == 16


def test_packets_that_do_not_fit_their_place_are_not_used() -> None:
    bad = [
        Request(WRITE_FIRST, 0, bytes(100), 600),  # no path MTU
        Request(WRITE_FIRST, 1, bytes(256), 100),  # shorter than its first packet
        Request(WRITE_ONLY, 2, bytes(8), 9),
        Request(WRITE_MIDDLE, 3, bytes(17)),
        Request(WRITE_LAST, 4, b""),
    ]
    assert build(*bad) == []


@given(
    st.integers(1, 60000), st.integers(2, 5), st.integers(1, 3), st.sampled_from([1, 2, 4, 8]), st.sampled_from(GRAINS)
)
def test_chunks_are_those_of_nccl(elements: int, ranks: int, channels: int, size: int, grain: int) -> None:
    """The loop of NCCL 2.18's kernel, in elements as it is written there, gives the same chunks."""
    least, most = grain // size, 32768 // size
    expected = set()
    offset = 0
    while offset < elements:
        pieces = channels * ranks
        chunk = min(most, -(-(elements - offset) // (pieces * least)) * least)
        for number in range(ranks):
            for channel in range(channels):
                start = offset + (number * channels + channel) * chunk
                count = min(chunk, elements - start)
                if count > 0:
                    expected.add((start * size, (start + count) * size))
        offset += pieces * most
    found = set()
    for base, shape in loops(elements * size, ranks, channels, grain):
        for number in range(ranks):
            for channel in range(channels):
                start, length = base + shape.start(number, channel), shape.size(number, channel)
                if length:
                    found.add((start, start + length))
    assert found == expected


@given(st.integers(1, 65536), st.integers(2, 4), st.integers(1, 3), st.data())
def test_a_solved_shape_is_the_true_one(lines: int, ranks: int, channels: int, data: st.DataObject) -> None:
    """From any part of the chunk sizes: the true shape, or a refusal; from all of them always the shape."""
    total = lines * 8
    _, shape = loops(total, ranks, channels)[-1]
    sizes = {k * channels + c: shape.size(k, c) for k in range(ranks) for c in range(channels)}
    assert solve(ranks, channels, sizes, {}).rest == shape.rest
    known = {k: v for k, v in sizes.items() if data.draw(st.booleans())}
    try:
        assert solve(ranks, channels, known, {}).rest == shape.rest
    except Undetermined:
        assert len(known) < len(sizes)


@pytest.mark.parametrize("known", [{0: 0, 1: 0}, {0: 100, 1: 100}, {0: 4096, 1: 8192}, {0: 0, 1: 8}, {0: 5000, 1: 8}])
def test_sizes_of_other_collectives_are_refused(known: dict[int, int]) -> None:
    with pytest.raises(Contradiction):
        solve(2, 1, known, {})


def test_every_rank_sends_every_chunk_in_ring_order() -> None:
    assert [sent_chunk(0, step, 4) for step in range(6)] == [3, 2, 1, 0, 3, 2]
    assert LoopShape(2, 1, 20000, 12288).size(1, 0) == 7712


@given(st.binary(min_size=1, max_size=300), st.integers(1, (1 << 32) - 1))
def test_lines_come_back(data: bytes, flag: int) -> None:
    lines = to_bytes(to_lines(data, flag))
    assert LL.flag(lines) == flag
    assert LL.data(lines)[: len(data)].tobytes() == data
    assert len(LL.data(lines)) == -(-len(data) // 8) * 8


def test_payloads_without_a_flag_are_not_ll() -> None:
    different = to_lines(b"1234567812345678", 4)[:16] + to_lines(b"12345678", 5)
    for payload in (bytes(64), b"x" * 12, b"", different):  # flag 0 never is
        assert LL.flag(to_bytes(payload)) is None
    assert SIMPLE.flag(to_bytes(b"abc")) == 0
    assert SIMPLE.data(to_bytes(b"abc")).tobytes() == b"abc"


def test_control_entries_are_told_from_data() -> None:
    entry = bytes.fromhex("00000004060000000000010015200200010000000100000002000000") + bytes(4)
    (found,) = announcements(entry)
    assert (found.address, found.size, found.tag, found.step) == (0x604000000, 65536, 1, 1)
    assert announcements(bytes(32)) == []
    assert announcements(entry[:31]) == []
    assert announcements(to_lines(b"x" * 16, 2)) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_control_entries_of_every_layout_come_back(version: str) -> None:
    entry = Announcement(0x7F0000010000, 65536, 0x200001, 3, 77)
    payload = announce(version, entry)
    assert len(payload) == (32 if version == "2.18" else 64)
    assert announcements(payload) == [entry]
    assert announcements(payload * 2) == []  # each says that it is the only one
    for place in range(len(payload)):
        changed = bytearray(payload)
        changed[place] ^= 0xFF
        for found in announcements(bytes(changed)):
            assert found != entry or 16 <= place < 48  # a key of another device


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("one_way", [False, True])
def test_control_writes_of_every_layout_are_no_messages(version: str, one_way: bool) -> None:
    capture = encode(Traffic(buckets=(2500, 2000), control=version))
    packets = [packet for packet in capture.packets if packet.source == 0 or not one_way]
    found = decode(to_packets(packets), use_p2p=True, dtype="float32", file="x")
    assert {message.kind for message in found.messages} == {"LL", "control"}
    assert found.p2p == ()
    assert not found.open
    for item, tensor in zip(found.all_reduces, capture.tensors, strict=True):
        assert item.complete == (not one_way)
        assert item.to_numpy()[item.covered].tobytes() == np.frombuffer(tensor, "<f4")[item.covered].tobytes()
        assert item.covered.any()


def test_bfloat16_rounds_to_nearest_even() -> None:
    one, tiny = np.array([0x3F80], "<u2"), np.array([0x3B80], "<u2")  # 1 and 2^-8, half a unit of 1
    assert add(one, tiny, "bf16").tolist() == [0x3F80]
    assert add(np.array([0x3F81], "<u2"), tiny, "bf16").tolist() == [0x3F82]


def test_wrong_arguments_are_named() -> None:
    assert canonical("torch.float32") == canonical("fp32") == "float32"
    with pytest.raises(RoceError, match="dtype 'complex64'"):
        decode([], use_p2p=False, dtype="complex64", file="x")
    for bad in (
        {"ranks": 1},
        {"channels": 0},
        {"mtu": 1500},
        {"buckets": (0,)},
        {"grain": 5},
        {"p2p": True, "ranks": 3},
    ):
        with pytest.raises(RoceError):
            Traffic(**bad)  # type: ignore[arg-type]


def test_the_document_has_the_shape_that_is_promised() -> None:
    capture = encode(Traffic(buckets=(5,), dtype="fp16"))
    document = decode(to_packets(capture.packets), use_p2p=False, dtype="fp16", file="f", bucket_elements=[5]).to_json()
    assert set(document) == {"file", "packets", "rocev2_packets", "other", "all_reduces", "open", "notes"}
    (item,) = document["all_reduces"]
    assert set(item) == {
        "index", "ranks", "channels", "protocol", "dtype", "elements", "covered", "complete", "sha256",
        "missing_elements", "missing_psn",
    }  # fmt: skip
    assert (item["elements"], item["covered"], item["dtype"], item["complete"]) == (5, 5, "fp16", True)
    assert decode([], use_p2p=True, dtype=None, file="none").to_json()["all_reduces"] == []


def test_without_sizes_the_count_is_that_of_the_wire() -> None:
    """LL sends lines of 8 bytes: 5 halves look like 8, and only the job knows better."""
    capture = encode(Traffic(buckets=(5,), dtype="fp16"))
    (item,) = decode(to_packets(capture.packets), use_p2p=False, dtype="fp16", file="f").all_reduces
    assert item.elements == 8
    assert item.data[:10] == capture.tensors[0]
    (item,) = decode(to_packets(capture.packets), use_p2p=False, dtype=None, file="f").all_reduces
    assert item.elements == 4
    assert item.dtype is None
    assert item.to_numpy().dtype == np.uint32
