"""One data-parallel rank that really trains: scikit-learn's digits, an MLP, a torch optimizer.

Gradients live in flat buckets (the parameters' ``.grad`` are views of them), pre-divided so that the ring's
sum is the gradient of the mean loss over the global batch, as DistributedDataParallel does it. Whoever drives
the trainer all-reduces `buckets` between `compute` and `apply`. No clocks, no process-wide random numbers:
several ranks can live in one process.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from jobspec.dtypes import DType
from jobspec.layout import Layout, ParamSpec, build_layout
from jobspec.model import Group, Job
from jobspec.recovery_point import pack_tensors
from jobspec.sidechannel.digest import parameter_digest
from jobspec.sidechannel.side_channel_pb2 import (
    AttachRequest,
    OptimizerDescription,
    ParamGroup,
    StateObject,
    StepRecord,
)
from nccl_emu.digits import Digits, ShardedSampler, derived_seed
from nccl_emu.errors import TrainerError
from nccl_emu.mlp import build_mlp
from nccl_emu.optimizers import build_optimizer, build_scheduler, options_json, tensor_state
from nccl_emu.tensors import TORCH_DTYPES, bytes_of


def run_seed(seed: int, group: Group) -> int:
    """Return the seed of one group of a run, so that different groups train different models; group 0 has the run's."""
    return derived_seed(seed, "group", group.id) if group.id else seed


class DataParallelTrainer:
    """Model, optimizer, schedule, data and random numbers of one rank."""

    def __init__(self, job: Job, group: Group, rank: int, seed: int, digits: Digits | None = None) -> None:
        """Build the state before step 1; equal on all ranks but for the share of the data and the dropout.

        Args:
            job: the job, whose workload is trained.
            group: the DP group.
            rank: position in the group's ring.
            seed: of the run: weights, data order and dropout follow from it and the group's number.
            digits: the data set, to share it between ranks of one process; loaded where None.

        Raises:
            TrainerError: the workload cannot be built; names the field.
        """
        work = job.workload
        ranks = len(group.ring)
        if not 0 <= rank < ranks:
            raise TrainerError("rank", f"{rank}, group {group.name} has ranks 0..{ranks - 1}")
        self.job, self.group, self.rank, self.seed = job, group, rank, seed
        self.step = 0
        """Steps applied."""
        self.digits = digits or Digits.load()
        samples = len(self.digits.labels)
        own = run_seed(seed, group)
        self.sampler = ShardedSampler(samples, work.batch_size, ranks, rank, derived_seed(own, "data"))
        self.generator = torch.Generator().manual_seed(derived_seed(own, "dropout", rank))
        self.model = build_mlp(work.hidden, work.dropout, derived_seed(own, "weights"), self.generator)
        self.params = dict(self.model.named_parameters())
        self.optimizer = build_optimizer(work.optimizer, self.params.values())
        self.scheduler = build_scheduler(work.schedule, self.optimizer)
        specs = [
            ParamSpec(name, tuple(param.shape), DType.from_label(str(param.dtype)))
            for name, param in self.params.items()
        ]
        self.layout: Layout = build_layout(specs, work.bucket_bytes)
        self.buckets: list[torch.Tensor] = [
            torch.zeros(bucket.elements, dtype=TORCH_DTYPES[bucket.dtype]) for bucket in self.layout.buckets
        ]
        """Flat gradient buckets in the layout's order: to be all-reduced between `compute` and `apply`."""
        for slot in self.layout.slots:
            part = self.buckets[slot.bucket][slot.offset : slot.offset + slot.param.elements]
            self.params[slot.param.name].grad = part.view(slot.param.shape)
        self.loss = float("nan")
        """Mean loss of the rank's share in the last `compute`."""
        self._computed = False
        self._used_options: list[str] = []

    # --- training

    def compute(self, step: int) -> float:
        """Fill the buckets with this rank's share of the gradient, and return the mean loss of its share.

        Args:
            step: step to compute, the one after the last applied.

        Raises:
            TrainerError: another step is due.
        """
        self._require(step == self.step + 1 and not self._computed, "compute", step)
        indices = self.sampler.next()
        for bucket in self.buckets:
            bucket.zero_()
        self.model.train()
        loss = cross_entropy(self.model(self.digits.features[indices]), self.digits.labels[indices])
        # Weighted by the share (1/N where all are equal), so that the sum over ranks is the gradient of the
        # mean over the global batch.
        torch.autograd.backward(loss * (len(indices) / self.job.workload.batch_size))
        self._computed = True
        self.loss = loss.item()
        return self.loss

    def apply(self, step: int) -> None:
        """Take the optimizer step with the all-reduced buckets, then advance the schedule.

        Raises:
            TrainerError: `compute` was not called for this step.
        """
        self._require(step == self.step + 1 and self._computed, "apply", step)
        self._used_options = [options_json(group) for group in self.optimizer.param_groups]
        self.optimizer.step()
        self.scheduler.step()
        self.step = step
        self._computed = False

    @property
    def rate(self) -> float:
        """Learning rate that the last applied step used; the next step's before the first."""
        if not self._used_options:
            return float(self.optimizer.param_groups[0]["lr"])
        return float(json.loads(self._used_options[0])["lr"])

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of the whole data set that the model gets right, without dropout."""
        self.model.eval()
        guesses = self.model(self.digits.features).argmax(dim=1)
        return float((guesses == self.digits.labels).float().mean())

    # --- what the shadow is told

    def attach_request(self, epoch: int) -> AttachRequest:
        """Return the description of this communicator; its first step is the next one."""
        names = list(self.params)
        groups = [ParamGroup(params=names, options_json=options_json(g)) for g in self.optimizer.param_groups]
        return AttachRequest(
            job=self.job.name,
            group=self.group.name,
            epoch=epoch,
            first_step=self.step + 1,
            layout_json=self.layout.to_json(),
            optimizer=OptimizerDescription(name=self.job.workload.optimizer.name, groups=groups),
        )

    def step_record(self, step: int, epoch: int) -> StepRecord:
        """Return what this rank knows of the step that it applied last.

        Raises:
            TrainerError: `step` is not the last one, or the next one was begun already.
        """
        self._require(step == self.step and not self._computed and self._used_options != [], "step_record", step)
        objects = {name: StateObject(json=_json(value)) for name, value in self._objects().items()}
        objects["rng.torch"] = StateObject(raw=self.generator.get_state().numpy().tobytes())
        return StepRecord(
            group=self.group.name,
            epoch=epoch,
            step=step,
            rank=self.rank,
            layout_version=self.layout.version,
            group_options_json=self._used_options,
            loss=self.loss,
            objects=objects,
            parameter_digest=self.digest() if self.job.digests else b"",
        )

    def digest(self) -> bytes:
        """Return the SHA-256 of the parameters, as `jobspec.sidechannel.digest` defines it."""
        return parameter_digest((name, bytes_of(param)) for name, param in self.params.items())

    # --- state

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return copies of all tensors that the optimizer step changes, with the names of a recovery point.

        ``param/<parameter>`` and, once there is any, ``optim/<parameter>/<key>``.
        """
        tensors = {f"param/{name}": param.detach().clone() for name, param in self.params.items()}
        for name, param in self.params.items():
            for key, value in tensor_state(self.optimizer, param).items():
                tensors[f"optim/{name}/{key}"] = value.detach().clone()
        return tensors

    def state_safetensors(self) -> bytes:
        """Return `state_tensors` as the bytes of a safetensors file."""
        return pack_tensors(self.state_tensors())

    def _objects(self) -> dict[str, Any]:
        """Return the JSON objects of this rank that are valid now."""
        sampler = self.sampler
        return {
            "scheduler": self.scheduler.state_dict(),
            "data": {"epoch": sampler.epoch, "position": sampler.position, "seed": sampler.seed},
            "trainer": {
                "step": self.step,
                "seed": self.seed,
                "ranks": len(self.group.ring),
                "workload": self.job.workload.model_dump(mode="json"),
            },
        }

    def _require(self, good: bool, call: str, step: int) -> None:
        if not good:
            doing = f"step {self.step + 1} is computed" if self._computed else f"step {self.step} is applied"
            raise TrainerError(call, f"step {step} is not due: {doing}")


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
