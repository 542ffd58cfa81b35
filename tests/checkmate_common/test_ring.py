from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate_common.stream.ring import Phase, chunk_range, chunk_sent, hops, sender_of
from tests.checkmate_common.strategies import channel_counts, ring_sizes


@given(ring_sizes, st.data())
def test_sender_of_is_the_inverse_of_chunk_sent(n: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, n - 1))
    for phase, hop in hops(n):
        assert sender_of(phase, chunk_sent(phase, rank, hop, n), hop, n) == rank


@given(ring_sizes)
def test_running_the_hops_reduces_every_chunk_and_spreads_it(n: int) -> None:
    # Each rank's view of a chunk is the set of contributions in it; a hop moves sets along the ring.
    held = [[{rank} for _ in range(n)] for rank in range(n)]
    for phase, hop in hops(n):
        sent = [(rank, chunk_sent(phase, rank, hop, n)) for rank in range(n)]
        moved = [(rank, chunk, set(held[rank][chunk])) for rank, chunk in sent]
        for rank, chunk, contributions in moved:
            successor = (rank + 1) % n
            if phase is Phase.REDUCE_SCATTER:
                assert not held[successor][chunk] & contributions, "a contribution was added twice"
                held[successor][chunk] |= contributions
            else:
                assert contributions == set(range(n)), "an unfinished chunk was gathered"
                held[successor][chunk] = contributions
    assert all(chunk == set(range(n)) for row in held for chunk in row)


@given(ring_sizes)
def test_gather_hop_0_carries_each_reduced_chunk_once(n: int) -> None:
    assert sorted(chunk_sent(Phase.ALL_GATHER, rank, 0, n) for rank in range(n)) == list(range(n))


@given(st.integers(0, 1000), channel_counts, ring_sizes)
def test_chunks_of_all_channels_tile_the_bucket(elements: int, channels: int, n: int) -> None:
    position = 0
    sizes = []
    for channel in range(channels):
        for chunk in range(n):
            first, last = chunk_range(elements, channels, channel, n, chunk)
            assert first == position
            position = last
            sizes.append(last - first)
    assert position == elements
    assert max(sizes) - min(sizes) <= 2  # one from the cut into channels, one from the cut into chunks


@pytest.mark.parametrize(("elements", "expected"), [(0, [0, 0, 0]), (2, [0, 1, 1]), (7, [2, 2, 3])])
def test_known_chunk_sizes(elements: int, expected: list[int]) -> None:
    ranges = [chunk_range(elements, 1, 0, 3, chunk) for chunk in range(3)]
    assert [last - first for first, last in ranges] == expected
