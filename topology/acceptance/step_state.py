"""The state of all ranks after a step, in one form for trainers and recovery points, and its comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from checkmate_common.recovery.point import Manifest, RecoveryPoint
from jobspec.model import Job
from nccl_emu.training.trainer import DataParallelTrainer
from topology.compare import tensor_bytes
from topology.reference_run import reference_run

TensorData = tuple[str, tuple[int, ...], bytes]
"""Element type, shape and bytes of a tensor."""


@dataclass(frozen=True)
class StepState:
    """Every object of every rank's framework checkpoint after a step, named as in a recovery point."""

    step: int
    """The step."""
    tensors: Mapping[str, TensorData]
    """Tensors by name: ``param/``, ``optim/``, ``state/``, and each rank's own below ``rank/<rank>/``."""
    objects: tuple[str, ...]
    """Each rank's JSON objects (schedule, data position, ...) and loss, as canonical JSON."""
    options: str
    """The optimizer's class, parameter groups and options, as canonical JSON."""

    def difference(self, other: StepState) -> str | None:
        """Describe the first difference of another run's state; None if it is equal."""
        found = _first_difference(self.tensors, other.tensors)
        if found is not None:
            return f"step {self.step}: {found}"
        for rank, (mine, theirs) in enumerate(zip(self.objects, other.objects, strict=True)):
            if mine != theirs:
                return f"step {self.step}: rank {rank}: {theirs} instead of {mine}"
        return None if self.options == other.options else f"step {self.step}: {other.options} not {self.options}"


def step_state(trainers: Sequence[DataParallelTrainer]) -> StepState:
    """Return the state of all ranks of a group, which have just applied the same step.

    If ranks disagree on a shared tensor, that of the later rank is kept, so that the comparison with the reference run
    finds it.
    """
    step, job = trainers[0].step, trainers[0].job
    tensors: dict[str, TensorData] = {}
    objects = []
    for trainer in trainers:
        shared = {name: _tensor_data(tensor) for name, tensor in trainer.state_tensors().items()}
        tensors.update((name, data) for name, data in shared.items() if tensors.get(name) != data)
        own = trainer.framework_state().objects(job.state_manifest, step)
        objects_and_loss: dict[str, Any] = {"loss": trainer.loss}
        for name, sent in own.items():
            kind = sent.WhichOneof("value")
            if kind == "json":
                objects_and_loss[name] = json.loads(sent.json)
            elif kind == "raw":
                tensors[f"rank/{trainer.rank}/{name}"] = ("uint8", (len(sent.raw),), bytes(sent.raw))
            else:
                tensor = sent.tensor
                tensors[f"rank/{trainer.rank}/{name}"] = (tensor.dtype, tuple(tensor.shape), bytes(tensor.data))
        objects.append(_canonical(objects_and_loss))
    options = [json.loads(text) for text in trainers[0].used_options]
    used = {"name": trainers[0].optimizer_spec.name, "params": trainers[0].groups, "options": options}
    return StepState(step, tensors, tuple(objects), _canonical(used))


def point_state(point: RecoveryPoint) -> StepState:
    """Return the state that a recovery point holds."""
    manifest = point.manifest
    tensors = {name: _tensor_data(tensor) for name, tensor in point.tensors.items()}
    objects = tuple(_canonical({"loss": record.loss, **record.objects}) for record in manifest.records)
    return StepState(manifest.step, tensors, objects, _canonical(_optimizer(manifest)))


def point_difference(expected: StepState, point: RecoveryPoint, job: Job, epoch: int) -> str | None:
    """Describe how a recovery point differs from the expected state of its step; None if it is equal."""
    manifest = point.manifest
    said = (manifest.job, manifest.group, manifest.epoch, manifest.step, manifest.ranks)
    group = job.groups[0]
    wanted = (job.name, group.name, epoch, expected.step, len(group.ring))
    if said != wanted:
        return f"it says {said}, expected {wanted}"
    if len(manifest.records) != len(expected.objects):
        return f"it has records of {len(manifest.records)} ranks"
    wrong = next((entry for entry in manifest.objects if entry.step != expected.step), None)
    if wrong is not None:
        return f"its {wrong.name} is of step {wrong.step}"
    unlisted = point.tensors.keys() - {entry.name for entry in manifest.objects}
    if unlisted:
        return f"its {min(unlisted)} is not in the manifest"
    return expected.difference(point_state(point))


@lru_cache(maxsize=8)
def _reference(job_json: str, seed: int, steps: int) -> tuple[StepState, ...]:
    job = Job.model_validate_json(job_json)
    return tuple(step_state(trainers) for _, trainers in reference_run(job, job.groups[0], seed, steps))


def reference_states(job: Job, seed: int, steps: int) -> dict[int, StepState]:
    """Return the state after each step of a job's first group in a run without faults."""
    torch.set_num_threads(1)
    return {state.step: state for state in _reference(job.model_dump_json(), seed, steps)}


def _optimizer(manifest: Manifest) -> dict[str, Any]:
    groups = manifest.optimizer.groups
    return {
        "name": manifest.optimizer.name,
        "params": [group.params for group in groups],
        "options": [group.options for group in groups],
    }


def _tensor_data(tensor: torch.Tensor) -> TensorData:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor_bytes(tensor)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _first_difference(mine: Mapping[str, TensorData], theirs: Mapping[str, TensorData]) -> str | None:
    if mine.keys() != theirs.keys():
        missing, extra = sorted(mine.keys() - theirs.keys()), sorted(theirs.keys() - mine.keys())
        return f"tensors missing {missing[:3]}, unexpected {extra[:3]}"
    for name in sorted(mine):
        if mine[name][:2] != theirs[name][:2]:
            return f"{name} is {theirs[name][:2]} instead of {mine[name][:2]}"
        if mine[name] != theirs[name]:
            pairs = enumerate(zip(mine[name][2], theirs[name][2], strict=True))
            return f"{name} differs from byte {next(i for i, (a, b) in pairs if a != b)} on"
    return None
