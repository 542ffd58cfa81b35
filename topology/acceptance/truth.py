"""What training must give: the state of all ranks after each step of a run without faults, and comparison with it."""

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

Form = tuple[str, tuple[int, ...], bytes]
"""Element type, shape and bytes of a tensor."""


@dataclass(frozen=True)
class StepTruth:
    """Every object of the framework checkpoint of every rank after a step, in the form of a recovery point."""

    step: int
    """The step."""
    tensors: Mapping[str, Form]
    """By the names of a recovery point: ``param/``, ``optim/``, ``state/`` and each rank's own ``rank/<rank>/``."""
    objects: tuple[str, ...]
    """Each rank's JSON objects (schedule, place in the data, ...) and loss, as canonical JSON."""
    options: str
    """Class, groups and options of the optimizer, as canonical JSON."""

    def difference(self, other: StepTruth) -> str | None:
        """Say what differs first in the state of another run, None where nothing does."""
        found = _first(self.tensors, other.tensors)
        if found is not None:
            return f"step {self.step}: {found}"
        for rank, (mine, theirs) in enumerate(zip(self.objects, other.objects, strict=True)):
            if mine != theirs:
                return f"step {self.step}: rank {rank}: {theirs} instead of {mine}"
        return None if self.options == other.options else f"step {self.step}: {other.options} not {self.options}"


def truth_of(trainers: Sequence[DataParallelTrainer]) -> StepTruth:
    """Return the state of all ranks of a group, who have just applied the same step.

    Where ranks disagree about what they share, the shared tensor of a later rank takes the place of the first one's,
    so that the comparison with the run without faults finds it.
    """
    step, job = trainers[0].step, trainers[0].job
    tensors: dict[str, Form] = {}
    objects = []
    for trainer in trainers:
        shared = {name: _form(tensor) for name, tensor in trainer.state_tensors().items()}
        tensors.update((name, form) for name, form in shared.items() if tensors.get(name) != form)
        own = trainer.framework_state().objects(job.state_manifest, step)
        told: dict[str, Any] = {"loss": trainer.loss}
        for name, sent in own.items():
            kind = sent.WhichOneof("value")
            if kind == "json":
                told[name] = json.loads(sent.json)
            elif kind == "raw":
                tensors[f"rank/{trainer.rank}/{name}"] = ("uint8", (len(sent.raw),), bytes(sent.raw))
            else:
                tensor = sent.tensor
                tensors[f"rank/{trainer.rank}/{name}"] = (tensor.dtype, tuple(tensor.shape), bytes(tensor.data))
        objects.append(_canonical(told))
    options = [json.loads(text) for text in trainers[0].used_options]
    used = {"name": trainers[0].optimizer_spec.name, "params": trainers[0].groups, "options": options}
    return StepTruth(step, tensors, tuple(objects), _canonical(used))


def point_truth(point: RecoveryPoint) -> StepTruth:
    """Return what a recovery point says in the same form."""
    manifest = point.manifest
    tensors = {name: _form(tensor) for name, tensor in point.tensors.items()}
    objects = tuple(_canonical({"loss": record.loss, **record.objects}) for record in manifest.records)
    return StepTruth(manifest.step, tensors, objects, _canonical(_optimizer(manifest)))


def point_difference(truth: StepTruth, point: RecoveryPoint, job: Job, epoch: int) -> str | None:
    """Say what a recovery point has that is not the trainers' state of its step; None where all of it is."""
    manifest = point.manifest
    said = (manifest.job, manifest.group, manifest.epoch, manifest.step, manifest.ranks)
    group = job.groups[0]
    expected = (job.name, group.name, epoch, truth.step, len(group.ring))
    if said != expected:
        return f"it says {said}, expected {expected}"
    if len(manifest.records) != len(truth.objects):
        return f"it has records of {len(manifest.records)} ranks"
    wrong = next((entry for entry in manifest.objects if entry.step != truth.step), None)
    if wrong is not None:
        return f"its {wrong.name} is of step {wrong.step}"
    unlisted = point.tensors.keys() - {entry.name for entry in manifest.objects}
    if unlisted:
        return f"its {min(unlisted)} is not in the manifest"
    return truth.difference(point_truth(point))


@lru_cache(maxsize=8)
def _reference(job_json: str, seed: int, steps: int) -> tuple[StepTruth, ...]:
    job = Job.model_validate_json(job_json)
    return tuple(truth_of(trainers) for _, trainers in reference_run(job, job.groups[0], seed, steps))


def reference_truth(job: Job, seed: int, steps: int) -> dict[int, StepTruth]:
    """Return the truth of each step of the run without faults of a job's first group."""
    torch.set_num_threads(1)
    return {truth.step: truth for truth in _reference(job.model_dump_json(), seed, steps)}


def _optimizer(manifest: Manifest) -> dict[str, Any]:
    groups = manifest.optimizer.groups
    return {
        "name": manifest.optimizer.name,
        "params": [group.params for group in groups],
        "options": [group.options for group in groups],
    }


def _form(tensor: torch.Tensor) -> Form:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor_bytes(tensor)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _first(mine: Mapping[str, Form], theirs: Mapping[str, Form]) -> str | None:
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
