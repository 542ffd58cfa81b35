"""Data-parallel training in one process, and the recovery point that a shadow would publish of it."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import torch

from checkmate_common.recovery.point import (
    MANIFEST_FILE,
    STATE_FILE,
    Manifest,
    OptimizerGroup,
    OptimizerState,
    Origin,
    RankRecord,
    RecoveryPoint,
    StateEntry,
    manifest_text,
    pack_tensors,
)
from checkmate_common.recovery.tensors import bytes_of
from jobspec.model import Job
from nccl_emu.ring.ring_runner import RingPlace, RingRunner
from nccl_emu.training.digits import Digits
from nccl_emu.training.trainer import DataParallelTrainer
from tests.nccl_emu.ring_tools import Pipes, make_job

DIGITS = Digits.load()
EPOCH = 3


def training_job(ranks: int = 4, digests: bool = False, **workload: Any) -> Job:
    work = {
        "hidden": [47, 25],
        "dropout": 0.1,
        "batch_size": 256,
        "bucket_bytes": 5000,
        "optimizer": {"name": "AdamW", "options": {"lr": 0.003, "weight_decay": 0.01}},
        "schedule": {"warmup_steps": 5, "total_steps": 100, "floor": 0.1},
        **workload,
    }
    return make_job(ranks, workload=work, digests=digests)


def make_trainers(job: Job, seed: int = 0) -> list[DataParallelTrainer]:
    group = job.groups[0]
    return [DataParallelTrainer(job, group, rank, seed, DIGITS) for rank in range(len(group.ring))]


class Training:
    """Ranks that all-reduce over byte pipes."""

    def __init__(self, trainers: list[DataParallelTrainer]) -> None:
        self.trainers = trainers
        first = trainers[0]
        self.runners = [RingRunner(RingPlace.of(t.job, t.group, t.rank, EPOCH), t.layout, t.step + 1) for t in trainers]
        self.pipes = Pipes(self.runners, random.Random(0))
        self.next_step = first.step + 1

    def step(self) -> float:
        """Train one step and return the mean loss."""
        step, self.next_step = self.next_step, self.next_step + 1
        losses = [trainer.compute(step) for trainer in self.trainers]
        for runner, trainer in zip(self.runners, self.trainers, strict=True):
            runner.start(step, trainer.buckets)
        self.pipes.run()
        for trainer in self.trainers:
            trainer.apply(step)
        return sum(losses) / len(losses)


def state_bytes(trainer: DataParallelTrainer) -> dict[str, bytes]:
    return {name: bytes(bytes_of(tensor)) for name, tensor in trainer.state_tensors().items()}


def publish(trainers: list[DataParallelTrainer]) -> RecoveryPoint:
    """Build what a shadow publishes after the last step, from the records and one rank's tensors."""
    step = trainers[0].step
    records = [trainer.step_record(step, EPOCH) for trainer in trainers]
    tensors = trainers[-1].state_tensors()
    entries = [StateEntry(name=name, origin=Origin.REPLAY, step=step) for name in tensors]
    told = []
    for record in records:
        objects = {}
        for name, value in record.objects.items():
            full = f"rank/{record.rank}/{name}"
            entries.append(StateEntry(name=full, origin=Origin.SIDE_CHANNEL, step=step, rank=record.rank))
            if value.WhichOneof("value") == "raw":
                tensors[full] = torch.frombuffer(bytearray(value.raw), dtype=torch.uint8)
            else:
                objects[name] = json.loads(value.json)
        told.append(RankRecord(rank=record.rank, loss=record.loss, objects=objects))
    request = trainers[0].attach_request(EPOCH)
    groups = [
        OptimizerGroup(params=list(group.params), options=json.loads(options))
        for group, options in zip(request.optimizer.groups, records[0].group_options_json, strict=True)
    ]
    state = pack_tensors(tensors)
    manifest = Manifest(
        job=request.job,
        group=request.group,
        epoch=EPOCH,
        step=step,
        ranks=len(trainers),
        layout=json.loads(request.layout_json),
        optimizer=OptimizerState(name=request.optimizer.name, groups=groups),
        records=told,
        objects=entries,
        state_bytes=len(state),
        state_sha256=hashlib.sha256(state).hexdigest(),
    )
    return RecoveryPoint(manifest, tensors)


def store(point: RecoveryPoint, directory: Path) -> None:
    """Write the two files of a published recovery point."""
    (directory / STATE_FILE).write_bytes(pack_tensors(point.tensors))
    (directory / MANIFEST_FILE).write_text(manifest_text(point.manifest))
