"""What a rank tells of its state, and changes of the optimizer as a training script makes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from checkmate_common.recovery.state import Origin, StateRule, default_state, inventory_digest
from jobspec.model import Job
from nccl_emu.errors import TrainerError
from nccl_emu.training.optimizers import rate_factor
from tests.nccl_emu.training_tools import EPOCH, Training, make_trainers, state_bytes, training_job


def names(trainer: Any) -> set[str]:
    return {item.name for item in trainer.framework_state().inventory()}


def test_everything_that_torch_would_save_is_listed() -> None:
    job = training_job(2, batch_norm=True, optimizer={"name": "Adam", "options": {"lr": 0.01}})
    training = Training(make_trainers(job))
    trainer = training.trainers[0]
    before = names(trainer)
    assert not any(name.startswith("optimizer.") for name in before)
    training.step()
    after = names(trainer)
    assert {f"model.{name}" for name in trainer.model.state_dict()} <= after
    saved = trainer.optimizer.state_dict()
    order = list(trainer.params)
    assert {f"optimizer.{order[i]}.{key}" for i, values in saved["state"].items() for key in values} == after - before
    for index, group in enumerate(saved["param_groups"]):
        assert {f"param_groups.{index}.{key}" for key in group} <= after
    assert {f"scheduler.{key}" for key in trainer.scheduler.state_dict()} <= after
    assert {"rng.torch", "data.epoch", "data.position", "trainer.seed"} <= after


def test_the_list_is_sent_when_it_changes_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nccl_emu.training.trainer.LIST_EVERY", 4)
    training = Training(make_trainers(training_job(2)))
    trainer = training.trainers[0]
    sent = []
    for step in range(1, 6):
        training.step()
        record = trainer.step_record(step, EPOCH)
        assert record.state_digest == inventory_digest(trainer.framework_state().inventory())
        if record.state_objects:
            assert inventory_digest(record.state_objects) == record.state_digest
            sent.append(step)
    assert sent == [1, 4]
    assert trainer.step_record(5, EPOCH + 1).state_objects, "a new communicator is told again"


def test_only_declared_objects_that_are_due_are_sent() -> None:
    job = training_job(2, batch_norm=True)
    rules = {
        **{name: rule for name, rule in default_state().items() if not name.startswith(("rng", "model.*.running"))},
        "model.*.running_mean": StateRule(origin=Origin.SNAPSHOT, every=2),
        "trainer.seed": StateRule(origin=Origin.CONSTANT),
    }
    job = job.model_copy(update={"state": rules})
    training = Training(make_trainers(job))
    sent = []
    for step in (1, 2):
        training.step()
        sent.append(training.trainers[0].step_record(step, EPOCH).objects)
    assert "rng.torch" not in sent[0]
    assert [("model.1.running_mean" in objects) for objects in sent] == [False, True]
    assert sent[1]["model.1.running_mean"].step == 2
    assert json.loads(sent[0]["trainer"].json).keys() == {"step", "ranks", "workload"}
    assert "state/trainer.seed" in training.trainers[0].state_tensors()


def test_frozen_parameters_are_constants_and_have_no_gradient() -> None:
    job = training_job(2, frozen=["0.*"])
    rules = {**default_state(), "model.0.*": StateRule(origin=Origin.CONSTANT)}
    training = Training(make_trainers(job.model_copy(update={"state": rules})))
    trainer = training.trainers[0]
    frozen = trainer.model.state_dict()["0.weight"].clone()
    training.step()
    assert torch.equal(trainer.state_tensors()["state/model.0.weight"], frozen)
    assert "0.weight" not in {slot.param.name for slot in trainer.layout.slots}


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        ({"frozen": ["nothing.*"]}, "workload.frozen"),
        ({"frozen": ["*"]}, "workload.frozen"),
        ({"changes": [{"step": 2, "train": ["0.*"]}]}, "workload.changes.train"),
        ({"changes": [{"step": 2, "optimizer": {"name": "SGD", "options": {"lr": -1}}}]}, "workload.optimizer.options"),
        (
            {"changes": [{"step": 2, "optimizer": {"name": "SGD", "options": {"beta": 1}}}]},
            "workload.optimizer.options",
        ),
    ],
)
def test_workloads_that_cannot_be_are_refused(workload: dict[str, Any], field: str) -> None:
    def run() -> None:
        training = Training(make_trainers(training_job(2, **workload)))
        training.step()
        training.trainers[0].prepare(2, EPOCH)

    with pytest.raises(TrainerError) as caught:
        run()
    assert field in str(caught.value)


def test_changes_are_in_order_and_change_something() -> None:
    for changes in (
        [{"step": 3, "train": ["0.*"]}, {"step": 2, "train": ["1.*"]}],
        [{"step": 2, "train": ["0.*"]}, {"step": 2, "train": ["1.*"]}],
        [{"step": 2}],
        [{"step": 1, "train": ["0.*"]}],
        [{"step": 2, "optimizer": {"name": "SGD"}, "options": {"lr": 1}}],
    ):
        plain = training_job(2).model_dump(mode="json")
        plain["workload"]["changes"] = changes
        with pytest.raises(ValidationError, match="workload"):
            Job.model_validate(plain)


def test_a_step_with_a_change_is_not_computed_without_it() -> None:
    job = training_job(2, changes=[{"step": 2, "optimizer": {"name": "SGD", "options": {"lr": 0.1}}}])
    training = Training(make_trainers(job))
    training.step()
    trainer = training.trainers[0]
    with pytest.raises(TrainerError, match="call prepare first"):
        trainer.compute(2)
    request = trainer.prepare(2, EPOCH)
    assert request is not None
    assert (request.effective_step, request.optimizer.name) == (2, "SGD")
    assert trainer.prepare(2, EPOCH) is None, "made once"
    trainer.compute(2)


def test_the_schedule_goes_on_at_its_place() -> None:
    changes = [{"step": 4, "optimizer": {"name": "SGD", "options": {"lr": 0.5}}}]
    job = training_job(2, changes=changes, schedule={"warmup_steps": 10, "total_steps": 100, "floor": 0.1})
    training = Training(make_trainers(job))
    for _ in range(3):
        training.step()
    for trainer in training.trainers:
        trainer.prepare(4, EPOCH)
    for step in (4, 5):
        training.step()
        assert training.trainers[0].rate == 0.5 * rate_factor(job.workload.schedule, step - 1)
    assert state_bytes(training.trainers[0]) == state_bytes(training.trainers[1])
    assert training.trainers[0].scheduler.state_dict()["last_epoch"] == 5
