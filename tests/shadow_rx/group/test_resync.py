"""After a loss the trainer's state is asked for: the steps between are reported, and all later ones verified."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_common.recovery.reasons import GapReason
from shadow_rx.errors import ShadowError
from tests.shadow_rx.resync_rig import ResyncRig
from tests.shadow_rx.twin import Twin, make_layout
from tests.shadow_rx.wire import make_job


def test_one_lost_step_is_reported_and_the_next_ones_are_followed() -> None:
    rig = ResyncRig()
    rig.begin()
    rig.step()
    assert rig.wanted() is None
    lost_frames = rig.train()
    rig.send(lost_frames[1:])
    rig.record()
    assert rig.wanted() is None, "step 2 may still be completed"
    rig.step()
    assert rig.wanted() == 2, "step 3 is complete, so step 2 is rather lost than late"
    rig.send(rig.train())
    assert rig.answer()
    rig.record()
    for _ in range(3):
        rig.step()
    assert rig.replicated() == [(1, 1), (1, 4), (1, 5), (1, 6), (1, 7)]
    rig.check_truth()
    assert rig.resynced() == [4]
    assert rig.uploads == [4]
    status = rig.core.status("dp0")
    assert (status.trained_step, status.replica_step, status.state_from) == (7, 7, None)
    reasons = {gap.step: gap.reason for gap in status.gaps if gap.step in (2, 3)}
    assert reasons == {2: GapReason.LOST_BYTES, 3: GapReason.RESYNC_PENDING}
    assert rig.group.progress.explain(2).missing, "the first reason stays, to the byte"
    assert [lost.gap.step for lost in rig.lost()] == [2, 3]
    assert rig.snapshots()[1].gradient is None
    assert rig.snapshots()[2].gradient == b"".join(rig.gradients[5])


def test_a_step_that_is_completed_late_needs_no_state() -> None:
    rig = ResyncRig()
    rig.begin()
    late = rig.train()
    rig.record()
    rig.step()
    assert rig.wanted() == 1
    rig.send(late)
    assert rig.wanted() is None
    rig.give_state()
    assert rig.resynced() == []
    assert rig.replicated() == [(1, 1), (1, 2)]
    rig.check_truth()


def test_a_lost_record_is_resynced_too() -> None:
    rig = ResyncRig()
    rig.begin()
    rig.send(rig.train())
    rig.tell(rig.twin.records(1)[1:])
    for _ in range(3):
        rig.step()
        rig.answer()
    assert rig.replicated() == [(1, 2), (1, 3), (1, 4)]
    assert rig.group.progress.explain(1).reason is GapReason.SIDE_CHANNEL_MISSING
    rig.check_truth()


def test_the_state_comes_before_its_records() -> None:
    rig = ResyncRig(digest=True)
    rig.begin()
    rig.train()
    rig.record()
    rig.step()
    rig.send(rig.train())
    rig.answer()
    assert rig.replicated() == []
    assert not rig.group.progress.settled(3)
    gap = rig.group.progress.explain(3)
    assert (gap.reason, "no record of rank 0, 1, 2" in gap.detail) == (GapReason.SIDE_CHANNEL_MISSING, True)
    rig.record()
    assert rig.replicated() == [(1, 3)]
    assert rig.group.progress.settled(3)
    rig.step()
    assert rig.replicated() == [(1, 3), (1, 4)]
    rig.check_truth()


def test_a_state_without_records_is_gone_on_from_and_reported() -> None:
    rig = ResyncRig()
    rig.begin()
    rig.train()
    rig.record()
    rig.step()
    rig.send(rig.train())
    rig.tell(rig.twin.records(1)[:2])
    rig.answer()
    rig.step()
    assert rig.replicated() == [(1, 4)]
    gap = rig.group.progress.explain(3)
    assert (gap.reason, gap.detail) == (
        GapReason.SIDE_CHANNEL_MISSING, "its state was uploaded, but there is no record of rank 2",
    )  # fmt: skip
    rig.check_truth()


def test_a_state_that_is_not_the_ranks_is_refused_and_asked_for_again() -> None:
    rig = ResyncRig(digest=True)
    rig.begin()
    rig.train()
    rig.record()
    rig.step()
    rig.step()
    wrong = rig.saved[2]
    rig.upload(1, wrong, rig.now, 3)
    assert rig.replicated() == []
    assert rig.group.progress.explain(3).reason is GapReason.DIGEST_MISMATCH
    rig.step()
    assert rig.wanted() == 4
    rig.answer()
    rig.step()
    assert rig.replicated() == [(1, 4), (1, 5)]
    rig.check_truth()


def test_what_is_no_state_is_refused_and_changes_nothing() -> None:
    rig = ResyncRig()
    rig.begin()
    rig.train()
    rig.record()
    rig.step()
    before = rig.core.status("dp0")
    other = Twin(rig.job, make_layout([(3, 3)]))
    for data in (b"", rig.saved[2][:-1], other.state_bytes()):
        with pytest.raises(ShadowError):
            rig.upload(1, data, rig.now, 2)
    assert rig.core.status("dp0") == before


def test_the_window_moves_on_while_the_state_is_awaited() -> None:
    rig = ResyncRig(window=3)
    rig.begin()
    rig.train()
    rig.record()
    for _ in range(20):
        rig.step()
    assert rig.core.status("dp0").replica_step == 0
    assert rig.core.status("dp0").pending_bytes.keys() == {20, 21}
    assert rig.core.status("dp0").state_from == 19
    rig.give_state(19)
    assert rig.replicated() == [(1, 19), (1, 20), (1, 21)]
    rig.check_truth()


def test_a_state_that_is_too_old_is_not_of_use() -> None:
    rig = ResyncRig(window=3)
    rig.begin()
    rig.train()
    rig.record()
    for _ in range(9):
        rig.step()
    rig.give_state(3)
    assert rig.resynced() == []
    assert rig.wanted() is not None


def test_a_state_on_its_way_keeps_what_follows_it() -> None:
    rig = ResyncRig(window=3)
    rig.begin()
    rig.train()
    rig.record()
    rig.step()
    rig.step()
    rig.group.plan_upload(1, 3)
    for _ in range(10):
        rig.step()
    rig.give_state(3)
    assert rig.replicated() == [(1, 3), (1, 4), (1, 5), (1, 6)]
    rig.check_truth()
    for _ in range(4):
        rig.step()
        rig.answer()
    assert rig.core.status("dp0").replica_step == rig.twin.step


def test_states_that_do_not_help_are_asked_for_less_and_less_often() -> None:
    rig = ResyncRig(window=2)
    rig.begin()
    for _ in range(120):
        rig.send(rig.train()[1:])
        rig.record()
        rig.answer()
    distances = [b - a for a, b in zip(rig.uploads, rig.uploads[1:], strict=False)]
    assert len(rig.uploads) < 12
    assert distances[-1] >= 16
    for _ in range(70):
        rig.step()
        rig.answer()
    assert rig.core.status("dp0").replica_step == rig.twin.step, "in the end it is followed again"
    rig.check_truth()
    before = len(rig.uploads)
    rig.send(rig.train()[1:])
    rig.record()
    rig.step()
    rig.answer()
    assert len(rig.uploads) == before + 1, "after a replayed step the next loss is answered at once"


def test_a_damaged_position_does_not_move_the_window_away() -> None:
    rig = ResyncRig()
    rig.begin()
    from tests.shadow_rx.wire import replica

    rig.train()
    rig.record()
    for far in (1 << 20, 1 << 28, 1 << 30):
        flow = rig.job.flows[0]
        rig.send([replica(rig.job, flow, rig.port + flow.id, far, b"x" * 50)])
    for _ in range(4):
        rig.step()
        rig.answer()
    assert rig.core.status("dp0").replica_step == 5
    rig.check_truth()


def test_the_last_state_is_taken_without_being_asked_for() -> None:
    rig = ResyncRig()
    rig.begin()
    rig.step()
    rig.send(rig.train()[1:])
    rig.record()
    assert rig.wanted() is None
    rig.give_state()
    assert rig.replicated() == [(1, 1)], "it could still be late"
    rig.give_state(final=True)
    assert rig.replicated() == [(1, 1), (1, 2)]
    assert rig.lost() == []
    rig.check_truth()


def test_a_restarted_shadow_says_what_it_lost_and_goes_on() -> None:
    rig = ResyncRig()
    rig.begin()
    for _ in range(3):
        rig.step()
    rig.restart()
    status = rig.core.status("dp0")
    assert (status.trained_step, status.replica_step, status.durable_step, status.epoch) == (3, 3, 3, 0)
    # The ranks have trained on while it was away.
    rig.alive = False
    rig.train()
    rig.train()
    rig.alive = True
    rig.record()
    assert rig.core.status("dp0").epoch == 1
    assert rig.group.progress.explain(4).reason is GapReason.RESYNC_PENDING
    assert "started again" in rig.group.progress.explain(4).detail
    rig.step()
    rig.answer()
    rig.step()
    assert rig.replicated() == [(1, 1), (1, 2), (1, 3), (1, 6), (1, 7)]
    rig.check_truth()
    assert {gap.step for gap in rig.core.status("dp0").gaps if gap.reason is GapReason.RESYNC_PENDING} == {4, 5}
    rig.begin()
    rig.step()
    assert rig.core.status("dp0").replica_step == 8


def test_a_restart_between_two_steps_loses_only_the_one_in_progress() -> None:
    rig = ResyncRig()
    rig.begin()
    rig.step()
    rig.restart()
    rig.send(rig.train())
    rig.record()
    rig.answer()
    rig.step()
    assert rig.replicated() == [(1, 1), (1, 2), (1, 3)]
    assert rig.lost() == [], "the state of step 2 was uploaded"
    rig.check_truth()


def test_another_run_on_old_storage_begins_a_new_history() -> None:
    rig = ResyncRig()
    rig.begin()
    for _ in range(5):
        rig.step()
    rig.restart()
    rig.twin = Twin(rig.job, make_layout(), seed=7)
    rig.events.clear()
    assert rig.begin(epoch=1), "its first step is 1"
    status = rig.core.status("dp0")
    assert (status.trained_step, status.replica_step, status.durable_step) == (0, 0, 0)
    rig.step()
    assert rig.replicated() == [(1, 1)]
    rig.check_truth()


def test_the_same_communicator_may_attach_twice_another_may_not() -> None:
    rig = ResyncRig()
    rig.begin(upload=False)
    assert rig.group.attach(rig.request), "the state is still needed"
    rig.upload(1, rig.saved[0])
    assert not rig.group.attach(rig.request)
    rig.step()
    assert not rig.group.attach(rig.request)
    rig.request.communicator = "another"
    with pytest.raises(ShadowError, match="not newer"):
        rig.group.attach(rig.request)
    rig.step()
    assert rig.replicated() == [(1, 1), (1, 2)]


@settings(deadline=None, max_examples=80)
@given(data=st.data(), window=st.integers(2, 4), digest=st.booleans(), seed=st.integers(0, 1 << 30))
def test_whatever_is_lost_what_is_published_is_true_and_the_end_is_verified(
    data: st.DataObject, window: int, digest: bool, seed: int
) -> None:
    """Schedules of losses, late records, restarts, and of when the asked-for state is taken and when it arrives."""
    job = make_job(2)
    twin = Twin(job, make_layout([(3, 2), (5,)]), "Adam", {"lr": 0.1}, seed)
    rig = ResyncRig(job, twin, window=window, digest=digest)
    rig.begin()
    rng = random.Random(seed)
    held_back: list = []
    on_its_way: list[int] = []
    for _ in range(data.draw(st.integers(4, 14))):
        what = data.draw(st.sampled_from(["clean", "clean", "lose", "lose all", "late records", "restart", "away"]))
        rig.alive = what != "away"
        frames = rig.train()
        if what == "lose":
            del frames[rng.randrange(len(frames))]
        rig.send(frames if what != "lose all" else [])
        if what == "restart":
            rig.restart()
            on_its_way.clear()
        records = rig.twin.records(rig.epoch, digest)
        if what == "late records":
            held_back += records
        elif what != "away":
            rig.tell(records)
        if held_back and data.draw(st.booleans()):
            rig.tell(held_back)
            held_back.clear()
        wanted = rig.wanted()
        if wanted is not None and wanted <= rig.twin.step and not on_its_way:
            on_its_way.append(rig.twin.step)
            if data.draw(st.booleans()):
                rig.group.plan_upload(rig.epoch, rig.twin.step)
        if on_its_way and data.draw(st.booleans()):
            rig.give_state(on_its_way.pop())
    rig.alive = True
    rig.tell(held_back)
    for _ in range(70):
        rig.step()
        if rig.answer() or rig.core.status("dp0").replica_step == rig.twin.step:
            break
    rig.step()
    rig.step()
    rig.check_truth()
    status = rig.core.status("dp0")
    assert status.replica_step == rig.twin.step
    published = {step for _, step in rig.replicated()}
    for step in range(1, rig.twin.step + 1):
        gap = rig.group.progress.explain(step)
        assert step in published or gap is not None
        if gap is not None:
            assert gap.detail
