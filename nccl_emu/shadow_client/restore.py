"""Build a trainer from a recovery point alone, or say exactly what is missing."""

from __future__ import annotations

import json
from typing import Any

import torch

from checkmate_common.recovery.point import Manifest, RecoveryPoint
from checkmate_common.recovery.state import SHARED_PREFIX
from checkmate_common.recovery.tensors import bytes_of
from checkmate_common.stream.layout import Layout
from jobspec.model import Group, Job
from nccl_emu.errors import TrainerError
from nccl_emu.training.digits import Digits
from nccl_emu.training.optimizers import expected_state, set_options
from nccl_emu.training.trainer import DataParallelTrainer

SECTIONS = ("scheduler", "data", "trainer")
"""JSON objects of a rank, each with several keys (`nccl_emu.training.framework_state`)."""


def restore_trainer(
    point: RecoveryPoint, job: Job, group: Group, rank: int, digits: Digits | None = None
) -> DataParallelTrainer:
    """Return a rank as it was after the recovery point's step: it continues as if it had never stopped.

    Args:
        point: the recovery point, the only source of state.
        job: the job that it was trained by.
        group: the DP group.
        rank: the rank to build.
        digits: the data set, to share it between ranks of one process; loaded where None.

    Raises:
        TrainerError: the recovery point is of another job, lacks an object, or does not fit the workload.
    """
    manifest = point.manifest
    _check_origin(manifest, job, group)
    objects = _objects_of(point, rank)
    told = _mapping(objects, "trainer")
    _check_workload(told, job)
    trainer = DataParallelTrainer(job, group, rank, _integer(told, "trainer", "seed"), digits)
    for change in job.workload.changes:
        if change.step <= manifest.step:
            trainer.change(change)
    _check_layout(manifest, trainer.layout)
    _restore_tensors(point, trainer)
    _restore_untrained(point, trainer)
    _restore_options(manifest, trainer)
    _restore_schedule(_mapping(objects, "scheduler"), manifest.step, trainer)
    data = _mapping(objects, "data")
    if _integer(data, "data", "seed") != trainer.sampler.seed:
        raise TrainerError("data.seed", "is not the one that the trainer's seed gives")
    trainer.sampler.move_to(_integer(data, "data", "epoch"), _integer(data, "data", "position"))
    _restore_generator(point, rank, trainer.generator)
    trainer.step = manifest.step
    return trainer


def _check_origin(manifest: Manifest, job: Job, group: Group) -> None:
    found = (manifest.job, manifest.group, manifest.ranks)
    expected = (job.name, group.name, len(group.ring))
    if found != expected:
        text = "job {}, group {}, {} ranks"
        raise TrainerError("recovery point", f"is of {text.format(*found)}; expected {text.format(*expected)}")


def _objects_of(point: RecoveryPoint, rank: int) -> dict[str, Any]:
    """Return the JSON objects of a rank, whether each came with the step, as a snapshot or as a constant."""
    record = next((record for record in point.manifest.records if record.rank == rank), None)
    if record is None:
        raise TrainerError("recovery point", f"it has no record of rank {rank}")
    objects: dict[str, Any] = {}
    for section in SECTIONS:
        told = record.objects.get(section, {})
        if not isinstance(told, dict):
            raise TrainerError(section, "is missing in the rank's record or is no JSON object")
        objects[section] = dict(told)
    for name, value in record.objects.items():
        section, _, key = name.partition(".")
        if section in SECTIONS and key:
            objects[section][key] = value
    for name, tensor in point.tensors.items():
        section, _, key = name.removeprefix(SHARED_PREFIX).partition(".")
        if name.startswith(SHARED_PREFIX) and section in SECTIONS and tensor.dtype is torch.uint8:
            try:
                objects[section][key] = json.loads(bytes(bytes_of(tensor)))
            except ValueError as error:
                raise TrainerError(name, f"is no JSON: {error}") from error
    return {section: values for section, values in objects.items() if values}


def _mapping(objects: dict[str, Any], name: str) -> dict[str, Any]:
    value = objects.get(name)
    if not isinstance(value, dict):
        raise TrainerError(name, "is missing in the rank's record or is no JSON object")
    return value


def _integer(values: dict[str, Any], name: str, key: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TrainerError(f"{name}.{key}", f"is {value!r}, expected an integer")
    return value


def _check_workload(told: dict[str, Any], job: Job) -> None:
    then, now = told.get("workload"), job.workload.model_dump(mode="json")
    if then != now:
        changed = [key for key in now if not isinstance(then, dict) or then.get(key) != now[key]]
        message = f"differs from the one that was trained in {', '.join(changed)}: it could not continue exactly"
        raise TrainerError("workload", message)


def _check_layout(manifest: Manifest, layout: Layout) -> None:
    try:
        saved = Layout.from_json(json.dumps(manifest.layout))
    except ValueError as error:
        raise TrainerError("layout", f"the recovery point's cannot be read: {error}") from error
    if saved.slots != layout.slots:
        raise TrainerError("layout", "the recovery point's parameters or buckets are not those of the workload")


def _restore_tensors(point: RecoveryPoint, trainer: DataParallelTrainer) -> None:
    spec = trainer.optimizer_spec
    known: set[str] = set()
    for name, param in trainer.params.items():
        # Copied into tensors that torch allocated: views of a file may lie at odd addresses, and kernels may
        # round differently there.
        param.data.copy_(_tensor(point, f"param/{name}", param.shape, param.dtype))
        known.add(f"param/{name}")
        for key, (shape, dtype) in expected_state(spec, param).items():
            full = f"optim/{name}/{key}"
            trainer.optimizer.state[param][key] = _tensor(point, full, shape, dtype).clone()
            known.add(full)
    elsewhere = ("rank/", SHARED_PREFIX)
    unknown = sorted(name for name in point.tensors if name not in known and not name.startswith(elsewhere))
    if unknown:
        raise TrainerError(unknown[0], "is in the recovery point, but the trainer has no such tensor")


def _restore_untrained(point: RecoveryPoint, trainer: DataParallelTrainer) -> None:
    """Restore frozen parameters and buffers: constants, or what this rank sent."""
    for name, target in trainer.model.state_dict().items():
        if name in trainer.params:
            continue
        shared = f"{SHARED_PREFIX}model.{name}"
        full = shared if shared in point.tensors else f"rank/{trainer.rank}/model.{name}"
        target.copy_(_tensor(point, full, target.shape, target.dtype))


def _tensor(point: RecoveryPoint, name: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    tensor = point.tensors.get(name)
    if tensor is None:
        raise TrainerError(name, "is missing in the recovery point")
    if tensor.shape != shape or tensor.dtype != dtype:
        found = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise TrainerError(name, f"is {found}, expected {dtype} {tuple(shape)}")
    return tensor


def _restore_options(manifest: Manifest, trainer: DataParallelTrainer) -> None:
    saved = manifest.optimizer
    groups = trainer.optimizer.param_groups
    if saved.name != trainer.optimizer_spec.name or len(saved.groups) != len(groups):
        raise TrainerError("optimizer", f"the recovery point's is {saved.name} with {len(saved.groups)} groups")
    for group, names, entry in zip(groups, trainer.groups, saved.groups, strict=True):
        if entry.params != names:
            raise TrainerError("optimizer", "the recovery point's groups hold other parameters")
        missing = sorted(set(group) - set(entry.options) - {"params"})
        if missing:
            raise TrainerError("optimizer", f"the recovery point lacks the options {', '.join(missing)}")
        set_options(group, entry.options)


def _restore_schedule(state: dict[str, Any], step: int, trainer: DataParallelTrainer) -> None:
    missing = sorted(set(trainer.scheduler.state_dict()) - set(state))
    if missing:
        raise TrainerError("scheduler", f"lacks {', '.join(missing)}")
    if state["last_epoch"] != step:
        raise TrainerError("scheduler", f"is of step {state['last_epoch']}, the recovery point of step {step}")
    trainer.scheduler.load_state_dict(dict(state))
    # The saved options hold the rate that the step used; the schedule has set the next one after it.
    for group, rate in zip(trainer.optimizer.param_groups, trainer.scheduler.get_last_lr(), strict=True):
        group["lr"] = rate


def _restore_generator(point: RecoveryPoint, rank: int, generator: torch.Generator) -> None:
    name = f"rank/{rank}/rng.torch"
    state = generator.get_state()
    try:
        generator.set_state(_tensor(point, name, state.shape, state.dtype).clone())
    except RuntimeError as error:
        raise TrainerError(name, f"is no state of a torch generator: {error}") from error
