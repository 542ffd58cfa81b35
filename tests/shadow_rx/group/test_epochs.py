"""Incarnations of a group: attach, reconnect, restart from an earlier step, and what the ending epoch leaves."""

from __future__ import annotations

import pytest

from checkmate_common.recovery.reasons import GapReason
from shadow_rx.errors import Refusal, ShadowError
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.twin import Twin, make_layout
from tests.shadow_rx.wire import Stretch, make_job, segment


def _copy_back(rig: Rig, step_state: dict) -> None:
    rig.twin.step = step_state["step"]
    for name, param in rig.twin.params.items():
        param.data.copy_(step_state["tensors"][f"param/{name}"])
        for key, value in rig.twin.optimizer.state[param].items():
            value.copy_(step_state["tensors"][f"optim/{name}/{key}"])


def test_a_reconnect_goes_on_without_upload_and_places_no_old_byte() -> None:
    rig = Rig()
    assert rig.begin()
    for _ in range(3):
        rig.step()
    old_port, old_frames = rig.port, []
    # The ranks were in the middle of step 4 when a connection broke; its segments are still on their way.
    broken = rig.train()
    rig.send(broken[: len(broken) // 2])
    old_frames = broken[len(broken) // 2 :]
    _undo(rig)
    assert not rig.begin(), "the shadow holds step 3"
    assert rig.group.progress.explain(4).reason is GapReason.FLOW_RESET
    again = rig.train()
    assert rig.port != old_port
    rig.send([frame for pair in zip(old_frames, again, strict=False) for frame in pair])
    rig.send(again[len(old_frames) :])
    rig.record()
    assert rig.replicated() == [(1, 1), (1, 2), (1, 3), (2, 4)]
    rig.check_truth()
    assert rig.core.status("dp0").discarded == {"unknown_connection": len(old_frames)}
    assert rig.core.status("dp0").gaps == tuple(g for g in rig.core.status("dp0").gaps if g.step <= 4)


def _undo(rig: Rig) -> None:
    """Take the trainer back to the shadow's newest recovery point, as a restart does."""
    snapshot = rig.snapshots()[-1]
    _copy_back(rig, {"step": snapshot.step, "tensors": snapshot.tensors})


def test_old_segments_that_pretend_the_new_port_fail_the_header() -> None:
    """The last line of defence: even if a connection were mistaken, the epoch in the header is wrong."""
    rig = Rig()
    rig.begin()
    rig.step()
    stretches = rig.twin.stretches(rig.last_gradient, 1, 1)
    _undo(rig)
    rig.begin()
    rig.send(segment(rig.job, Stretch(s.flow, s.position, s.data), rig.port + s.flow.id) for s in stretches)
    rig.train()
    rig.record()
    assert rig.replicated() == [(1, 1)]
    gap = rig.group.progress.explain(2)
    assert gap.reason is GapReason.CORRUPT_FRAME
    assert "epoch 1, expected 2" in gap.detail


def test_a_restart_from_an_earlier_step_is_followed_again() -> None:
    rig = Rig(hold=20)
    rig.begin()
    for _ in range(10):
        rig.step()
    kept = rig.snapshots()[5]
    assert kept.step == 6
    _copy_back(rig, {"step": 6, "tensors": kept.tensors})
    assert rig.begin(), "the shadow is at step 10 and cannot go back by itself"
    status = rig.core.status("dp0")
    assert (status.epoch, status.trained_step, status.replica_step) == (2, 6, 6)
    assert rig.group.ledger.point(8) is None, "step 8 of epoch 1 is no longer part of the history"
    assert rig.group.ledger.point(0) is kept
    for _ in range(4):
        rig.step()
    assert rig.replicated()[10:] == [(2, 7), (2, 8), (2, 9), (2, 10)]
    rig.check_truth()
    held = rig.group.ledger.point(8)
    assert held is not None
    assert held.epoch == 2
    assert [r.epoch for r in rig.core.group("dp0").ledger.history.reports()] == [1] * 6 + [2] * 4


def test_after_a_loss_a_new_epoch_with_state_goes_on() -> None:
    rig = Rig(window=2)
    rig.begin()
    rig.step()
    lost_frames = rig.train()
    rig.send(lost_frames[1:])
    rig.record()
    rig.step()
    assert rig.lost() == [], "step 2 could still be completed"
    assert rig.group.progress.explain(3).reason is GapReason.LOST_BYTES
    assert "waits for step 2" in rig.group.progress.explain(3).detail
    assert not rig.group.progress.settled(2)
    rig.step()
    (lost,) = rig.lost()
    assert (lost.gap.step, lost.gap.reason) == (2, GapReason.LOST_BYTES)
    assert rig.group.progress.settled(2)
    assert rig.group.progress.settled(4)
    rig.send(lost_frames)
    rig.step()
    assert rig.replicated() == [(1, 1)], "after a loss nothing of the epoch is applied"
    status = rig.core.status("dp0")
    assert (status.trained_step, status.replica_step) == (5, 1)
    assert [(g.step, g.reason) for g in status.gaps[:4]] == [
        (5, GapReason.RESYNC_PENDING), (4, GapReason.RESYNC_PENDING), (3, GapReason.RESYNC_PENDING),
        (2, GapReason.LOST_BYTES),
    ]  # fmt: skip
    assert status.discarded["resync_pending"] > 0
    assert rig.begin(), "the ranks are at step 5, the shadow at step 1"
    status = rig.core.status("dp0")
    assert (status.trained_step, status.replica_step) == (5, 1), "an uploaded state is no recovery point yet"
    rig.step()
    assert rig.replicated() == [(1, 1), (2, 6)]
    rig.check_truth()
    status = rig.core.status("dp0")
    assert status.replica_step == 6
    reasons = {gap.step: gap.reason for gap in status.gaps}
    assert reasons[2] is GapReason.LOST_BYTES
    assert {reasons[step] for step in (3, 4, 5)} == {GapReason.RESYNC_PENDING}, "never recoverable, still told"


def test_a_state_that_was_never_advanced_is_asked_for_again() -> None:
    rig = Rig()
    assert rig.begin()
    assert rig.begin(), "another run may begin with other parameters under the same step number"
    rig.step()
    assert not rig.begin()
    other = Twin(rig.job, make_layout([(7, 5), (11,)]))
    other.step = rig.twin.step
    assert rig.group.attach(other.attach(4)), "other parameters"


def test_bytes_and_records_may_come_before_the_state() -> None:
    rig = Rig()
    rig.begin(upload=False)
    state = rig.twin.state_bytes()
    for _ in range(3):
        rig.step()
    gap = rig.group.progress.explain(1)
    assert gap.reason is GapReason.RESYNC_PENDING
    assert "state before step 1" in gap.detail
    rig.upload(1, state)
    assert rig.replicated() == [(1, 1), (1, 2), (1, 3)]
    rig.check_truth()


def test_records_may_come_in_any_order_and_late() -> None:
    rig = Rig(window=4)
    rig.begin()
    late = []
    for _ in range(3):
        rig.send(rig.train())
        late += rig.twin.records(1)
    assert rig.group.progress.explain(1).reason is GapReason.SIDE_CHANNEL_MISSING
    assert rig.group.progress.explain(1).detail == "no record of rank 0, 1, 2"
    for message in reversed(late):
        rig.send_record(message, 1.0)
    assert rig.replicated() == [(1, 1), (1, 2), (1, 3)]
    rig.check_truth()


def test_a_shadow_that_is_behind_reports_overload() -> None:
    rig = Rig(window=2)
    rig.begin()
    withheld = []
    for _ in range(3):
        rig.send(rig.train())
        withheld += rig.twin.records(1)
    assert rig.lost() == []
    assert rig.group.progress.explain(3).reason is GapReason.OVERLOAD
    for message in withheld:
        rig.send_record(message, 1.0)
    assert rig.replicated() == [(1, 1), (1, 2)]
    (lost,) = rig.lost()
    assert (lost.gap.step, lost.gap.reason) == (3, GapReason.OVERLOAD)
    rig.check_truth()


def test_epochs_only_grow() -> None:
    rig = Rig()
    rig.begin(3)
    for epoch in (3, 2, 0):
        with pytest.raises(ShadowError, match="not newer than epoch 3") as caught:
            rig.group.attach(rig.twin.attach(epoch))
        assert caught.value.code is Refusal.FAILED_PRECONDITION
        assert caught.value.field == "epoch"
    rig.step()
    assert rig.replicated() == [(3, 1)]


def test_ports_of_earlier_epochs_are_refused() -> None:
    rig = Rig()
    rig.begin(port=50000)
    with pytest.raises(ShadowError, match="used port 50003 in an earlier epoch"):
        rig.begin(port=50000)
    message = rig.twin.open_flows(rig.epoch, 51000)[0]
    rig.group.open_flow(message)
    rig.group.open_flow(message)
    message.source_port += 100
    with pytest.raises(ShadowError, match="a new connection needs a new epoch"):
        rig.group.open_flow(message)


def test_the_layout_version_of_the_records_must_be_known() -> None:
    rig = Rig()
    rig.begin()
    rig.send(rig.train())
    for message in rig.twin.records(1):
        message.layout_version = 2
        rig.send_record(message, 1.0)
    (lost,) = rig.lost()
    assert (lost.gap.step, lost.gap.reason) == (1, GapReason.UNKNOWN_LAYOUT)
    rebuilt = Twin(rig.job, make_layout(bucket_bytes=400, version=2))
    rebuilt.step = 1
    rig.twin = rebuilt
    assert rig.begin()
    rig.step()
    assert rig.replicated() == [(2, 2)]


def test_two_channels_and_many_ranks() -> None:
    job = make_job(8, 2)
    rig = Rig(job, Twin(job, make_layout()))
    rig.begin()
    rig.send(rig.twin.syns(rig.port))
    for _ in range(3):
        rig.step()
    assert len(rig.replicated()) == 3
    rig.check_truth()
    status = rig.core.status("dp0")
    frames = sum(
        1 for b in rig.twin.layout.buckets for n in range(16) if b.elements * (n + 1) // 16 > b.elements * n // 16
    )
    assert status.replica_payload_bytes == 3 * (rig.twin.layout.nbytes + 64 * frames)
