"""Another optimizer or layout from a step on: exact from it on, refused when late, never silently wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_common.recovery.point import pack_tensors
from checkmate_common.recovery.reasons import GapReason
from checkmate_common.sidechannel import side_channel_pb2 as pb
from shadow_rx.apply.model import LiveModel
from shadow_rx.errors import Refusal, ShadowError
from shadow_rx.trainer.description import OPTIMIZERS
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.twin import SHAPES, Twin, as_bytes, make_layout
from tests.shadow_rx.wire import make_job, step_length

OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adagrad": {"lr": 0.1, "initial_accumulator_value": 0.3},
}


def regroup(twin: Twin, name: str, options: dict[str, Any], groups: list[list[str]] | None = None) -> None:
    """Give the trainer another optimizer; of the same class it keeps its state."""
    old, twin.optimizer_name = twin.optimizer, name
    twin.group_names = groups or twin.group_names
    cls = getattr(torch.optim, name)
    parts = [{"params": [twin.params[n] for n in part]} for part in twin.group_names]
    twin.optimizer = cls(parts, **options)
    if type(old) is cls:
        for param in twin.params.values():
            if param in old.state:
                twin.optimizer.state[param] = old.state[param]


def announcement(rig: Rig, step: int | None = None, layout: bool = False, state: bytes = b"") -> pb.ChangeRequest:
    described = rig.twin.attach(rig.epoch)
    return pb.ChangeRequest(
        group="dp0", epoch=rig.epoch, effective_step=rig.twin.step + 1 if step is None else step,
        layout_json=described.layout_json if layout else "", optimizer=described.optimizer, state=state,
    )  # fmt: skip


def refused(rig: Rig, message: pb.ChangeRequest, text: str, code: Refusal = Refusal.FAILED_PRECONDITION) -> None:
    with pytest.raises(ShadowError) as caught:
        rig.group.change(message)
    assert text in str(caught.value)
    assert caught.value.code is code


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_class_is_exact_from_the_step_on(name: str) -> None:
    before = "SGD" if name != "SGD" else "AdamW"
    job = make_job(2)
    rig = Rig(job, Twin(job, make_layout(), before, {"lr": 0.05}))
    rig.begin()
    rig.step()
    rig.step()
    regroup(rig.twin, name, OPTIONS.get(name, {"lr": 0.01}))
    rig.group.change(announcement(rig))
    rig.group.change(announcement(rig))  # a repeated call is no second change
    for _ in range(3):
        rig.step()
    assert rig.replicated() == [(1, step) for step in range(1, 6)]
    rig.check_truth()
    assert [snapshot.optimizer.name for snapshot in rig.snapshots()] == [before] * 2 + [name] * 3


def test_groups_are_parted_and_keep_their_state() -> None:
    rig = Rig()
    rig.begin()
    rig.step()
    names = list(rig.twin.params)
    regroup(rig.twin, "AdamW", {"lr": 0.5, "weight_decay": 0.3}, [names[2:], names[:2]])
    rig.group.change(announcement(rig))
    rig.step()
    rig.step()
    assert len(rig.replicated()) == 3
    rig.check_truth()
    assert rig.snapshots()[-1].tensors["optim/layer.0/step"] == 3


def test_a_change_far_ahead_waits_for_its_step() -> None:
    rig = Rig()
    rig.begin()
    old = rig.twin.optimizer
    names, options = rig.twin.group_names, {"lr": 0.2}
    regroup(rig.twin, "SGD", options)
    message = announcement(rig, step=4)
    rig.group.change(message)
    rig.twin.optimizer, rig.twin.optimizer_name, rig.twin.group_names = old, "AdamW", names
    for _ in range(3):
        rig.step()
    regroup(rig.twin, "SGD", options)
    for _ in range(2):
        rig.step()
    assert len(rig.replicated()) == 5
    rig.check_truth()


def test_a_late_change_is_refused_and_the_step_is_lost_with_its_reason() -> None:
    rig = Rig()
    rig.begin()
    rig.step()
    rig.step()
    refused(rig, announcement(rig, step=2), "comes late")
    regroup(rig.twin, "Adam", {"lr": 0.2})
    rig.step()  # nobody announced it
    (lost,) = rig.lost()
    assert (lost.gap.step, lost.gap.reason) == (3, GapReason.DIGEST_MISMATCH)
    assert "another optimizer or group has to be announced before its first step" in lost.gap.detail
    assert rig.replicated() == [(1, 1), (1, 2)]
    rig.check_truth()


def test_a_second_change_of_the_same_step_is_refused() -> None:
    rig = Rig()
    rig.begin()
    regroup(rig.twin, "SGD", {"lr": 0.2})
    rig.group.change(announcement(rig, step=3))
    regroup(rig.twin, "Adam", {"lr": 0.2})
    refused(rig, announcement(rig, step=3), "is settled")
    refused(rig, announcement(rig, step=2), "is settled")


def test_unusable_changes_are_refused_and_cost_nothing() -> None:
    rig = Rig()
    rig.begin()
    good = announcement(rig, step=2)
    for change, text, code in (
        ({"epoch": 7}, "not the current epoch", Refusal.FAILED_PRECONDITION),
        ({"layout_json": "{"}, "layout_json", Refusal.INVALID_ARGUMENT),
        ({"layout_json": make_layout(((3,),)).to_json()}, "not in the layout", Refusal.INVALID_ARGUMENT),
        ({"layout_json": make_layout(bucket_bytes=90).to_json()}, "expected more than 1", Refusal.INVALID_ARGUMENT),
        ({"optimizer": pb.OptimizerDescription(name="LBFGS")}, "cannot be replayed", Refusal.INVALID_ARGUMENT),
        ({"state": b"not safetensors"}, "state", Refusal.INVALID_ARGUMENT),
    ):
        message = pb.ChangeRequest()
        message.CopyFrom(good)
        for field, value in change.items():
            if isinstance(value, pb.OptimizerDescription):
                message.optimizer.CopyFrom(value)
            else:
                setattr(message, field, value)
        refused(rig, message, text, code)
    rig.step()
    rig.step()
    assert rig.replicated() == [(1, 1), (1, 2)]


def test_state_that_no_constructor_makes_comes_with_the_announcement() -> None:
    job = make_job(2)
    rig = Rig(job, Twin(job, make_layout(), "SGD", {"lr": 0.1}))
    rig.begin()
    rig.step()
    regroup(rig.twin, "SGD", {"lr": 0.1, "momentum": 0.9})
    for param in rig.twin.params.values():
        rig.twin.optimizer.state[param]["momentum_buffer"] = torch.full_like(param, 0.25).detach()
    brought = {name: tensor for name, tensor in rig.twin.state().items() if name.startswith("optim/")}
    rig.group.change(announcement(rig, state=pack_tensors(brought)))
    rig.step()
    rig.step()
    assert len(rig.replicated()) == 3
    rig.check_truth()


def test_another_layout_on_the_open_streams() -> None:
    """Positions go on: the first byte of the new layout follows the last of the old one."""
    rig = Rig()
    rig.begin()
    rig.step()
    rig.step()
    lengths = {flow.id: step_length(flow, rig.twin.layout) for flow in rig.job.flows}
    rig.twin.layout = make_layout(bucket_bytes=90, version=2)
    rig.group.change(announcement(rig, layout=True))
    for step in (3, 4, 5):
        gradient = rig.twin.train()
        rig.truth[1, step] = as_bytes(rig.twin.state())
        for flow in rig.job.flows:
            # The twin counts positions as if its layout had been in force from the epoch's first step on.
            shift = 2 * (lengths[flow.id] - step_length(flow, rig.twin.layout))
            rig.send(rig.twin.frames_of(flow, gradient, 1, 1, rig.port, shift))
        rig.record()
    assert rig.replicated() == [(1, step) for step in range(1, 6)]
    assert [snapshot.layout.version for snapshot in rig.snapshots()] == [1, 1, 2, 2, 2]
    rig.check_truth()


def test_a_stored_gradient_gives_what_the_slot_gave() -> None:
    rig = Rig()
    start = rig.twin.state()
    rig.begin()
    rig.step()
    rig.step()
    replay = LiveModel(rig.twin.layout, rig.snapshots()[0].optimizer, start)
    for snapshot in rig.snapshots():
        assert snapshot.gradient is not None
        replay.step_with(snapshot.gradient, snapshot.records[0].update)
        assert as_bytes(replay.snapshot()) == as_bytes(snapshot.tensors)
    with pytest.raises(ValueError, match="the layout has"):
        replay.step_with(b"short", rig.snapshots()[0].records[0].update)


@pytest.mark.parametrize("skipped", [False, True])
def test_scaled_and_skipped_steps(skipped: bool) -> None:
    rig = Rig()
    rig.begin()
    rig.step()
    gradient = rig.twin.draw_gradient()
    before = rig.twin.state()
    scale = float(torch.tensor(0.37))
    if skipped:
        frames = rig.train(gradient=gradient)
        params = {name.removeprefix("param/"): tensor for name, tensor in before.items() if name.startswith("param/")}
        with torch.no_grad():
            for name, param in rig.twin.params.items():
                param.copy_(params[name])
                for key, value in rig.twin.optimizer.state[param].items():
                    value.copy_(before[f"optim/{name}/{key}"])
    else:
        scaled = [
            (torch.frombuffer(bytearray(part), dtype=torch.float32) * scale).numpy().tobytes() for part in gradient
        ]
        rig.train(gradient=scaled)
        frames = rig.twin.frames(gradient, 1, 1, port=rig.port)
    rig.truth[1, 2] = as_bytes(rig.twin.state())
    rig.send(frames)
    for message in rig.twin.records(1):
        message.skipped = skipped
        if not skipped:
            message.gradient_scale = scale
        rig.send_record(message, rig.now)
    rig.step()
    assert rig.replicated() == [(1, 1), (1, 2), (1, 3)]
    rig.check_truth()


def test_ranks_that_scale_differently_are_never_published() -> None:
    rig = Rig()
    rig.begin()
    rig.send(rig.train())
    for message in rig.twin.records(1):
        message.gradient_scale = 0.5 + message.rank
        rig.send_record(message, rig.now)
    (lost,) = rig.lost()
    assert lost.gap.reason is GapReason.DIGEST_MISMATCH
    assert "scaled or skipped the gradient differently" in lost.gap.detail


STEPS = 4


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_interleaving_of_records_and_replicas_gives_the_same_points_or_a_named_gap(data: st.DataObject) -> None:
    """Records and replicas come in any order, twice, or not at all; the change at step 3 comes before both of it."""
    job = make_job(2)
    rig = Rig(job, Twin(job, make_layout(((5,), (3, 2))), "SGD", {"lr": 0.1}), window=STEPS + 1)
    rig.begin()
    things: list[pb.StepRecord | bytes] = []
    for step in range(1, STEPS + 1):
        if step == 3:
            regroup(rig.twin, "Adam", {"lr": 0.1})
            rig.group.change(announcement(rig))
        things += rig.train()
        things += rig.twin.records(1)
    lost = data.draw(st.sets(st.integers(0, len(things) - 1), max_size=data.draw(st.sampled_from([0, 0, 1, 2]))))
    order = data.draw(st.permutations([i for i in range(len(things)) if i not in lost]))
    repeated = data.draw(st.lists(st.sampled_from(order), max_size=5)) if order else []
    for index in [*order, *repeated]:
        thing = things[index]
        if isinstance(thing, bytes):
            rig.send([thing])
        else:
            rig.send_record(thing, rig.now)
    rig.check_truth()
    published = [step for _, step in rig.replicated()]
    assert published == list(range(1, len(published) + 1)), "in order, each once"
    if not lost:
        assert len(published) == STEPS
    for step in range(len(published) + 1, STEPS + 1):
        gap = rig.group.progress.explain(step)
        assert gap is not None
        assert gap.reason in (GapReason.LOST_BYTES, GapReason.SIDE_CHANNEL_MISSING, GapReason.RESYNC_PENDING)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_conflicting_repeats_are_refused_whenever_they_come(data: st.DataObject) -> None:
    job = make_job(2)
    rig = Rig(job, Twin(job, make_layout(((5,),)), "SGD", {"lr": 0.1}))
    rig.begin()
    told: list[pb.StepRecord] = []
    for _ in range(data.draw(st.integers(1, 3))):
        rig.send(rig.train())
        for message in rig.twin.records(1):
            rig.send_record(message, rig.now)
            told.append(message)
            other = pb.StepRecord()
            other.CopyFrom(data.draw(st.sampled_from(told)))
            other.loss += 1
            with pytest.raises(ShadowError, match="another record"):
                rig.send_record(other, rig.now)
    assert len(rig.replicated()) == rig.twin.step
    rig.check_truth()


@pytest.mark.parametrize("broken", ["a later change is malformed", "a layout needs more memory than there is"])
def test_a_rejoining_attach_with_an_unusable_change_changes_nothing(broken: str) -> None:
    rig = Rig(memory_limit=20_000)
    rig.begin()
    rig.step()
    frames = rig.train()
    rig.send(frames[:-1])
    before, events = rig.core.status("dp0"), list(rig.events)
    good = pb.ChangeRequest(group="dp0", epoch=2, effective_step=5, optimizer=rig.twin.attach().optimizer)
    bad = pb.ChangeRequest(group="dp0", epoch=2, effective_step=7, optimizer=rig.twin.attach().optimizer)
    if broken.startswith("a later"):
        bad.optimizer.groups[0].options_json = "{"
    else:
        bad.layout_json = make_layout(shapes=((50, 50), *SHAPES[1:]), version=2).to_json()
    message = rig.twin.attach(2, first_step=2, rejoin=True, current_step=2, changes=[good, bad])
    with pytest.raises(ShadowError, match=r"options_json|limit is 20000"):
        rig.group.attach(message)
    assert rig.core.status("dp0") == before
    assert rig.core.group("dp0").ledger.take_events() == []
    assert rig.events == events
    # The epoch before goes on as if nothing had been asked.
    rig.send(frames[-1:])
    rig.record()
    assert rig.replicated() == [(1, 1), (1, 2)]
    rig.check_truth()
