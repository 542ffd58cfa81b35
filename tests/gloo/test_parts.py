"""The arithmetic: rings, shapes, buckets, headers; and both forms of what is compiled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gloo.model import Types, find_types
from gloo.parameters import assign, read_shapes
from gloo.ring import cut, lengths, parts, solve
from gloo.stream import Stream
from gloo.wire import Header, Opcode, Prefix, build_header, build_slot, find_header, parse_header
from packets.gather import gather


@given(st.integers(1, 40 << 20), st.sampled_from([2, 4, 8]), st.integers(2, 7), st.data())
def test_ring_parts_cover_the_tensor_and_tell_its_size(elements, item, ranks, data):
    nbytes = elements // item * item or item
    rank = data.draw(st.integers(0, ranks - 1))
    assert cut(nbytes, item, ranks).count % ranks == 0
    mine = parts(nbytes, item, ranks, rank)
    for gathers in (False, True):  # all chunks but one
        assert sum(part.length for part in mine if part.gathers is gathers) <= nbytes
    covered = {(part.start, part.length) for part in mine}
    assert sum(length for _, length in covered) == nbytes
    told = lengths(nbytes, item, ranks, rank)
    found = solve(told, ranks, rank)
    if found is not None:
        assert found[0] == nbytes
        assert lengths(*found, ranks, rank) == told


def test_every_small_tensor_is_told_by_some_rank():
    for ranks in (2, 3, 4, 5):
        for elements in range(1, 60):
            found = {solve(lengths(4 * elements, 4, ranks, rank), ranks, rank) for rank in range(ranks)}
            assert {size[0] for size in found if size is not None} <= {4 * elements}


def test_all_gathers_of_all_ranks_agree_with_the_reference():
    """By simulation of gloo/allreduce.cc: what each rank sends in the all-gather is reduced already."""
    ranks, nbytes = 3, 1000
    for rank in range(ranks):
        held = {part.start for part in parts(nbytes, 4, ranks, rank) if part.gathers}
        came = {part.start for part in parts(nbytes, 4, ranks, (rank + 1) % ranks) if part.gathers}
        own = cut(nbytes, 4, ranks).count // ranks
        first = [part.start for part in parts(nbytes, 4, ranks, rank) if part.gathers][:own]
        assert held <= came | set(first)


SHAPES = [
    [(64, 40), (64,), (10, 64), (10,)],
    [(1, 2), (1,), (2, 1), (2,)],
    [(8, 3, 3, 3), (8,), (1, 8, 1, 1), (1,)],
    [(5,), (1,), (1,)],
    [(2, 1, 2, 1), (2, 2)],
]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_shapes_are_read_from_sizes_and_strides(shapes, layout):
    tensors = [torch.randn(shape) for shape in shapes]
    tensors = [t.to(memory_format=layout) if t.ndim == 4 else t for t in tensors]
    told = [number for tensor in tensors for number in (*tensor.shape, *tensor.stride())]
    found = read_shapes(told, len(tensors))
    assert [parameter.elements for parameter in found] == [tensor.numel() for tensor in tensors]
    for tensor, parameter in zip(tensors, found, strict=True):
        if parameter.shape != tuple(tensor.shape):
            continue
        memory = torch.as_strided(tensor, (tensor.numel(),), (1,)).numpy().view(np.uint8)
        assert parameter.contiguous(memory, 4).tobytes() == tensor.contiguous().numpy().tobytes()


def test_shapes_that_are_none_are_refused():
    for numbers, count in (([3, 7], 1), ([4, 1], 2), ([], 1), ([2, 3, 3], 1), ([-1, 1], 1)):
        with pytest.raises(ValueError, match="sizes and strides"):
            read_shapes(numbers, count)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 100), st.integers(1, 200), st.data())
def test_buckets_are_those_of_torch(sizes, first, then, data):
    kinds = [data.draw(st.sampled_from(["float32", "float64"])) for _ in sizes]
    tensors = [torch.empty(size, dtype=getattr(torch, kind)) for size, kind in zip(sizes, kinds, strict=True)]
    theirs, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, [first, then], [False] * len(sizes))
    mine = assign([tensor.nbytes for tensor in tensors], kinds, [first, then])
    assert [list(bucket) for bucket in mine] == theirs


def test_types_follow_from_broadcasts_where_they_are_one():
    parameters = read_shapes([6, 1, 4, 1], 2)
    assert find_types(parameters, [40]) == Types.alike(4, 2)
    assert find_types(parameters, [80]) == Types.alike(8, 2)
    assert find_types(parameters, [40 + 12, 12]) == Types.alike(4, 2)  # buffers, broadcast again by the forward pass
    assert find_types(parameters, [24, 32]) is None  # two types
    assert find_types(parameters, [44]) is None  # frozen parameters, or buffers that are not broadcast again


@given(st.sampled_from(Opcode), st.sampled_from(Prefix), st.integers(0, 2**32 - 1), st.integers(0, 1 << 30))
def test_headers_are_read_and_found(opcode, prefix, tag, length):
    header = Header(opcode, build_slot(prefix, tag), length)
    data = build_header(header)
    assert parse_header(data) == header
    assert find_header(bytes(13) + data) == 13
    for at in (8, 24, 40, 0):
        broken = bytearray(data)
        broken[at] ^= 0x40
        assert parse_header(bytes(broken)) is None


def test_streams_take_bytes_in_any_order_and_compare_copies():
    stream = Stream(2**32 - 5)
    data = np.random.default_rng(1).integers(0, 256, 200_000, np.uint8)
    numbers = (np.arange(0, len(data), 1000) + 2**32 - 4) % 2**32
    positions = stream.positions(numbers.astype(np.int64))
    assert positions.tolist() == list(range(0, len(data), 1000))
    order = np.random.default_rng(2).permutation(len(positions))
    for at in positions[order].tolist() + positions[order[:20]].tolist():
        stream.place(at, data[at : at + 1000])
    assert stream.good(0, len(data))
    assert stream.read(0, len(data)).tobytes() == data.tobytes()
    wrong = data[500:520].copy()
    wrong[3:5] ^= 1
    stream.place(500, wrong)
    assert stream.spans(0, 1000) == [(0, 503), (505, 1000)]
    stream.release(150_000)
    stream.place(149_990, data[149_990:150_010])
    assert stream.late_bytes == 10
    assert stream.nbytes < 140_000  # whole pages
    assert stream.read(150_000, 150_010).tobytes() == data[150_000:150_010].tobytes()


def test_compiled_copies_are_those_of_the_reference():
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, 1000, np.uint8)
    data.flags.writeable = False
    starts, sizes = rng.integers(0, 900, 20), rng.integers(0, 100, 20)
    found = [np.zeros(sizes.sum(), np.uint8) for _ in range(2)]
    counts = [f(data, starts, sizes, out) for f, out in zip((gather.reference, gather.compiled()), found, strict=True)]
    assert counts == [sizes.sum()] * 2
    assert found[0].tobytes() == found[1].tobytes()
