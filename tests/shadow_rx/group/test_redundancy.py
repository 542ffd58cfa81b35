"""The redundant hop fills holes of the primary byte by byte, and a wrong byte of one copy spoils nothing."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_common.recovery.reasons import GapReason
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import crc32c
from checkmate_common.stream.layout import Layout, ParamSpec, build_layout
from checkmate_common.stream.ring import Phase
from checkmate_common.stream.schedule import FrameSlot, step_plan
from jobspec.model import Flow, Job
from placement.assembler import Assembler
from placement.discard import Discard
from placement.frames import Frame, FrameCopy, FrameIdentity
from placement.holes import missing_ranges
from placement.segments import Replica
from placement.variants import SideBuffer, Variant, candidates
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.twin import Twin, make_layout
from tests.shadow_rx.wire import Stretch, cut, make_job, primary_stretches, segment

EPOCH = 4


def _assembler(job: Job, layout: Layout, window: int = 2) -> Assembler:
    assembler = Assembler(layout=layout, flows=job.flows, job=job.id, group=5, epoch=EPOCH, first_step=1, window=window)
    for flow in job.flows:
        assembler.open(flow.id, 1000 + flow.id)
    return assembler


def _gradient(layout: Layout, seed: int) -> list[bytes]:
    return [random.Random(seed + b.index).randbytes(b.nbytes) for b in layout.buckets]


def _pieces(
    job: Job, layout: Layout, gradient: list[bytes], rng: random.Random, largest: int, hops: Iterable[int]
) -> list[Stretch]:
    sizes = iter(lambda: rng.randint(1, largest), None)
    return [
        piece
        for flow in job.flows
        for stretch in primary_stretches(job, flow, layout, EPOCH, 1, 1, gradient, tuple(hops))
        for piece in cut(stretch, sizes)
    ]


def _place(assembler: Assembler, piece: Stretch) -> None:
    sequence = (piece.position + 1) % (1 << 32)
    assembler.place(Replica(piece.flow.id, 1000 + piece.flow.id, sequence, memoryview(piece.data)), 0.0)


def _buckets(assembler: Assembler, step: int = 1) -> list[bytes]:
    slot = assembler.slot(step)
    starts = zip(slot.plan.bucket_offsets, slot.plan.layout.buckets, strict=True)
    return [bytes(slot.memory[start : start + bucket.nbytes]) for start, bucket in starts]


def _copies(job: Job, layout: Layout) -> Iterator[list[tuple[Flow, FrameSlot]]]:
    """Yield for each frame its copies, found by what they carry rather than by who sends them."""
    found: dict[tuple[int, int, int, int], list[tuple[Flow, FrameSlot]]] = {}
    for hop in job.redundancy.hops:
        for flow in job.flows:
            for slot in step_plan(flow.shape, layout).frames:
                if slot.phase is Phase.ALL_GATHER and slot.hop == hop:
                    key = slot.bucket, flow.channel, slot.element_offset, slot.chunk
                    found.setdefault(key, []).append((flow, slot))
    yield from found.values()


@st.composite
def _layouts(draw: st.DrawFn) -> Layout:
    sizes = draw(st.lists(st.one_of(st.integers(0, 40), st.integers(0, 900)), min_size=1, max_size=4))
    params = [ParamSpec(f"p{i}", (n,), draw(st.sampled_from(list(DType)))) for i, n in enumerate(sizes)]
    return build_layout(params, draw(st.integers(1, 6000)), draw(st.integers(1, 9)))


@settings(max_examples=60)
@given(
    layout=_layouts(), ranks=st.integers(3, 5), channels=st.integers(1, 2), seed=st.integers(0, 1 << 30),
    loss=st.sampled_from([0.0, 0.05, 0.3, 0.6]), largest=st.sampled_from([30, 200, 1460]), third=st.booleans(),
)  # fmt: skip
def test_a_frame_is_there_exactly_when_every_byte_and_a_header_came(
    layout: Layout, ranks: int, channels: int, seed: int, loss: float, largest: int, third: bool
) -> None:
    """Loss, repetition and any order, nothing damaged.

    A frame is verified if and only if every byte of its payload came in some copy, and the whole header of one copy.
    """
    hops = [0, 1, 2] if third and ranks > 3 else [0, 1]
    job = make_job(ranks, channels, hops=hops)
    assembler = _assembler(job, layout)
    gradient, rng = _gradient(layout, seed), random.Random(seed)
    arrived: set[tuple[int, int]] = set()
    pieces = [piece for piece in _pieces(job, layout, gradient, rng, largest, hops) if rng.random() >= loss]
    pieces += [piece for piece in pieces if rng.random() < 0.1]
    rng.shuffle(pieces)
    for piece in pieces:
        arrived.update((piece.flow.id, piece.position + i) for i in range(len(piece.data)))
        _place(assembler, piece)

    def came(flow: Flow, start: int, end: int) -> list[bool]:
        return [(flow.id, position) in arrived for position in range(start, end)]

    complete, missing, repaired = True, set(), 0
    for copies in _copies(job, layout):
        headers = [came(flow, slot.start, slot.payload_start) for flow, slot in copies]
        payloads = [came(flow, slot.payload_start, slot.end) for flow, slot in copies]
        flow, slot = copies[0]
        holes = {slot.payload_start + i for i, seen in enumerate(zip(*payloads, strict=True)) if not any(seen)}
        if not any(all(header) for header in headers):
            holes |= {slot.start + i for i, seen in enumerate(headers[0]) if not seen}
            complete = False
        elif not holes:
            repaired += (headers[0] + payloads[0]).count(False)
        complete = complete and not holes
        missing |= {(flow.id, position) for position in holes}
    slot_of_step = assembler.slot(1)
    assert slot_of_step.complete == complete
    assert {(m.flow_id, i) for m in missing_ranges(assembler.slot(1)) for i in range(m.start, m.end)} == missing
    assert slot_of_step.repaired_bytes == repaired
    assert assembler.discarded[Discard.COPIES_DIFFER] == 0
    if complete:
        assert _buckets(assembler) == gradient
        assert slot_of_step.received_bytes == layout.nbytes + 64 * assembler.plan.frames


@settings(max_examples=80)
@given(
    ranks=st.integers(3, 5), channels=st.integers(1, 2), seed=st.integers(0, 1 << 30),
    loss=st.sampled_from([0.0, 0.02, 0.2]), damage=st.sampled_from([0.01, 0.05, 0.3]),
    largest=st.sampled_from([60, 300, 1460]),
)  # fmt: skip
def test_what_is_verified_is_right_whatever_is_damaged(
    ranks: int, channels: int, seed: int, loss: float, damage: float, largest: int
) -> None:
    """Bit flips that pass every checksum below, on both copies, besides loss, repetition and any order.

    Verified payloads are right. A frame is verified at the latest when one whole copy came undamaged, or when nothing
    but one copy was damaged and the other copies fill its holes and its damage.
    """
    job, layout = make_job(ranks, channels, hops=[0, 1]), make_layout(bucket_bytes=400)
    assembler = _assembler(job, layout)
    gradient, rng = _gradient(layout, seed), random.Random(seed)
    good: set[tuple[int, int]] = set()
    bad: set[tuple[int, int]] = set()
    pieces = [piece for piece in _pieces(job, layout, gradient, rng, largest, [0, 1]) if rng.random() >= loss]
    pieces += [piece for piece in pieces if rng.random() < 0.1]
    rng.shuffle(pieces)
    for piece in pieces:
        where = {(piece.flow.id, piece.position + i) for i in range(len(piece.data))}
        if rng.random() < damage:
            damaged = bytearray(piece.data)
            for _ in range(rng.randint(1, 3)):
                bit = rng.randrange(len(damaged) * 8)
                damaged[bit // 8] ^= 1 << bit % 8
            bad |= where
            piece = replace(piece, data=bytes(damaged))
        else:
            good |= where
        _place(assembler, piece)
    for frame in assembler.slot(1).frames:
        payload = bytes(frame.payload)
        slot = frame.primary.slot
        right = gradient[slot.bucket][slot.byte_offset : slot.byte_offset + slot.payload_bytes]
        assert not frame.verified or payload == right
        whole = [
            all((copy.flow_id, copy.slot.start + i) in good - bad for i in range(frame.size)) for copy in frame.copies
        ]
        if any(whole):
            assert frame.verified, "an undamaged copy is enough, whatever the other one says"
    if assembler.slot(1).complete:
        assert _buckets(assembler) == gradient


# ---- one frame ----

PAYLOAD = bytes(range(256)) * 2


def _frame(side: SideBuffer | None = None) -> tuple[Frame, dict[int, FrameIdentity], list[bytes]]:
    """Return a frame of two copies, what their headers must say, and the two copies' right bytes."""
    slots = [FrameSlot(0, 0, 64, 0, Phase.ALL_GATHER, hop, 1, DType.FLOAT32, 0, len(PAYLOAD) // 4) for hop in (0, 1)]
    memory = memoryview(bytearray(128 + len(PAYLOAD)))
    copies = [FrameCopy(i, 10 + i, slot, memory[64 * i : 64 * i + 64]) for i, slot in enumerate(slots)]
    frame = Frame(copies, memory[128:], side or SideBuffer())
    identities = {10 + i: FrameIdentity(1, 2, 3, 0, i, 7, 1) for i in range(2)}
    right = [identities[10 + i].header(slot, crc32c(PAYLOAD)).pack() + PAYLOAD for i, slot in enumerate(slots)]
    return frame, identities, right


def _give(frame: Frame, copy: int, data: bytes, start: int, end: int) -> None:
    frame.copies[copy].place(start, memoryview(data)[start:end])


def _damage(data: bytes, *positions: int) -> bytes:
    damaged = bytearray(data)
    for position in positions:
        damaged[position] ^= 0x10
    return bytes(damaged)


def _settles(frame: Frame, identities: dict[int, FrameIdentity]) -> bool:
    return frame.covered and frame.verify(identities) and bytes(frame.payload) == PAYLOAD


@pytest.mark.parametrize("first", [0, 1])
def test_a_damaged_copy_does_not_spoil_a_whole_one(first: int) -> None:
    frame, identities, right = _frame()
    _give(frame, first, _damage(right[first], 100, 300), 0, frame.size)
    assert frame.covered
    assert not frame.verify(identities)
    assert "payload has CRC32C" in str(frame.problem)
    _give(frame, 1 - first, right[1 - first], 0, frame.size)
    assert _settles(frame, identities)
    assert frame.problem is None


@pytest.mark.parametrize("first", [0, 1])
def test_a_partial_copy_corrects_another_partial_one(first: int) -> None:
    """One copy lost its end and has a damaged byte, the other lost its beginning: neither is enough alone."""
    frame, identities, right = _frame()
    second = 1 - first
    _give(frame, first, _damage(right[first], 200), 0, 400)
    _give(frame, second, right[second], 150, frame.size)
    assert _settles(frame, identities)


def test_each_copy_is_damaged_elsewhere() -> None:
    frame, identities, right = _frame()
    for start in range(0, frame.size, 64):
        _give(frame, 0, _damage(right[0], 130), start, start + 64)
        _give(frame, 1, _damage(right[1], 400), start, start + 64)
    assert _settles(frame, identities)
    # Only the byte that was wrong in the primary was taken from the redundant copy.
    assert frame.repaired == frame.corrected == 1


def test_the_same_byte_is_wrong_in_both_copies_and_a_repetition_is_right() -> None:
    frame, identities, right = _frame()
    _give(frame, 0, _damage(right[0], 130), 0, frame.size)
    _give(frame, 1, _damage(right[1], 130), 0, frame.size)
    assert not _settles(frame, identities)
    assert frame.missing() == [(0, frame.size)]
    _give(frame, 1, right[1], 100, 200)
    assert _settles(frame, identities)


@pytest.mark.parametrize("copy", [0, 1])
def test_one_right_header_is_enough(copy: int) -> None:
    frame, identities, right = _frame()
    _give(frame, copy, right[copy], 0, 64)
    _give(frame, 1 - copy, _damage(right[1 - copy], 33), 0, frame.size)
    assert _settles(frame, identities)


def test_a_payload_without_a_right_header_is_not_verified() -> None:
    frame, identities, right = _frame()
    _give(frame, 0, _damage(right[0], 33), 0, frame.size)
    assert frame.covered
    assert not frame.verify(identities)
    assert "header CRC" in str(frame.problem)
    assert frame.missing() == [(0, 64)]
    _give(frame, 1, right[1], 0, 40)
    assert not frame.covered, "half a header says nothing"
    _give(frame, 1, right[1], 40, 64)
    assert _settles(frame, identities)
    assert frame.repaired == 64


def test_a_header_of_another_hop_is_refused() -> None:
    frame, identities, right = _frame()
    _give(frame, 0, right[1], 0, frame.size)
    assert not _settles(frame, identities)
    assert "hop 1, expected 0" in str(frame.problem)


def test_differing_bytes_are_kept_within_the_bound_only() -> None:
    side = SideBuffer(limit=16)
    frame, identities, right = _frame(side)
    wrong = _damage(right[0], *range(64, frame.size))
    _give(frame, 0, wrong, 0, frame.size)
    assert not _settles(frame, identities)
    _give(frame, 1, right[1], 0, 64 + 8)
    assert side.held == 8
    for start in range(64 + 8, frame.size, 100):
        _give(frame, 1, right[1], start, min(start + 100, frame.size))
        assert side.held <= side.limit
        if frame.covered and not frame.verified:
            frame.verify(identities)
    # Nothing of the wrong copy is left, so that the next one fills the frame alone.
    assert not frame.verified
    assert side.held == 0
    _give(frame, 1, right[1], 0, frame.size)
    assert _settles(frame, identities)
    assert side.held == 0


def test_a_late_copy_of_a_verified_frame_is_compared_and_changes_nothing() -> None:
    side = SideBuffer()
    frame, identities, right = _frame(side)
    _give(frame, 0, right[0], 0, frame.size)
    assert _settles(frame, identities)
    _give(frame, 1, right[1], 0, 300)
    assert side.differing == 0
    _give(frame, 1, _damage(right[1], 400), 300, frame.size)
    assert (side.differing, side.held) == (1, 0)
    assert bytes(frame.payload) == PAYLOAD
    assert frame.repaired == 0


def test_many_variants_are_tried_copy_by_copy_only() -> None:
    variants = [Variant(i % 2, i, b"x") for i in range(10)]
    assert list(candidates(variants)) == [tuple(variants[0::2]), tuple(variants[1::2])]
    few = variants[:3]
    assert len(list(candidates(few))) == 7
    assert list(candidates([])) == []


# ---- the whole shadow ----


def _train(rig: Rig) -> tuple[list[bytes], list[bytes]]:
    """Train one step and return the replicas of the primary and of the redundant hop."""
    rig.train()
    found: list[list[bytes]] = []
    for hop in (0, 1):
        stretches = [
            stretch
            for flow in rig.job.flows
            for stretch in primary_stretches(
                rig.job, flow, rig.twin.layout, rig.epoch, rig.first_step, rig.twin.step, rig.last_gradient, [hop]
            )
        ]
        sizes = iter(lambda: 100, None)
        found.append([segment(rig.job, p, rig.port + p.flow.id) for stretch in stretches for p in cut(stretch, sizes)])
    return found[0], found[1]


def _rig(**options: int) -> Rig:
    job = make_job(3, hops=[0, 1])
    rig = Rig(job, Twin(job, make_layout(), "SGD", {"lr": 0.1, "momentum": 0.9}), **options)
    rig.begin()
    return rig


def test_the_redundant_hop_repairs_what_the_primary_lost() -> None:
    rig = _rig()
    primary, redundant = _train(rig)
    rig.send(primary[:2] + primary[3:])
    rig.record()
    gap = rig.group.progress.explain(1)
    assert gap is not None
    assert gap.reason is GapReason.LOST_BYTES
    assert "nor in the redundant copy of flow" in gap.detail
    rig.send(redundant)
    assert rig.replicated() == [(1, 1)]
    (report,) = rig.core.group("dp0").ledger.history.reports()
    assert report.repaired_bytes == len(primary[2]) - 54
    rig.check_truth()
    rig.send(redundant)
    assert set(rig.core.status("dp0").discarded) == {"redundant"}


def test_either_hop_alone_is_a_gradient() -> None:
    rig = _rig()
    for hop in (0, 1, 0, 1):
        rig.send(_train(rig)[hop])
        rig.record()
    assert [step for _, step in rig.replicated()] == [1, 2, 3, 4]
    rig.check_truth()
    reports = rig.group.ledger.history.reports()
    size = reports[0].replica_bytes
    assert [(r.replica_bytes, r.repaired_bytes) for r in reports] == [
        (size, 0),
        (size, size),
    ] * 2


def test_what_both_hops_lost_is_reported_with_both_flows() -> None:
    rig = _rig(window=2)
    primary, redundant = _train(rig)
    rig.send(primary[1:])
    rig.record()
    (missing,) = rig.group.progress.explain(1).missing  # type: ignore[union-attr]
    assert missing.redundant
    for _ in range(3):
        both = _train(rig)
        rig.send([*both[0], *both[1]])
        rig.record()
    assert rig.replicated() == []
    (lost,) = rig.lost()
    assert lost.gap.step == 1
    assert f"redundant copy of flow {missing.redundant[0]}" in lost.gap.detail
    assert redundant
