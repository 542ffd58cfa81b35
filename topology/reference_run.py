"""Training without a network: the reference that every run must equal, whatever faults it has."""

from __future__ import annotations

from collections.abc import Iterator

from checkmate_common.stream.ring import chunk_range
from jobspec.model import Group, Job
from nccl_emu.training.digits import Digits
from nccl_emu.training.trainer import DataParallelTrainer


def reference_run(job: Job, group: Group, seed: int, steps: int) -> Iterator[tuple[int, list[DataParallelTrainer]]]:
    """Train `steps` steps; after each, yield its number and the trainers of all ranks.

    Gradients are summed in ring order: chunk c starts at rank c, and each next rank adds its share.

    Args:
        job: the job.
        group: the group to train.
        seed: seed of the run.
        steps: number of steps.
    """
    ranks = len(group.ring)
    digits = Digits.load()
    trainers = [DataParallelTrainer(job, group, rank, seed, digits) for rank in range(ranks)]
    for step in range(1, steps + 1):
        for trainer in trainers:
            trainer.prepare(step, 1)
        for trainer in trainers:
            trainer.compute(step)
        _all_reduce(group, trainers)
        for trainer in trainers:
            trainer.apply(step)
        yield step, trainers


def _all_reduce(group: Group, trainers: list[DataParallelTrainer]) -> None:
    ranks = len(trainers)
    for index, bucket in enumerate(trainers[0].layout.buckets):
        shares = [trainer.buckets[index].clone() for trainer in trainers]
        for channel in range(group.channels):
            for chunk in range(ranks):
                first, last = chunk_range(bucket.elements, group.channels, channel, ranks, chunk)
                total = shares[chunk][first:last].clone()
                for offset in range(1, ranks):
                    total = shares[(chunk + offset) % ranks][first:last] + total
                for trainer in trainers:
                    trainer.buckets[index][first:last] = total
