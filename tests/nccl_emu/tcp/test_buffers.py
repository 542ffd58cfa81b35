"""Send buffer and reassembly against models made of plain lists."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_emu.tcp.reassembly import Reassembly
from nccl_emu.tcp.send_buffer import SendBuffer

tagged_writes = st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([0, 0, 3, 11])), max_size=30)


@given(tagged_writes, st.data())
@settings(max_examples=150)
def test_send_buffer_is_a_list_of_tagged_bytes(writes: list[tuple[bytes, int]], data: st.DataObject) -> None:
    buffer = SendBuffer()
    stream: list[tuple[int, int]] = []
    released = 0
    for payload, dscp in writes:
        buffer.append(payload, dscp)
        stream += [(byte, dscp) for byte in payload]
        released = data.draw(st.integers(released, len(stream)))
        buffer.release(1 + released)
        assert (buffer.start, buffer.end) == (1 + released, 1 + len(stream))
        at = data.draw(st.integers(released, len(stream)))
        limit = data.draw(st.integers(0, 60))
        length = buffer.run(1 + at, limit)
        tag = stream[at][1] if at < len(stream) else 0
        expected = 0
        while expected < limit and at + expected < len(stream) and stream[at + expected][1] == tag:
            expected += 1
        assert length == expected
        if length:
            wanted = bytes(byte for byte, _ in stream[at : at + length])
            assert buffer.take(1 + at, length) == (wanted, tag)


def test_many_released_chunks_leave_the_rest_intact() -> None:
    buffer = SendBuffer()
    for value in range(1000):
        buffer.append(bytes([value & 0xFF]), value & 1)
        if value >= 10:
            buffer.release(1 + value - 10)
            assert buffer.take(1 + value - 10, 1) == (bytes([(value - 10) & 0xFF]), value & 1)
    assert len(buffer._starts) < 200


def test_read_only_data_is_not_copied_and_is_let_go_when_released() -> None:
    array = np.arange(100_000, dtype=np.uint8)
    array.flags.writeable = False
    alive = weakref.ref(array)
    buffer = SendBuffer()
    buffer.append(memoryview(array), 0)
    del array
    gc.collect()
    assert alive() is not None
    buffer.append(b"next", 0)
    buffer.release(1 + 100_000)
    gc.collect()
    assert alive() is None
    assert buffer.take(100_001, 4) == (b"next", 0)


def test_writable_data_is_copied_so_that_a_retransmission_repeats_it() -> None:
    source = bytearray(b"gradient")
    buffer = SendBuffer()
    buffer.append(source, 0)
    buffer.append(memoryview(source), 0)
    source[:] = b"changed!"
    assert buffer.take(1, 16) == (b"gradientgradient", 0)


def test_strided_and_empty_views() -> None:
    matrix = np.arange(12, dtype=np.uint8).reshape(3, 4)
    matrix.flags.writeable = False
    buffer = SendBuffer()
    buffer.append(memoryview(matrix[:, 1]), 0)
    buffer.append(memoryview(np.zeros((0, 3), dtype=np.float32)), 5)
    buffer.append(memoryview(matrix), 0)
    assert buffer.take(1, 15) == (bytes([1, 5, 9, *range(12)]), 0)


def test_views_of_wider_items_count_bytes() -> None:
    buffer = SendBuffer()
    buffer.append(memoryview(np.array([1.0, 2.0], dtype=np.float32)), 0)
    assert buffer.end == 9
    assert buffer.take(5, 4)[0] == np.float32(2.0).tobytes()


STREAM = bytes(range(1, 61))


@given(st.lists(st.tuples(st.integers(0, 59), st.integers(0, 30)), max_size=40), st.data())
@settings(max_examples=200)
def test_reassembly_delivers_each_byte_once_and_in_order(pieces: list[tuple[int, int]], data: st.DataObject) -> None:
    reassembly = Reassembly()
    there: set[int] = set()
    result = b""
    for start, length in [*pieces, (30, 30), (0, 30)]:
        payload = STREAM[start : start + length]
        reassembly.add(start, payload)
        there |= set(range(start, start + len(payload)))
        expected_next = next((i for i in range(60) if i not in there), 60)
        assert reassembly.next == expected_next
        assert reassembly.readable == expected_next - len(result)
        assert reassembly.has_gap == any(i > expected_next for i in there)
        # Nothing is kept twice: what is stored never exceeds what is missing from the reader's view.
        stored = sum(len(block) for block in reassembly._blocks)
        assert stored == sum(i >= expected_next for i in there)
        limit = data.draw(st.one_of(st.none(), st.integers(0, 25)))
        result += reassembly.read(limit)
    result += reassembly.read(None)
    assert result == STREAM
    assert reassembly.read(None) == b""


def test_the_first_copy_of_a_byte_wins() -> None:
    reassembly = Reassembly()
    reassembly.add(2, b"cd")
    reassembly.add(1, b"BCDEF")
    reassembly.add(0, b"a")
    assert reassembly.read(None) == b"aBcdEF"


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_reading_in_small_parts(limit: int) -> None:
    reassembly = Reassembly()
    for start in range(0, 60, 9):
        reassembly.add(start, STREAM[start : start + 9])
    parts = []
    while reassembly.readable:
        parts.append(reassembly.read(limit))
    assert b"".join(parts) == STREAM
    assert all(len(part) == limit for part in parts[:-1])
