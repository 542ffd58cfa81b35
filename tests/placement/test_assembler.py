from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import Layout, ParamSpec, build_layout
from jobspec.model import Job
from placement.assembler import Assembler
from placement.discard import Discard
from placement.holes import corrupt_frames, missing_ranges
from placement.segments import Replica
from tests.shadow_rx.twin import make_layout
from tests.shadow_rx.wire import Stretch, cut, make_job, primary_stretches, step_length


def _assembler(job: Job, layout: Layout, first_step: int = 1, window: int = 2, epoch: int = 4) -> Assembler:
    assembler = Assembler(
        layout=layout, flows=job.flows, job=job.id, group=5, epoch=epoch, first_step=first_step, window=window
    )
    for flow in job.flows:
        assembler.open(flow.id, 1000 + flow.id)
    return assembler


def _gradient(layout: Layout, seed: int) -> list[bytes]:
    return [random.Random(seed + b.index).randbytes(b.nbytes) for b in layout.buckets]


def _pieces(job: Job, layout: Layout, step: int, gradient: list[bytes], seed: int, largest: int) -> list[Stretch]:
    rng = random.Random(seed)
    sizes = iter(lambda: rng.randint(1, largest), None)
    return [
        piece
        for flow in job.flows
        for stretch in primary_stretches(job, flow, layout, 4, 1, step, gradient)
        for piece in cut(stretch, sizes)
    ]


def _place(assembler: Assembler, piece: Stretch) -> bool:
    sequence = (piece.position + 1) % (1 << 32)
    data = memoryview(piece.data)
    return assembler.place(Replica(piece.flow.id, 1000 + piece.flow.id, sequence, data), 0.0)


def _buckets(assembler: Assembler, step: int) -> list[bytes]:
    slot = assembler.slot(step)
    starts = slot.plan.bucket_offsets
    return [bytes(slot.memory[s : s + b.nbytes]) for s, b in zip(starts, slot.plan.layout.buckets, strict=True)]


@st.composite
def _layouts(draw: st.DrawFn) -> Layout:
    sizes = draw(st.lists(st.one_of(st.integers(0, 40), st.integers(0, 1500)), min_size=1, max_size=5))
    params = [ParamSpec(f"p{i}", (n,), draw(st.sampled_from(list(DType)))) for i, n in enumerate(sizes)]
    return build_layout(params, draw(st.integers(1, 8000)), draw(st.integers(1, 9)))


@settings(deadline=None, max_examples=40)
@given(
    layout=_layouts(), ranks=st.integers(2, 6), channels=st.integers(1, 3), seed=st.integers(0, 1 << 30),
    largest=st.sampled_from([7, 60, 536, 1460, 8960]),
)  # fmt: skip
def test_any_order_and_repetition_gives_exactly_the_gradient(
    layout: Layout, ranks: int, channels: int, seed: int, largest: int
) -> None:
    job = make_job(ranks, channels)
    assembler = _assembler(job, layout)
    gradients = {step: _gradient(layout, seed + 10 * step) for step in (1, 2)}
    pieces = [p for step, g in gradients.items() for p in _pieces(job, layout, step, g, seed + step, largest)]
    # The same bytes once more, cut differently, as retransmissions are.
    pieces += [p for step, g in gradients.items() for p in _pieces(job, layout, step, g, seed + 7, largest)]
    random.Random(seed).shuffle(pieces)
    for piece in pieces:
        _place(assembler, piece)
    for step, gradient in gradients.items():
        assert assembler.slot(step).complete
        assert missing_ranges(assembler.slot(step)) == []
        assert _buckets(assembler, step) == gradient
        # Exactly one gradient and the headers, whatever arrived twice.
        expected = layout.nbytes + 64 * assembler.plan.frames
        assert assembler.slot(step).received_bytes == expected


@settings(deadline=None, max_examples=40)
@given(layout=_layouts(), ranks=st.integers(2, 4), seed=st.integers(0, 1 << 30))
def test_missing_ranges_are_exactly_what_was_not_sent(layout: Layout, ranks: int, seed: int) -> None:
    job = make_job(ranks)
    assembler = _assembler(job, layout)
    rng = random.Random(seed)
    withheld: set[tuple[int, int]] = set()
    for piece in _pieces(job, layout, 1, _gradient(layout, seed), seed, 200):
        if rng.random() < 0.2:
            withheld |= {(piece.flow.id, piece.position + i) for i in range(len(piece.data))}
        else:
            _place(assembler, piece)
    missing = missing_ranges(assembler.slot(1))
    assert {(m.flow_id, i) for m in missing for i in range(m.start, m.end)} == withheld
    assert assembler.slot(1).complete == (not withheld)


def test_positions_go_on_where_the_sequence_number_wraps() -> None:
    job = make_job(2)
    # A size for which the wrap falls into the second half of a step's stream: the all-gather.
    layouts = (make_layout([(300, 1000 + n)], bucket_bytes=1 << 21) for n in range(100))
    layout = next(lo for lo in layouts if 0.6 < (1 << 32) / step_length(job.flows[0], lo) % 1 < 0.9)
    length = step_length(job.flows[0], layout)
    assembler = _assembler(job, layout)
    wrap_step = (1 << 32) // length + 1
    for _ in range(1, wrap_step - 1):
        assembler.release()
    for step in range(wrap_step - 1, wrap_step + 2):
        gradient = _gradient(layout, step)
        pieces = _pieces(job, layout, step, gradient, step, 60000)
        if step == wrap_step:
            positions = [p.position + 1 for p in pieces]
            assert min(positions) < 1 << 32 <= max(positions), "the wrap lies within the step"
            random.Random(1).shuffle(pieces)
        for piece in pieces:
            _place(assembler, piece)
        assert assembler.slot(step).complete
        assert _buckets(assembler, step) == gradient
        assembler.release()


def test_a_wild_position_does_not_move_later_ones() -> None:
    job, layout = make_job(2), make_layout()
    assembler = _assembler(job, layout)
    flow = job.flows[0]
    for wild in (1 << 31, (1 << 31) - 5, 3 << 30, (1 << 32) - 1):
        assembler.place(Replica(flow.id, 1000 + flow.id, wild, memoryview(b"\xff" * 50)), 0.0)
    gradient = _gradient(layout, 3)
    for piece in _pieces(job, layout, 1, gradient, 1, 100):
        _place(assembler, piece)
    assert _buckets(assembler, 1) == gradient
    assert assembler.slot(1).complete


def test_a_verified_frame_never_changes() -> None:
    job, layout = make_job(2), make_layout()
    assembler = _assembler(job, layout)
    gradient = _gradient(layout, 3)
    pieces = _pieces(job, layout, 1, gradient, 1, 100)
    for piece in pieces:
        _place(assembler, piece)
    for piece in pieces:
        _place(assembler, Stretch(piece.flow, piece.position, bytes(len(piece.data))))
    assert _buckets(assembler, 1) == gradient
    assert assembler.discarded == {Discard.DUPLICATE: len(pieces)}


def test_a_wrong_frame_is_named_and_a_later_copy_fills_it() -> None:
    job, layout = make_job(2), make_layout()
    assembler = _assembler(job, layout)
    gradient = _gradient(layout, 3)
    pieces = _pieces(job, layout, 1, gradient, 1, 10000)
    bad = bytearray(pieces[0].data)
    bad[-1] ^= 4
    _place(assembler, Stretch(pieces[0].flow, pieces[0].position, bytes(bad)))
    for piece in pieces[1:]:
        _place(assembler, piece)
    (corrupt,) = corrupt_frames(assembler.slot(1))
    assert corrupt.flow_id == pieces[0].flow.id
    assert "CRC32C" in corrupt.problem
    assert not assembler.slot(1).complete
    _place(assembler, pieces[0])
    assert assembler.slot(1).complete
    assert corrupt_frames(assembler.slot(1)) == []
    assert _buckets(assembler, 1) == gradient


@pytest.mark.parametrize(
    ("field", "offset", "value"),
    [("job", 9, 77), ("group", 11, 77), ("channel", 13, 77), ("bucket", 15, 77), ("chunk", 19, 77), ("rank", 21, 77),
     ("step", 31, 77), ("layout_version", 35, 77), ("epoch", 39, 77), ("element_offset", 47, 77), ("phase", 5, 0),
     ("dtype", 6, 2), ("hop", 17, 1)],
)  # fmt: skip
def test_a_valid_header_of_another_frame_is_refused(field: str, offset: int, value: int) -> None:
    from checkmate_common.stream.frame import crc32c

    job, layout = make_job(3), make_layout()
    assembler = _assembler(job, layout)
    first = _pieces(job, layout, 1, _gradient(layout, 3), 1, 10000)[0]
    changed = bytearray(first.data)
    changed[offset] = value
    changed[60:64] = crc32c(changed[:60]).to_bytes(4, "big")
    _place(assembler, Stretch(first.flow, first.position, bytes(changed)))
    (corrupt,) = corrupt_frames(assembler.slot(1))
    assert field in corrupt.problem


def test_bytes_that_are_not_expected_are_counted_and_dropped() -> None:
    job, layout = make_job(3), make_layout()
    assembler = _assembler(job, layout)
    flow = job.flows[0]
    assembler.place(Replica(flow.id, 1000 + flow.id, 1, memoryview(b"reduce-scatter bytes")), 0.0)
    assert assembler.discarded == {Discard.MISPLACED: 1}
    assembler.place(Replica(flow.id, 999, 1, memoryview(b"x")), 0.0)
    assert assembler.discarded[Discard.UNKNOWN_CONNECTION] == 1
    assembler.place(Replica(flow.id, 1000 + flow.id, 0, memoryview(b"x")), 0.0)
    assert assembler.discarded[Discard.BAD_POSITION] == 1
    assert not assembler.slot(1).touched
    ahead = _pieces(job, layout, 3, _gradient(layout, 1), 1, 100)
    assert _place(assembler, ahead[0]), "the group has to look: the window is too small"
    assert assembler.overrun == (3, 3)
    assert assembler.discarded[Discard.BEYOND_WINDOW] == 1


def test_a_flow_without_bytes_takes_none() -> None:
    job, layout = make_job(4), make_layout([(1,)])
    assembler = _assembler(job, layout)
    silent = next(f for f in job.flows if step_length(f, layout) and not assembler.plan.flows[f.id].expected)
    assembler.place(Replica(silent.id, 1000 + silent.id, 1, memoryview(b"x" * 68)), 0.0)
    assert assembler.discarded == {Discard.MISPLACED: 1}
    empty = _assembler(job, make_layout([(0,)]))
    empty.place(Replica(silent.id, 1000 + silent.id, 1, memoryview(b"x")), 0.0)
    assert empty.discarded == {Discard.MISPLACED: 1}
    assert empty.slot(1).complete, "a gradient without bytes is complete at once"


def test_a_peer_gives_bytes_of_a_step_with_another_layout() -> None:
    """What frames a step has is told by its own layout, and not by that of the oldest step."""
    job, layout, other = make_job(3), make_layout(), make_layout([(700,), (90,)])
    assembler = _assembler(job, layout)
    assembler.change(2, other)
    gradient = _gradient(other, 3)
    for flow in job.flows:
        expected = assembler.plan_at(2).flows[flow.id].expected
        # Streams that begin with that step: a frame's bytes do not depend on where the step begins.
        [*stretches] = primary_stretches(job, flow, other, 4, 2, 2, gradient)
        stream = {s.position + i: byte for s in stretches for i, byte in enumerate(s.data)}
        for frame in expected:
            data = bytes(stream[i] for i in range(frame.start, frame.end))
            assert assembler.place_given(2, flow.id, frame.index, 0, memoryview(data), 0.0) == len(data)
    assert assembler.slot(2).complete
    assert _buckets(assembler, 2) == gradient
