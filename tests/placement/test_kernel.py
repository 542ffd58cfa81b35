"""Many segments at once, by the compiled kernel, do what they do one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import Layout, ParamSpec, build_layout
from jobspec.model import Job
from placement import assembler as engine
from placement import era
from placement.assembler import Assembler
from placement.holes import corrupt_frames, missing_ranges
from placement.segments import Replica, Segments
from placement.slots import Tally
from tests.shadow_rx.wire import Stretch, cut, make_job, primary_stretches

EPOCH = 4


@pytest.fixture(scope="module", autouse=True)
def compiled() -> Iterator[None]:
    """Run the compiled kernel, whatever the mode."""
    patch = pytest.MonkeyPatch()
    patch.setattr(engine, "place_batch", engine.place_batch.compiled())
    yield
    patch.undo()


@dataclass(frozen=True)
class Arrival:
    """A segment as it arrives."""

    flow: int
    port: int
    sequence: int
    data: bytes
    damaged: bool = False


def _segments(arrivals: list[Arrival]) -> Segments:
    lengths = np.array([len(one.data) for one in arrivals], np.int64)
    return Segments(
        np.frombuffer(b"".join(one.data for one in arrivals) or b"\0", np.uint8),
        np.cumsum(lengths) - lengths,
        lengths,
        np.array([one.sequence for one in arrivals], np.int64),
        np.array([one.flow for one in arrivals], np.int64),
        np.array([one.port for one in arrivals], np.int64),
        np.array([one.damaged for one in arrivals], np.bool_),
    )


def _state(assembler: Assembler) -> dict[str, object]:
    """Return everything that the assembler shows, and where its connections are."""
    steps = range(assembler.next_step, assembler.next_step + assembler.window)
    slots = [assembler.slot(step) for step in steps]
    return {
        "next": assembler.next_step,
        "discarded": +assembler.discarded,
        "overrun": assembler.overrun,
        "references": assembler._connections.arrays[1].tolist(),
        "missing": [missing_ranges(assembler.slot(step)) for step in steps],
        "corrupt": [corrupt_frames(assembler.slot(step)) for step in steps],
        "counts": [(s.remaining, s.received_bytes, s.peer_bytes, s.repaired_bytes, s.complete) for s in slots],
        "damaged": [dict(slot.damaged) for slot in slots],
        "coverage": [slot.coverage() for slot in slots],
        "held": [[frame.held() for frame in slot.frames] for slot in slots],
        "verified": [[frame.verified for frame in slot.frames] for slot in slots],
        "gradient": [slot.gradient() for slot in slots],
        "side": (assembler._side.held, assembler._side.differing),
        "tallies": [[slot.counted(tally) for tally in Tally if tally != Tally.COVERED] for slot in slots],
        "conflicts": [slot.conflicts and (slot.conflicts.count, slot.conflicts.first) for slot in slots],
        "disputed": [slot.disputed() for slot in slots],
        "touched": [(slot.first_byte_at is None, slot.complete_at is None) for slot in slots],
    }


def _assembler(job: Job, layout: Layout, window: int, first_step: int, offline: bool = False) -> Assembler:
    made = Assembler(
        layout=layout, flows=job.flows, job=job.id, group=5, epoch=EPOCH, first_step=first_step, window=window,
        offline=offline,
    )  # fmt: skip
    for flow in job.flows:
        made.open(flow.id, 1000 + flow.id)
    made.open(job.flows[0].id, 999)
    return made


def _one_by_one(assembler: Assembler, arrivals: list[Arrival], release: bool) -> None:
    for one in arrivals:
        replica = Replica(one.flow, one.port, one.sequence, memoryview(one.data))
        if one.damaged:
            assembler.note_damaged(replica)
        elif assembler.place(replica, 1.0):
            _released(assembler, release)


def _at_once(assembler: Assembler, arrivals: list[Arrival], release: bool, batch: int) -> None:
    for begin in range(0, len(arrivals), batch):
        segments, at = _segments(arrivals[begin : begin + batch]), 0
        while at < len(segments):
            at, look = assembler.place_segments(segments, at, 1.0)
            if look:
                _released(assembler, release)


def _released(assembler: Assembler, release: bool) -> None:
    # A step of an empty layout is complete as it is: only the steps that are sent, 3 to 6, are released.
    while release and assembler.next_step <= 6 and assembler.slot(assembler.next_step).complete:
        assembler.release()


@st.composite
def _layouts(draw: st.DrawFn) -> Layout:
    sizes = draw(st.lists(st.one_of(st.integers(0, 40), st.integers(1, 900)), min_size=1, max_size=4))
    params = [ParamSpec(f"p{i}", (n,), draw(st.sampled_from(list(DType)))) for i, n in enumerate(sizes)]
    return build_layout(params, draw(st.integers(1, 6000)), draw(st.integers(1, 9)))


def _arrivals(
    job: Job, layouts: dict[int, Layout], first_step: int, steps: int, largest: int, trouble: float, rng: random.Random
) -> list[Arrival]:
    """Return the segments of some steps in nearly the order of sending, with every kind of trouble."""
    found: list[Arrival] = []
    base = dict.fromkeys((flow.id for flow in job.flows), 0)
    for step in range(first_step, first_step + steps):
        layout = layouts[max(since for since in layouts if since <= step)]
        gradient = [rng.randbytes(bucket.nbytes) for bucket in layout.buckets]
        pieces: list[tuple[float, Stretch]] = []
        for flow in job.flows:
            # The stretches begin at the step's first byte.
            stretches = primary_stretches(job, flow, layout, EPOCH, step, step, gradient, job.redundancy.hops)
            sizes = iter(lambda: rng.randint(1, largest), None)
            when = rng.random() * 3
            for stretch in stretches:
                for piece in cut(stretch, sizes):
                    when += rng.random()
                    moved = Stretch(piece.flow, piece.position + base[flow.id], piece.data)
                    pieces.append((when + (rng.random() < trouble) * rng.random() * 30, moved))
            base[flow.id] += _length(job, flow.id, layout)
        pieces.sort(key=lambda item: item[0])
        for _, piece in pieces:
            found += _troubled(piece, trouble, rng)
    late = [one for one in found if rng.random() < trouble / 2]
    for one in late:
        found.insert(rng.randrange(len(found) + 1), one)
    return found


def _length(job: Job, flow_id: int, layout: Layout) -> int:
    from checkmate_common.stream.schedule import step_plan

    flow = next(flow for flow in job.flows if flow.id == flow_id)
    return step_plan(flow.shape, layout).length


def _troubled(piece: Stretch, trouble: float, rng: random.Random) -> list[Arrival]:
    flow, port, sequence = piece.flow.id, 1000 + piece.flow.id, (piece.position + 1) % (1 << 32)
    whole = Arrival(flow, port, sequence, piece.data)
    if rng.random() >= trouble:
        return [whole]
    flipped = bytearray(piece.data)
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    kinds: list[list[Arrival]] = [
        [],
        [whole, whole],
        [Arrival(flow, port, sequence, bytes(flipped))],
        [Arrival(flow, port, sequence, bytes(flipped)), whole],
        [Arrival(flow, port, sequence, piece.data, damaged=True)],
        [Arrival(flow, 7, sequence, piece.data), whole],
        [Arrival(flow, port, rng.randrange(1 << 32), piece.data), whole],
        [Arrival(flow, port, 0, b"x"), Arrival(flow, port, sequence, b""), whole],
        [Arrival(flow, port, (sequence + rng.randrange(-200, 200)) % (1 << 32), piece.data), whole],
        [Arrival(flow, 999, sequence, piece.data)],
        [Arrival(flow, port, sequence, piece.data[: len(piece.data) // 2]), whole],
    ]
    return rng.choice(kinds)


@settings(deadline=None, max_examples=60)
@given(
    first=_layouts(), second=_layouts(), ranks=st.integers(2, 4), channels=st.integers(1, 2),
    seed=st.integers(0, 1 << 30), trouble=st.sampled_from([0.0, 0.01, 0.1, 0.4]),
    largest=st.sampled_from([9, 70, 536, 1460, 8960]), redundant=st.booleans(), release=st.booleans(),
    offline=st.booleans(), window=st.integers(2, 4),
    batch=st.sampled_from([1, 7, 100, 10_000]), frame_payload=st.sampled_from([512, 2048]),
)  # fmt: skip
def test_it_is_as_if_they_came_one_by_one(
    first: Layout, second: Layout, ranks: int, channels: int, seed: int, trouble: float, largest: int,
    redundant: bool, release: bool, offline: bool, window: int, batch: int, frame_payload: int,
) -> None:  # fmt: skip
    """Holes, repetitions, overlaps, damage, wild positions, layouts that change, a window that moves or does not."""
    rng = random.Random(seed)
    job = make_job(ranks, channels, frame_payload, hops=[0, 1] if redundant and ranks > 2 else [0])
    arrivals = _arrivals(job, {3: first, 5: second}, 3, 4, largest, trouble, rng)
    one, many = (_assembler(job, first, window, 3, offline) for _ in range(2))
    half = rng.randrange(len(arrivals) + 1)
    for part in (arrivals[:half], arrivals[half:]):
        _one_by_one(one, part, release)
        _at_once(many, part, release, batch)
        assert _state(many) == _state(one)
        if one.next_step < 5 and one.plan_at(5).layout is first:
            one.change(5, second)
            many.change(5, second)
        step = rng.choice([0, rng.randrange(3, 7)])
        one.skip_to(step)
        many.skip_to(step)
        assert _state(many) == _state(one)


def test_it_is_compiled_before_it_is_called(compiled: None) -> None:
    """The arguments that the loader compiles it for are of the types that it gets."""
    function, seen = engine.place_batch, []
    patch = pytest.MonkeyPatch()
    patch.setattr(engine, "place_batch", lambda *args: seen.append(args) or function(*args))
    job, layout = make_job(3), build_layout([ParamSpec("p", (900,), DType.FLOAT32)], 4000)
    arrivals = _arrivals(job, {1: layout}, 1, 1, 500, 0.0, random.Random(1))
    _at_once(_assembler(job, layout, 2, 1), arrivals, False, 10_000)
    patch.undo()
    types = [numba.typeof(argument) for argument in seen[0]]
    assert types == [numba.typeof(argument) for argument in era._example()]
