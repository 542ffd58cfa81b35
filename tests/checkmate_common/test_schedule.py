from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import HEADER_BYTES
from checkmate_common.stream.layout import Layout, ParamSpec, build_layout
from checkmate_common.stream.ring import Phase, chunk_sent
from checkmate_common.stream.schedule import FlowSchedule, FlowShape
from tests.checkmate_common.strategies import channel_counts, frame_payloads, header_sizes, layouts, ring_sizes


@st.composite
def shapes(draw: st.DrawFn, header: st.SearchStrategy[int] = header_sizes) -> FlowShape:
    n, channels = draw(ring_sizes), draw(channel_counts)
    return FlowShape(
        n, draw(st.integers(0, n - 1)), channels, draw(st.integers(0, channels - 1)), draw(header), draw(frame_payloads)
    )


@st.composite
def schedules(draw: st.DrawFn) -> tuple[FlowSchedule, int]:
    """Return a schedule with up to three layouts, and a step count that reaches the last."""
    first = draw(st.integers(1, 50))
    since, pairs = first, []
    for version in range(1, draw(st.integers(1, 3)) + 1):
        pairs.append((since, draw(layouts(version))))
        since += draw(st.integers(1, 4))
    return FlowSchedule(draw(shapes()), pairs, first), since + 2 - first


@given(schedules())
def test_frames_tile_the_stream_and_locate_is_the_inverse(case: tuple[FlowSchedule, int]) -> None:
    schedule, steps = case
    position = 0
    for step in range(schedule.first_step, schedule.first_step + steps):
        assert schedule.step_start(step) == position
        for frame in schedule.plan(step).frames:
            start, end = schedule.frame_range(step, frame)
            assert start == position
            [piece] = schedule.locate(start, end)
            assert (piece.step, piece.frame, piece.start, piece.end) == (step, frame, 0, end - start)
            position = end


@given(schedules(), st.data())
def test_any_cut_of_the_stream_locates_every_byte_alike(case: tuple[FlowSchedule, int], data: st.DataObject) -> None:
    schedule, steps = case
    end = schedule.step_start(schedule.first_step + steps)
    start = data.draw(st.integers(0, end))
    stop = data.draw(st.integers(start, end))

    def bytes_of(a: int, b: int) -> list[tuple[int, int, int]]:
        return [(p.step, p.frame.index, i) for p in schedule.locate(a, b) for i in range(p.start, p.end)]

    cut = data.draw(st.integers(start, stop))
    whole = bytes_of(start, stop)
    assert whole == bytes_of(start, cut) + bytes_of(cut, stop)
    assert len(whole) == stop - start


@given(layouts(), ring_sizes, channel_counts, frame_payloads, header_sizes)
def test_tagged_bytes_of_a_step_are_one_gradient_plus_headers(
    layout: Layout, n: int, channels: int, payload: int, header: int
) -> None:
    covered = [bytearray(bucket.nbytes) for bucket in layout.buckets]
    frames = tagged = 0
    for channel in range(channels):
        for rank in range(n):
            shape = FlowShape(n, rank, channels, channel, header, payload)
            for frame in FlowSchedule(shape, [(1, layout)]).plan(1).frames:
                if (frame.phase, frame.hop) != (Phase.ALL_GATHER, 0):
                    continue
                frames += 1
                tagged += frame.end - frame.start
                assert 0 < frame.payload_bytes <= payload
                for index in range(frame.byte_offset, frame.byte_offset + frame.payload_bytes):
                    covered[frame.bucket][index] += 1
    assert tagged == layout.nbytes + frames * header
    assert all(count == 1 for bucket in covered for count in bucket)


@given(layouts(), ring_sizes, channel_counts, frame_payloads)
def test_a_frame_that_is_forwarded_was_received_in_the_hop_before(
    layout: Layout, n: int, channels: int, payload: int
) -> None:
    for channel in range(channels):
        plans = [FlowSchedule(FlowShape(n, r, channels, channel, 64, payload), [(1, layout)]).plan(1) for r in range(n)]
        for rank in range(n):
            order = [(Phase.REDUCE_SCATTER, h) for h in range(n - 1)] + [(Phase.ALL_GATHER, h) for h in range(n - 1)]
            for bucket in layout.buckets:
                for before, now in pairwise(order):
                    sent = {(f.chunk, f.element_offset, f.elements) for f in plans[rank].frames_of(bucket.index, *now)}
                    got = {
                        (f.chunk, f.element_offset, f.elements)
                        for f in plans[rank - 1].frames_of(bucket.index, *before)
                    }
                    assert sent == got


def test_a_layout_change_takes_effect_at_its_step() -> None:
    small = build_layout([ParamSpec("w", (4,), DType.FLOAT32)], 1000, 1)
    large = build_layout([ParamSpec("w", (400,), DType.FLOAT32)], 1000, 2)
    schedule = FlowSchedule(FlowShape(2, 0), [(1, small), (3, large)])
    per_small, per_large = schedule.plan(1).length, schedule.plan(3).length
    assert per_small == 2 * (HEADER_BYTES + 8)  # one frame in each of the two hops
    assert per_large == 2 * (HEADER_BYTES + 800)
    assert [schedule.step_start(s) for s in (1, 2, 3, 4)] == [0, per_small, 2 * per_small, 2 * per_small + per_large]
    [piece] = schedule.locate(2 * per_small, 2 * per_small + 1)
    assert (piece.step, piece.frame.chunk) == (3, chunk_sent(Phase.REDUCE_SCATTER, 0, 0, 2))


def test_what_makes_no_schedule_is_refused() -> None:
    layout = build_layout([ParamSpec("w", (4,), DType.FLOAT32)], 1000)
    with pytest.raises(ValueError, match="no layout is in force"):
        FlowSchedule(FlowShape(2, 0), [])
    with pytest.raises(ValueError, match="begins at step 5, after first step 1"):
        FlowSchedule(FlowShape(2, 0), [(5, layout)])
    with pytest.raises(ValueError, match="expected after step 3"):
        FlowSchedule(FlowShape(2, 0), [(1, layout), (3, layout), (3, layout)])
    with pytest.raises(ValueError, match="before this connection's first step"):
        FlowSchedule(FlowShape(2, 0), [(1, layout)], 4).step_start(3)
    with pytest.raises(ValueError, match="not a range"):
        list(FlowSchedule(FlowShape(2, 0), [(1, layout)]).locate(-1, 3))
    empty = build_layout([ParamSpec("w", (0,), DType.FLOAT32)], 1000)
    with pytest.raises(ValueError, match="carries no bytes"):
        list(FlowSchedule(FlowShape(2, 0), [(1, empty)]).locate(0, 1))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [((1, 0), "ring_size"), ((4, 4), "rank"), ((4, 0, 2, 2), "channel"), ((4, 0, 1, 0, 10), "header_bytes"),
     ((4, 0, 1, 0, 64, 2), "frame_payload")],
)  # fmt: skip
def test_a_flow_shape_out_of_range_names_the_field(arguments: tuple[int, ...], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        FlowShape(*arguments)
