"""Every object of the trainer's state, and changes of the optimizer in mid-run: the shadow's point restarts the job."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from checkmate_common.recovery.reasons import GapReason
from checkmate_common.recovery.state import Origin, StateRule, default_state
from checkmate_common.sidechannel.side_channel_pb2 import ChangeRequest
from jobspec.model import Job, Workload
from nccl_emu.errors import SideChannelError
from nccl_emu.shadow_client.restore import restore_trainer
from tests.topology.simulation.simulated_job import World, small_job

FROZEN = {"model.0.*": StateRule(origin=Origin.CONSTANT)}


def job_with(state: dict[str, StateRule] | None = None, digests: bool = True, **workload: Any) -> Job:
    job = small_job(3, hidden=(8, 5))
    plain = {**job.workload.model_dump(mode="json"), **workload}
    rules = {**default_state(), **(state or {})}
    return job.model_copy(update={"workload": Workload.model_validate(plain), "state": rules, "digests": digests})


def run(job: Job, last: int, **options: Any) -> World:
    world = World(job, **options)
    world.ring.begin(world.fresh_trainers(), 1)
    world.train(last)
    return world


def full_state(world: World) -> list[dict[str, bytes]]:
    """Return all that the ranks hold: parameters, buffers, optimizer state, random numbers."""
    return [
        {
            **{f"model.{k}": v.numpy().tobytes() for k, v in trainer.model.state_dict().items()},
            **{k: v.numpy().tobytes() for k, v in trainer.state_tensors().items()},
            "rng": trainer.generator.get_state().numpy().tobytes(),
            "rates": repr([group["lr"] for group in trainer.optimizer.param_groups]).encode(),
            "schedule": repr(trainer.scheduler.state_dict()).encode(),
        }
        for trainer in world.ring.trainers
    ]


def restart_is_identical(job: Job, steps: tuple[int, ...], last: int) -> World:
    """Run to `last`; start anew from each of `steps` as published, go on to `last`, compare everything."""
    through = World(job)
    through.ring.begin(through.fresh_trainers(), 1)
    points = {}
    for step in range(1, last + 1):
        through.train(step)
        if step in steps:
            points[step] = through.side_channel.recovery_point("dp0", step)
    assert sorted(through.points) == list(range(1, last + 1)), through.losses
    assert set(through.published.values()) == {None}
    for step in steps:
        again = World(job)
        group = job.groups[0]
        reborn = [restore_trainer(points[step], job, group, rank, again.digits) for rank in range(3)]
        again.ring.begin(reborn, 2)
        again.train(last)
        assert sorted(again.points) == list(range(step + 1, last + 1)), again.losses
        assert set(again.published.values()) <= {None}
        assert full_state(again) == full_state(through), f"restarted from step {step}"
        again.close()
    through.close()
    return through


def test_buffers_clipping_and_frozen_parameters_restart_bit_for_bit() -> None:
    job = job_with(FROZEN, batch_norm=True, clip_norm=0.5, frozen=["0.*"])
    world = restart_is_identical(job, (2,), 4)
    manifest = world.side_channel.recovery_point("dp0").manifest
    by_name = {entry.name: entry for entry in manifest.objects}
    assert by_name["state/model.0.weight"].origin is Origin.CONSTANT
    for rank in range(3):
        assert by_name[f"rank/{rank}/model.1.running_mean"].origin is Origin.SIDE_CHANNEL
        assert by_name[f"rank/{rank}/model.1.num_batches_tracked"].rank == rank
    assert by_name["param/1.weight"].origin is by_name["optim/1.weight/exp_avg"].origin is Origin.REPLAY
    assert {entry.step for entry in manifest.objects} == {4}
    means = [world.ring.trainers[rank].model.state_dict()["1.running_mean"] for rank in range(2)]
    assert not torch.equal(*means), "each rank has buffers of its own"
    records = [point.snapshot.records[0] for point in world.points.values()]
    assert any(record.scale is not None and record.scale < 1 for record in records), "something was clipped"


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}])
@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "RMSprop", "Adagrad"])
def test_another_optimizer_class_from_a_step_on(name: str, options: dict[str, float]) -> None:
    if options and name not in ("SGD", "RMSprop"):
        options = {"weight_decay": 0.1}
    before = "SGD" if name in ("AdamW", "Adam") else "AdamW"
    job = job_with(
        optimizer={"name": before, "options": {"lr": 0.01}},
        changes=[{"step": 3, "optimizer": {"name": name, "options": {"lr": 0.02, **options}}}],
    )
    world = restart_is_identical(job, (2, 3), 5)
    assert [world.points[step].snapshot.optimizer.name for step in (2, 3)] == [before, name]


def test_options_of_the_same_class_keep_the_state() -> None:
    change = {"step": 3, "optimizer": {"name": "AdamW", "options": {"lr": 0.05, "weight_decay": 0.3}}}
    job = job_with(changes=[change])
    world = restart_is_identical(job, (2, 3), 4)
    tensors = world.points[3].snapshot.tensors
    assert tensors["optim/0.weight/step"] == 3, "moments and step counts go on"
    assert [p.snapshot.records[0].options[0]["weight_decay"] for p in world.points.values()] == [0.01, 0.01, 0.3, 0.3]


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
def test_frozen_parameters_become_a_group_of_their_own(name: str) -> None:
    """The layout changes on the streams that are open."""
    job = job_with(
        FROZEN,
        frozen=["0.*"],
        optimizer={"name": name, "options": {"lr": 0.01}},
        changes=[{"step": 3, "train": ["0.*"], "options": {"lr": 0.001}}],
    )
    world = restart_is_identical(job, (2, 3), 5)
    before, after = world.points[2].snapshot, world.points[3].snapshot
    assert (before.layout.version, after.layout.version) == (1, 2)
    assert set(before.constants) == {"state/model.0.weight", "state/model.0.bias"}
    assert not after.constants
    assert [group.params for group in after.optimizer.groups][1] == ("0.weight", "0.bias")


def test_layout_and_class_change_at_once_and_again() -> None:
    changes = [
        {"step": 3, "train": ["0.*"], "optimizer": {"name": "SGD", "options": {"lr": 0.1, "momentum": 0.9}}},
        {"step": 5, "optimizer": {"name": "SGD", "options": {"lr": 0.01}}},
        {"step": 6, "train": ["3.bias"], "optimizer": {"name": "Adam", "options": {"lr": 0.003}}},
    ]
    rules = {**FROZEN, "model.3.bias": StateRule(origin=Origin.CONSTANT)}
    job = job_with(rules, frozen=["0.*", "3.bias"], changes=changes)
    world = restart_is_identical(job, (2, 4, 6), 7)
    assert [world.points[s].snapshot.layout.version for s in (2, 3, 5, 6)] == [1, 2, 2, 3]


def test_an_object_that_nobody_declared_blocks_publication_by_name() -> None:
    rules = {name: rule for name, rule in default_state().items() if "running_var" not in name}
    job = job_with(batch_norm=True).model_copy(update={"state": rules})
    world = run(job, 3)
    assert not world.points
    assert [(loss.gap.step, loss.gap.reason) for loss in world.losses] == [
        (step, GapReason.UNDECLARED_STATE) for step in (1, 2, 3)
    ]
    assert "model.1.running_var is declared replay" in world.losses[0].gap.detail
    world.close()


def test_snapshots_make_recovery_points_of_their_steps_only() -> None:
    rules = {**default_state(), "model.*.running_*": StateRule(origin=Origin.SNAPSHOT, every=3)}
    for name in ("model.*.running_mean", "model.*.running_var"):
        del rules[name]
    job = job_with(batch_norm=True).model_copy(update={"state": rules})
    world = run(job, 6)
    assert sorted(world.points) == [3, 6]
    assert {loss.gap.reason for loss in world.losses} == {GapReason.SIDE_CHANNEL_MISSING}
    assert "captured every 3 steps" in world.losses[0].gap.detail
    entries = {entry.name: entry for entry in world.side_channel.recovery_point("dp0").manifest.objects}
    assert entries["rank/0/model.1.running_mean"].origin is Origin.SNAPSHOT
    assert set(world.published.values()) == {None}
    world.close()


@pytest.mark.parametrize("digests", [False, True])
def test_a_change_that_nobody_announced_is_never_published(digests: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    change = {"step": 3, "optimizer": {"name": "Adam", "options": {"lr": 0.05}}}
    job = job_with(digests=digests, changes=[change])
    world = World(job, resync=False)
    world.ring.begin(world.fresh_trainers(), 1)
    monkeypatch.setattr("nccl_emu.shadow_client.shadow_session.ShadowSession.change", lambda self, request: None)
    world.train(5)
    assert sorted(world.points) == [1, 2]
    assert set(world.published.values()) == {None}
    assert world.losses[0].gap.step == 3
    assert world.losses[0].gap.reason in (GapReason.DIGEST_MISMATCH, GapReason.SIDE_CHANNEL_MISSING)
    world.close()


def test_rates_that_change_unannounced_are_those_of_the_record() -> None:
    """Hyperparameters come with every step: a trainer that sets one is followed without any announcement."""
    world = World(job_with())
    world.ring.begin(world.fresh_trainers(), 1)
    world.train(2)
    for trainer in world.ring.trainers:
        trainer.optimizer.param_groups[0]["weight_decay"] = 0.7
    world.train(4)
    assert sorted(world.points) == [1, 2, 3, 4]
    assert set(world.published.values()) == {None}
    world.close()


def test_a_change_that_did_not_arrive_is_announced_again_and_resync_goes_on_from_there() -> None:
    change = {"step": 3, "train": ["0.*"], "optimizer": {"name": "SGD", "options": {"lr": 0.05}}}
    job = job_with(FROZEN, frozen=["0.*"], changes=[change])
    world = World(job)
    world.ring.begin(world.fresh_trainers(), 1)
    world.train(2)
    lost: list[int] = []
    real, world.side_channel.change = world.side_channel.change, _unreachable  # type: ignore[method-assign]
    for session in (sender.session for sender in world.ring.senders):
        session._on_lost = lambda step, reason: lost.append(step)
    world.train(3)
    world.side_channel.change = real  # type: ignore[method-assign]
    world.train(12)
    world.ring.end()
    assert lost == [3, 3], "the other ranks' records of step 3 were refused: the shadow knew no second group"
    assert 3 not in world.points
    assert world.points.keys() >= {1, 2, 12}, (sorted(world.points), world.losses)
    assert set(world.published.values()) == {None}
    assert world.points[12].snapshot.optimizer.name == "SGD"
    world.close()


def _unreachable(request: ChangeRequest) -> None:
    raise SideChannelError("Change", "UNAVAILABLE", "the shadow is not there")


def test_a_shadow_that_is_started_again_after_a_change_is_told_of_it() -> None:
    change = {"step": 3, "train": ["0.*"], "optimizer": {"name": "SGD", "options": {"lr": 0.05}}}
    job = job_with(FROZEN, frozen=["0.*"], changes=[change])
    world = World(job)
    world.ring.begin(world.fresh_trainers(), 1)
    world.train(4)
    world.restart_shadow()
    world.train(10)
    world.ring.end()
    assert world.points.keys() >= {1, 2, 3, 4, 10}, (sorted(world.points), world.losses)
    assert set(world.published.values()) == {None}
    assert world.points[10].snapshot.layout.version == 2
    world.close()
