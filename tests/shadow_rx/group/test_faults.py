"""Whatever happens to replicas: what is published is true, and what is not published has a reason."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_common.recovery.reasons import GapReason
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.twin import Twin, make_layout
from tests.shadow_rx.wire import Stretch, cut, fix_tcp_checksum, make_job, segment


@dataclass(frozen=True)
class Faults:
    """Chances of what the network does to one replica."""

    drop: float = 0.0
    repeat: float = 0.0
    resend: float = 0.0
    corrupt: float = 0.0
    bless: float = 0.0
    spread: int = 0


chances = st.sampled_from([0.0, 0.0, 0.05, 0.3])
faults = st.builds(
    Faults, drop=chances, repeat=chances, resend=chances, corrupt=chances, bless=chances,
    spread=st.sampled_from([0, 3, 1000]),
)  # fmt: skip


def _impair(rig: Rig, stretches: list[Stretch], rng: random.Random, what: Faults) -> list[bytes]:
    """Return the replicas of `stretches` as they arrive; ``resend`` repeats dropped ones in other segments."""
    sizes = iter(lambda: rng.randint(1, 150), None)
    arriving: list[bytes] = []
    for stretch in stretches:
        lost = False
        for piece in cut(stretch, sizes):
            frame = segment(rig.job, piece, rig.port + piece.flow.id)
            if rng.random() < what.drop:
                lost = True
                continue
            if rng.random() < what.corrupt + what.bless:
                damaged = bytearray(frame)
                at = rng.randrange(34, 54 + len(piece.data))
                damaged[at] ^= 1 << rng.randrange(8)
                bad = bytes(damaged)
                arriving.append(fix_tcp_checksum(bad) if rng.random() < what.bless else bad)
                if rng.random() < 0.5:
                    lost = True
                    continue
            arriving += [frame] * (1 + (rng.random() < what.repeat))
        if lost and rng.random() < what.resend * 3:
            arriving += [segment(rig.job, again, rig.port + again.flow.id) for again in cut(stretch, sizes)]
    if what.spread:
        order = sorted(range(len(arriving)), key=lambda i: i + rng.uniform(0, what.spread))
        arriving = [arriving[i] for i in order]
    return arriving


@settings(deadline=None, max_examples=60)
@given(ranks=st.integers(2, 4), channels=st.integers(1, 2), seed=st.integers(0, 1 << 30), what=faults)
def test_never_a_wrong_recovery_point(ranks: int, channels: int, seed: int, what: Faults) -> None:
    rng = random.Random(seed)
    job = make_job(ranks, channels)
    rig = Rig(job, Twin(job, make_layout(), "SGD", {"lr": 0.1, "momentum": 0.9}, seed), window=3)
    rig.begin()
    for _ in range(5):
        rig.train()
        gradient = rig.last_gradient
        rig.send(_impair(rig, rig.twin.stretches(gradient, rig.epoch, rig.first_step), rng, what))
        rig.record()
    rig.check_truth()
    published = [step for _, step in rig.replicated()]
    assert published == list(range(1, len(published) + 1)), "steps are applied in order, none is left out"
    status = rig.core.status("dp0")
    assert status.replica_step == len(published)
    for step in range(len(published) + 1, 6):
        gap = rig.group.progress.explain(step)
        assert gap is not None
        assert gap.step == step
        assert gap in status.gaps
    if not (what.drop or what.corrupt or what.bless):
        assert len(published) == 5, "reordering, repetition and other segments lose nothing"


def _flip(frame: bytes, bit: int) -> bytes:
    damaged = bytearray(frame)
    damaged[bit // 8] ^= 1 << (bit % 8)
    return bytes(damaged)


def test_no_flipped_bit_of_a_replica_gets_into_a_recovery_point() -> None:
    job = make_job(2)
    layout = make_layout([(3, 2)])
    outcomes: dict[GapReason | None, int] = {}
    payload_published = 0
    for blessed in (False, True):
        rig = Rig(job, Twin(job, layout, "SGD", {"lr": 0.1}))
        # All bits of the headers; 7 is coprime to 8, so that payload bits of every significance are flipped.
        for bit in (*range(8 * 54), *range(8 * 54, 8 * (54 + 76), 7)):
            rig.begin(port=2000 + rig.epoch)
            frames = rig.train()
            assert len(frames[0]) == 54 + 76
            flipped = _flip(frames[0], bit)
            rig.send([fix_tcp_checksum(flipped) if blessed else flipped, *frames[1:]])
            rig.record()
            gap = rig.group.progress.explain(rig.twin.step)
            replicated = (rig.epoch, rig.twin.step) in rig.replicated()
            assert replicated == (gap is None or gap.reason is GapReason.OVERLOAD)
            outcomes[None if replicated else gap.reason] = outcomes.get(None if replicated else gap.reason, 0) + 1
            payload_published += replicated and bit >= 8 * 54
            rig.check_truth()
            rig.events.clear()
    assert payload_published == 0
    assert set(outcomes) == {None, GapReason.LOST_BYTES, GapReason.CORRUPT_FRAME}
    # Published all the same: the Ethernet source, and fields that say nothing of the stream (TTL and the like
    # fail the header checksum), once the checksum is blessed.
    assert outcomes[GapReason.CORRUPT_FRAME] >= 8 * 76 // 7


def test_a_dropped_replica_is_named_to_the_byte() -> None:
    rig = Rig()
    rig.begin()
    rig.step()
    frames = rig.train()
    rig.send(frames[:2] + frames[3:])
    rig.record()
    gap = rig.group.progress.explain(2)
    assert gap is not None
    assert gap.reason is GapReason.LOST_BYTES
    assert sum(m.end - m.start for m in gap.missing) == len(frames[2]) - 54
    (missing,) = gap.missing
    assert f"flow {missing.flow_id} [{missing.start}, {missing.end})" in gap.detail
    assert rig.replicated() == [(1, 1)]


def test_a_damaged_replica_is_named() -> None:
    rig = Rig()
    rig.begin()
    frames = rig.train()
    rig.send([_flip(frames[0], 8 * 80), *frames[1:]])
    rig.record()
    gap = rig.group.progress.explain(1)
    assert gap is not None
    assert gap.reason is GapReason.LOST_BYTES
    assert "wrong checksum were discarded: 1 of flow 3" in gap.detail
    assert rig.core.status("dp0").discarded == {"bad_tcp_checksum": 1}
    rig.send(frames[:1])
    assert rig.replicated() == [(1, 1)], "a retransmission repairs it"
    rig.check_truth()


def test_a_damaged_and_blessed_replica_is_a_corrupt_frame() -> None:
    rig = Rig()
    rig.begin()
    frames = rig.train()
    rig.send([fix_tcp_checksum(_flip(frames[1], 8 * 60)), frames[0], *frames[2:]])
    rig.record()
    gap = rig.group.progress.explain(1)
    assert gap is not None
    assert gap.reason is GapReason.CORRUPT_FRAME
    assert "flow 3 bucket 0" in gap.detail
    rig.send(frames)
    assert rig.replicated() == [(1, 1)]
    rig.check_truth()


def test_late_repetitions_of_applied_steps_disturb_nothing() -> None:
    rig = Rig(window=2)
    rig.begin()
    for _ in range(6):
        frames = rig.train()
        rig.send(frames)
        rig.record()
        rig.send(frames[-1:] + frames)
        assert rig.core.status("dp0").pending_bytes == {}
    assert len(rig.replicated()) == 6
    rig.check_truth()
    assert rig.core.status("dp0").discarded == {"duplicate": 6 * (len(frames) + 1)}
