"""The ring all-reduce over in-memory byte pipes, against a reference with the same order of additions."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_common.recovery.tensors import bytes_of
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import HEADER_BYTES, FrameHeader
from checkmate_common.stream.ring import Phase
from checkmate_common.stream.schedule import step_plan
from nccl_emu.errors import RingError
from nccl_emu.ring.ring_runner import RingRunner
from tests.nccl_emu.ring_tools import PRIMARY, Pipes, make_buckets, make_layout, make_ring, reference


@settings(max_examples=60, deadline=None)
@given(
    ring_size=st.integers(2, 8),
    channels=st.integers(1, 3),
    sizes=st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 3, 5, 8, 31, 200, 1001]), st.sampled_from(list(DType))),
        min_size=1,
        max_size=4,
    ),
    frame_payload=st.sampled_from([8, 64, 512, 4096]),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_reduce_equals_the_reference_bit_for_bit(
    ring_size: int, channels: int, sizes: list[tuple[int, DType]], frame_payload: int, seed: int
) -> None:
    rng = random.Random(seed)
    if frame_payload < 64:
        sizes = [(size % 64, dtype) for size, dtype in sizes]  # an element a frame: keep the run short
    layout = make_layout(sizes)
    runners = make_ring(ring_size, channels, layout, frame_payload)
    pipes = Pipes(runners, rng)
    primary = [
        frame
        for runner in runners
        for channel in range(channels)
        for frame in step_plan(runner.place.shape(runner.place.rank, channel), layout).frames
        if frame.phase is Phase.ALL_GATHER and frame.hop == 0
    ]
    for step in (1, 2):
        buckets = make_buckets(ring_size, layout, rng)
        wanted = reference(buckets, layout, channels)
        pipes.tagged = pipes.total = 0
        for runner, own in zip(runners, buckets, strict=True):
            runner.start(step, own)
        pipes.run()
        for own in buckets:
            for tensor, goal in zip(own, wanted, strict=True):
                assert bytes(bytes_of(tensor)) == bytes(bytes_of(goal))
        assert pipes.tagged == layout.nbytes + HEADER_BYTES * len(primary)
        assert sum(runner.tagged_bytes for runner in runners) == pipes.tagged
        assert sum(runner.stream_bytes for runner in runners) == pipes.total
        assert all(runner.wanted(c) == 0 for runner in runners for c in range(channels))


@pytest.mark.parametrize(("ring_size", "hops"), [(3, (0, 1)), (5, (0, 2)), (4, (0, 1, 2)), (2, (0,))])
def test_frames_have_the_codepoint_of_their_hop(ring_size: int, hops: tuple[int, ...]) -> None:
    layout = make_layout([(1000, DType.FLOAT32), (9, DType.FLOAT64)])
    shape = {"redundant_dscp": 7, "hops": hops}
    runners = [
        RingRunner(replace(runner.place, **shape), layout)  # type: ignore[arg-type]
        for runner in make_ring(ring_size, 2, layout, 512)
    ]
    buckets = make_buckets(ring_size, layout, random.Random(1))
    for runner, own in zip(runners, buckets, strict=True):
        runner.start(1, own)
    bytes_by_dscp: Counter[int] = Counter()
    while not all(runner.done for runner in runners):
        for rank, runner in enumerate(runners):
            for channel in range(2):
                while (write := runner.next_write(channel)) is not None:
                    header = FrameHeader.unpack(write.data)
                    replicated = header.phase is Phase.ALL_GATHER and header.hop in hops
                    assert write.dscp == (0 if not replicated else 7 if header.hop else PRIMARY)
                    bytes_by_dscp[write.dscp] += len(write.data)
                    runners[(rank + 1) % ring_size].feed(channel, write.data)
    assert bytes_by_dscp[7] == (len(hops) - 1) * bytes_by_dscp[PRIMARY]
    assert sum(runner.tagged_bytes for runner in runners) == len(hops) * bytes_by_dscp[PRIMARY]


def test_bytes_of_the_next_step_are_held_until_it_starts() -> None:
    """A fast predecessor is a whole step ahead; its bytes wait and are used once the step starts."""
    layout = make_layout([(100, DType.FLOAT32), (7, DType.FLOAT64)])
    runners = make_ring(2, 1, layout)
    rng = random.Random(1)
    pipes = Pipes(runners, rng)
    first, second = make_buckets(2, layout, rng), make_buckets(2, layout, rng)
    goal = reference(second, layout, 1)
    for runner, own in zip(runners, first, strict=True):
        runner.start(1, own)
    pipes.run()
    before = [tensor.clone() for tensor in first[1]]
    runners[0].start(2, second[0])
    while pipes.deliver_one():
        pass
    assert not runners[0].done
    assert runners[1].done
    assert runners[1].wanted(0) == 0
    assert all(torch.equal(a, b) for a, b in zip(before, first[1], strict=True))
    runners[1].start(2, second[1])
    pipes.run()
    assert all(torch.equal(a, b) for own in second for a, b in zip(own, goal, strict=True))


def test_a_write_is_a_copy_of_the_buffer() -> None:
    """TCP may retransmit a frame after the buffers were reused for the next step."""
    layout = make_layout([(8, DType.FLOAT32)])
    runner = make_ring(2, 1, layout)[0]
    bucket = torch.ones(8)
    runner.start(1, [bucket])
    write = runner.next_write(0)
    assert write is not None
    kept = bytes(write.data)
    bucket.fill_(9)
    assert write.data == kept


def test_a_frame_waits_for_the_frame_it_depends_on() -> None:
    """With several frames a chunk, hop 1 goes out frame by frame as hop 0 comes in."""
    layout = make_layout([(64, DType.FLOAT32)])
    runners = make_ring(4, 1, layout, frame_payload=16)  # chunks of 16 elements: 4 frames of 4
    for runner in runners:
        runner.start(1, [torch.ones(64)])
    first = [runners[0].next_write(0) for _ in range(4)]
    assert all(write is not None for write in first)
    assert runners[0].next_write(0) is None
    for _ in range(4):
        assert runners[1].next_write(0) is not None
    for write in first:
        assert write is not None
        assert runners[1].next_write(0) is None
        runners[1].feed(0, write.data)
        forwarded = runners[1].next_write(0)
        assert forwarded is not None
        header = FrameHeader.unpack(forwarded.data)
        assert (header.hop, header.element_offset) == (1, FrameHeader.unpack(write.data).element_offset)
        assert torch.frombuffer(bytearray(forwarded.data[HEADER_BYTES:]), dtype=torch.float32).tolist() == [2.0] * 4


def receiving_runner() -> tuple[RingRunner, bytearray]:
    """Return a runner that awaits its first frame, and that frame."""
    layout = make_layout([(64, DType.FLOAT32)])
    runners = make_ring(2, 1, layout)
    for runner in runners:
        runner.start(1, [torch.ones(64)])
    write = runners[0].next_write(0)
    assert write is not None
    return runners[1], bytearray(write.data)


def test_a_damaged_payload_is_refused() -> None:
    runner, frame = receiving_runner()
    frame[HEADER_BYTES + 3] ^= 0x10
    with pytest.raises(RingError, match=r"flow 0, step 1, frame 0: payload CRC: 0x") as caught:
        runner.feed(0, frame)
    assert (caught.value.field, caught.value.flow, caught.value.step, caught.value.frame) == (
        "payload CRC",
        0,
        1,
        0,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job", 6),
        ("group", 3),
        ("epoch", 2),
        ("channel", 1),
        ("step", 2),
        ("layout_version", 9),
        ("bucket", 1),
        ("phase", Phase.ALL_GATHER),
        ("hop", 1),
        ("chunk", 1),
        ("rank", 1),
        ("dtype", DType.FLOAT16),
        ("element_offset", 4),
        ("payload_bytes", 4),
    ],
)
def test_a_header_that_differs_from_the_schedule_is_refused(field: str, value: object) -> None:
    runner, frame = receiving_runner()
    header = FrameHeader.unpack(frame)
    wrong = FrameHeader(**{**header.__dict__, field: value}).pack()
    with pytest.raises(RingError, match=f"step 1, frame 0: {field}: ") as caught:
        runner.feed(0, wrong)  # the header alone: the error must not wait for a payload that may never come
    assert caught.value.field == field


def test_bytes_that_are_no_header_are_refused() -> None:
    runner, frame = receiving_runner()
    frame[0] ^= 1
    with pytest.raises(RingError, match="magic"):
        runner.feed(0, frame)


def test_start_refuses_wrong_steps_and_buckets() -> None:
    layout = make_layout([(8, DType.FLOAT32)])
    runner = make_ring(2, 1, layout)[0]
    with pytest.raises(RingError, match=r"buckets\[0\].*float64.*expected a contiguous float32 \(8,\)"):
        runner.start(1, [torch.ones(8, dtype=torch.float64)])
    with pytest.raises(RingError, match="2 given, the layout has 1"):
        runner.start(1, [torch.ones(8), torch.ones(8)])
    with pytest.raises(RingError, match="contiguous"):
        runner.start(1, [torch.ones(16)[::2]])
    with pytest.raises(RingError, match="expected step 1"):
        runner.start(2, [torch.ones(8)])
    runner.start(1, [torch.ones(8)])
    with pytest.raises(RingError, match="step 1 is still running"):
        runner.start(2, [torch.ones(8)])
