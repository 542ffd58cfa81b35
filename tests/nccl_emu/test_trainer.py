"""The data-parallel trainer: several ranks in one process, and restarts from a recovery point alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

from checkmate_common.recovery.point import RecoveryPoint, read_recovery_point
from checkmate_common.recovery.tensors import bytes_of
from checkmate_common.sidechannel.digest import parameter_digest
from checkmate_common.stream.layout import Layout
from jobspec.model import Job, ScheduleSpec
from nccl_emu.errors import TrainerError
from nccl_emu.shadow_client.restore import restore_trainer
from nccl_emu.training.digits import ShardedSampler
from nccl_emu.training.optimizers import rate_factor
from nccl_emu.training.trainer import DataParallelTrainer
from tests.nccl_emu.training_tools import (
    DIGITS,
    EPOCH,
    Training,
    make_trainers,
    publish,
    state_bytes,
    store,
    training_job,
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_learn_and_stay_equal_bit_for_bit(ranks: int) -> None:
    optimizer = {"name": "AdamW", "options": {"lr": 0.02, "weight_decay": 0.01}}
    training = Training(make_trainers(training_job(ranks, optimizer=optimizer)))
    trainers = training.trainers
    assert len(trainers[0].buckets) > 2
    assert any(len(bucket) % ranks for bucket in trainers[0].buckets)
    before = trainers[0].accuracy()
    losses = []
    for _ in range(30):
        losses.append(training.step())
        first, *others = map(state_bytes, trainers)
        assert all(other == first for other in others)
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])
    assert before < 0.3
    assert trainers[0].accuracy() > 0.9


@pytest.mark.parametrize("ranks", [3, 4])
def test_the_rings_sum_is_the_gradient_of_the_global_mean(ranks: int) -> None:
    """256 samples do not divide by 3: the shares are weighted."""
    trainers = make_trainers(training_job(ranks, dropout=0.0))
    for trainer in trainers:
        trainer.compute(1)
    sums = [torch.stack(parts).sum(0) for parts in zip(*(t.buckets for t in trainers), strict=True)]
    whole = make_trainers(training_job(ranks, dropout=0.0))[0]
    batch = torch.cat([ShardedSampler(1797, 256, ranks, r, whole.sampler.seed).next() for r in range(ranks)])
    assert len(batch) == len(set(batch.tolist())) == 256
    whole.model.train()
    logits = whole.model(DIGITS.features[batch])
    torch.autograd.backward(torch.nn.functional.cross_entropy(logits, DIGITS.labels[batch]))
    for total, expected in zip(sums, whole.buckets, strict=True):
        torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-7)


def test_ranks_differ_in_data_and_dropout_but_not_in_weights() -> None:
    a, b = make_trainers(training_job(2))
    assert state_bytes(a) == state_bytes(b)
    assert not torch.equal(a.generator.get_state(), b.generator.get_state())
    a.compute(1)
    b.compute(1)
    assert not torch.equal(a.buckets[0], b.buckets[0])
    other = DataParallelTrainer(a.job, a.group, 0, 1, DIGITS)
    assert state_bytes(other) != state_bytes(a)


def test_the_process_wide_generator_neither_matters_nor_changes() -> None:
    before = torch.manual_seed(5).get_state()
    calm = Training(make_trainers(training_job(2)))
    for _ in range(3):
        calm.step()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    noisy = Training(make_trainers(training_job(2)))
    for _ in range(3):
        torch.rand(7)
        noisy.step()
    assert state_bytes(calm.trainers[0]) == state_bytes(noisy.trainers[0])


def test_gradients_stay_views_of_the_buckets() -> None:
    training = Training(make_trainers(training_job(2)))
    trainer = training.trainers[0]
    for _ in range(2):
        training.step()
        for slot in trainer.layout.slots:
            grad = trainer.params[slot.param.name].grad
            assert grad is not None
            bucket = trainer.buckets[slot.bucket]
            assert grad.data_ptr() == bucket.data_ptr() + slot.offset * bucket.element_size()


OPTIMIZERS = [
    {"name": "AdamW", "options": {"lr": 0.003, "weight_decay": 0.01, "betas": [0.9, 0.98]}},
    {"name": "Adam", "options": {"lr": 0.003, "amsgrad": True}},
    {"name": "SGD", "options": {"lr": 0.05, "momentum": 0.9, "nesterov": True}},
    {"name": "SGD", "options": {"lr": 0.05}},
    {"name": "RMSprop", "options": {"lr": 0.001, "centered": True, "momentum": 0.5}},
    {"name": "Adagrad", "options": {"lr": 0.01}},
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: "-".join([o["name"], *o["options"]]))
def test_a_restart_from_the_recovery_point_alone_continues_bit_for_bit(
    optimizer: dict[str, Any], tmp_path: Path
) -> None:
    """The cut lies in the second pass over the data (7 batches a pass), the end in the third."""
    job = training_job(3, optimizer=optimizer)
    through = Training(make_trainers(job, seed=11))
    for _ in range(10):
        through.step()
    store(publish(through.trainers), tmp_path)
    point = read_recovery_point(tmp_path)
    reborn = Training([restore_trainer(point, job, job.groups[0], rank, DIGITS) for rank in range(3)])
    assert [trainer.step for trainer in reborn.trainers] == [10, 10, 10]
    for old, new in zip(through.trainers, reborn.trainers, strict=True):
        assert state_bytes(old) == state_bytes(new)
    for _ in range(8):
        assert through.step() == reborn.step()
    assert through.trainers[0].sampler.epoch == 2
    for old, new in zip(through.trainers, reborn.trainers, strict=True):
        assert state_bytes(old) == state_bytes(new)
        a, b = old.step_record(18, EPOCH), new.step_record(18, EPOCH)
        assert len(b.state_objects) > 20, "a new process lists its objects with its first record"
        b.ClearField("state_objects")
        assert a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)


def test_a_recovery_point_does_not_change_with_later_steps() -> None:
    training = Training(make_trainers(training_job(2)))
    training.step()
    kept = training.trainers[0].state_tensors()
    copies = {name: tensor.clone() for name, tensor in kept.items()}
    training.step()
    assert all(torch.equal(kept[name], copy) for name, copy in copies.items())


@pytest.fixture(scope="module")
def sound() -> tuple[Job, RecoveryPoint]:
    job = training_job(2)
    training = Training(make_trainers(job))
    for _ in range(2):
        training.step()
    return job, publish(training.trainers)


def change(point: RecoveryPoint, what: str) -> RecoveryPoint:
    manifest, tensors = point.manifest, dict(point.tensors)
    records = manifest.records

    def with_objects(**objects: Any) -> RecoveryPoint:
        kept = {k: v for k, v in {**records[0].objects, **objects}.items() if v is not None}
        changed = [records[0].model_copy(update={"objects": kept}), *records[1:]]
        return RecoveryPoint(manifest.model_copy(update={"records": changed}), tensors)

    told = records[0].objects
    group = manifest.optimizer.groups[0]
    match what:
        case "job" | "group":
            return RecoveryPoint(manifest.model_copy(update={what: "other"}), tensors)
        case "ranks":
            return RecoveryPoint(manifest.model_copy(update={"ranks": 3}), tensors)
        case "record":
            return RecoveryPoint(manifest.model_copy(update={"records": records[1:]}), tensors)
        case "scheduler" | "data" | "trainer":
            return with_objects(**{what: None})
        case "scheduler step":
            return with_objects(scheduler={**told["scheduler"], "last_epoch": 1})
        case "scheduler field":
            return with_objects(scheduler={"last_epoch": 2})
        case "data position":
            return with_objects(data={**told["data"], "position": 5000})
        case "data seed":
            return with_objects(data={**told["data"], "seed": 1})
        case "seed":
            return with_objects(trainer={**told["trainer"], "seed": "x"})
        case "workload":
            return with_objects(
                trainer={**told["trainer"], "workload": {**told["trainer"]["workload"], "dropout": 0.5}}
            )
        case "layout":
            return RecoveryPoint(manifest.model_copy(update={"layout": {"version": 1}}), tensors)
        case "param" | "moment" | "generator":
            del tensors[NAMES[what]]
        case "param shape":
            tensors[NAMES["param"]] = torch.zeros(3)
        case "moment type":
            tensors[NAMES["moment"]] = tensors[NAMES["moment"]].double()
        case "generator state":
            tensors[NAMES["generator"]] = torch.full_like(tensors[NAMES["generator"]], 255)
        case "extra":
            tensors["optim/0.weight/other"] = torch.zeros(1)
        case "optimizer":
            optimizer = manifest.optimizer.model_copy(update={"name": "SGD"})
            return RecoveryPoint(manifest.model_copy(update={"optimizer": optimizer}), tensors)
        case "option":
            options = {k: v for k, v in group.options.items() if k != "betas"}
            optimizer = manifest.optimizer.model_copy(
                update={"groups": [group.model_copy(update={"options": options})]}
            )
            return RecoveryPoint(manifest.model_copy(update={"optimizer": optimizer}), tensors)
        case _:
            raise AssertionError(what)
    return replace(point, tensors=tensors)


NAMES = {"param": "param/0.weight", "moment": "optim/3.bias/exp_avg", "generator": "rank/0/rng.torch"}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("job", "recovery point: is of job other, group dp0, 2 ranks; expected job test, group dp0, 2 ranks"),
        ("group", "group other"),
        ("ranks", "3 ranks"),
        ("record", "no record of rank 0"),
        ("scheduler", "scheduler: is missing"),
        ("scheduler step", "scheduler: is of step 1, the recovery point of step 2"),
        ("scheduler field", "scheduler: lacks .*base_lrs"),
        ("data", "data: is missing"),
        ("data position", "data: epoch 0, position 5000"),
        ("data seed", r"data\.seed"),
        ("trainer", "trainer: is missing"),
        ("seed", r"trainer\.seed: is 'x', expected an integer"),
        ("workload", "workload: differs from the one that was trained in dropout"),
        ("layout", "layout: "),
        ("param", "param/0.weight: is missing"),
        ("param shape", r"param/0.weight: is torch.float32 \(3,\), expected torch.float32 \(47, 64\)"),
        ("moment", "optim/3.bias/exp_avg: is missing"),
        ("moment type", "optim/3.bias/exp_avg: is torch.float64"),
        ("extra", "optim/0.weight/other: is in the recovery point, but"),
        ("generator", "rank/0/rng.torch: is missing"),
        ("generator state", "rank/0/rng.torch: is no state of a torch generator"),
        ("optimizer", "optimizer: the recovery point's is SGD"),
        ("option", "optimizer: the recovery point lacks the options betas"),
    ],
)
def test_a_recovery_point_that_does_not_fit_is_refused(
    sound: tuple[Job, RecoveryPoint], what: str, message: str
) -> None:
    job, point = sound
    assert restore_trainer(point, job, job.groups[0], 0, DIGITS).step == 2
    with pytest.raises(TrainerError, match=message):
        restore_trainer(change(point, what), job, job.groups[0], 0, DIGITS)


def test_the_record_of_a_step_holds_what_that_step_used() -> None:
    job = training_job(2, digests=True)
    training = Training(make_trainers(job))
    trainer = training.trainers[1]
    rates = []
    for step in range(1, 9):
        training.step()
        record = trainer.step_record(step, EPOCH)
        (options,) = map(json.loads, record.group_options_json)
        assert options["lr"] == trainer.rate == 0.003 * rate_factor(job.workload.schedule, step - 1)
        rates.append(options["lr"])
    assert rates[:5] == sorted(rates[:5])
    assert rates[5] >= rates[6] > rates[7]
    assert (record.group, record.epoch, record.step, record.rank) == ("dp0", EPOCH, 8, 1)
    assert record.layout_version == 1
    assert record.loss == trainer.loss
    assert set(record.objects) == {"scheduler", "rng.torch", "data", "trainer"}
    assert json.loads(record.objects["data"].json)["position"] == 256  # 7 batches make a data epoch
    assert json.loads(record.objects["data"].json)["epoch"] == 1
    assert record.objects["rng.torch"].raw == bytes(bytes_of(trainer.generator.get_state()))
    params = [(name, bytes_of(param)) for name, param in trainer.model.named_parameters()]
    assert record.parameter_digest == parameter_digest(params)
    assert training.trainers[0].step_record(8, EPOCH).parameter_digest == record.parameter_digest
    assert make_trainers(training_job(2))[0].job.digests is False


def test_the_attach_request_describes_layout_and_optimizer() -> None:
    trainer = make_trainers(training_job(2))[0]
    request = trainer.attach_request(4)
    assert (request.job, request.group, request.epoch, request.first_step) == ("test", "dp0", 4, 1)
    assert Layout.from_json(request.layout_json) == trainer.layout
    assert request.optimizer.name == "AdamW"
    (group,) = request.optimizer.groups
    assert list(group.params) == [name for name, _ in trainer.model.named_parameters()]
    options = json.loads(group.options_json)
    assert options["betas"] == [0.9, 0.999]
    assert "params" not in options
    assert set(trainer.state_tensors()) == {f"param/{name}" for name in group.params}


def test_calls_out_of_order_are_refused() -> None:
    trainer = make_trainers(training_job(2))[0]
    with pytest.raises(TrainerError, match="apply: step 1 is not due: step 0 is applied"):
        trainer.apply(1)
    with pytest.raises(TrainerError, match="compute: step 2 is not due"):
        trainer.compute(2)
    with pytest.raises(TrainerError, match="step_record"):
        trainer.step_record(0, 1)
    trainer.compute(1)
    with pytest.raises(TrainerError, match="compute: step 1 is not due: step 1 is computed"):
        trainer.compute(1)
    trainer.apply(1)
    trainer.step_record(1, 1)
    trainer.compute(2)
    with pytest.raises(TrainerError, match="step_record"):
        trainer.step_record(1, 1)


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        ({"batch_size": 1}, "workload.batch_size"),
        ({"batch_size": 1798}, "workload.batch_size"),
        ({"optimizer": {"name": "SGD", "options": {"beta": 1}}}, "workload.optimizer.options"),
        ({"optimizer": {"name": "AdamW", "options": {"lr": -1}}}, "workload.optimizer.options"),
    ],
)
def test_a_workload_that_cannot_be_built_names_its_field(workload: dict[str, Any], field: str) -> None:
    with pytest.raises(TrainerError) as caught:
        make_trainers(training_job(2, **workload))
    assert caught.value.field == field


def test_a_pass_over_the_data_sees_no_sample_twice_and_ranks_share_none() -> None:
    samplers = [ShardedSampler(1797, 256, 3, rank, 5) for rank in range(3)]
    passes: list[list[int]] = []
    for _ in range(2):
        seen = [n for _ in range(7) for sampler in samplers for n in sampler.next().tolist()]
        assert len(set(seen)) == len(seen) == 7 * 256
        passes.append(seen)
    assert passes[0] != passes[1]
    assert {sampler.epoch for sampler in samplers} == {1}


def test_the_data_set_is_scikit_learns_standardised() -> None:
    raw, labels = load_digits(return_X_y=True)
    assert DIGITS.labels.tolist() == labels.tolist()
    assert DIGITS.features.shape == (1797, 64)
    assert DIGITS.features.dtype == torch.float32
    varies = torch.from_numpy(raw.std(axis=0) > 0)
    torch.testing.assert_close(DIGITS.features.mean(0), torch.zeros(64), atol=1e-5, rtol=0)
    spread = DIGITS.features.std(0, correction=0)
    torch.testing.assert_close(spread, varies.float(), atol=1e-4, rtol=0)
    pixel, other = torch.from_numpy(raw[:, 2]), DIGITS.features[:, 2].double()
    assert torch.corrcoef(torch.stack([pixel, other]))[0, 1] > 0.999999


def test_the_schedule_warms_up_and_ends_at_its_floor() -> None:
    spec = ScheduleSpec(warmup_steps=4, total_steps=14, floor=0.2)
    factors = [rate_factor(spec, completed) for completed in range(20)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert math.isclose(factors[9], 0.6)
    assert all(math.isclose(factor, 0.2) for factor in factors[14:])
    assert rate_factor(ScheduleSpec(), 0) == 1.0
