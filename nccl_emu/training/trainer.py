"""One data-parallel rank that really trains: scikit-learn's digits, an MLP, a torch optimizer.

Gradients live in flat buckets (the parameters' ``.grad`` are views of them), pre-divided so that the ring's
sum is the gradient of the mean loss over the global batch, as DistributedDataParallel does it. Whoever drives
the trainer all-reduces `buckets` between `compute` and `apply`. No clocks, no process-wide random numbers:
several ranks can live in one process.
"""

from __future__ import annotations

import json

import torch
from torch.nn.functional import cross_entropy

from checkmate_common.recovery.point import pack_tensors
from checkmate_common.recovery.state import inventory_digest
from checkmate_common.recovery.tensors import TORCH_DTYPES, bytes_of
from checkmate_common.sidechannel.digest import optimizer_digest, parameter_digest
from checkmate_common.sidechannel.side_channel_pb2 import (
    AttachRequest,
    ChangeRequest,
    OptimizerDescription,
    ParamGroup,
    StepRecord,
)
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import Layout, ParamSpec, build_layout
from jobspec.model import Group, Job
from jobspec.workload import ChangeSpec, OptimizerSpec
from nccl_emu.errors import TrainerError
from nccl_emu.ring.regroup import matching, regrouped, resumed_schedule
from nccl_emu.training.digits import Digits, ShardedSampler, derived_seed
from nccl_emu.training.framework_state import FrameworkState
from nccl_emu.training.mlp import build_mlp
from nccl_emu.training.optimizers import build_optimizer, build_scheduler, options_json, tensor_state

LIST_EVERY = 32
"""Steps after which a rank lists its state objects again although they are the same."""


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
        weights = derived_seed(own, "weights")
        self.model = build_mlp(work.hidden, work.dropout, weights, self.generator, work.batch_norm)
        names = [name for name, _ in self.model.named_parameters()]
        self._frozen = set(matching(work.frozen, names, "workload.frozen"))
        self._train_all_but_frozen()
        self.optimizer_spec = work.optimizer
        """How the optimizer is at present."""
        self.optimizer = build_optimizer(work.optimizer, self.params.values())
        self.scheduler = build_scheduler(work.schedule, self.optimizer)
        self._lay_out(version=1)
        self.loss = float("nan")
        """Mean loss of the rank's share in the last `compute`."""
        self._computed = False
        self._used_options: list[str] = []
        self._scale: float | None = None
        self._prepared = 0
        self._listed: tuple[int, bytes] | None = None

    def _train_all_but_frozen(self) -> None:
        for name, param in self.model.named_parameters():
            param.requires_grad_(name not in self._frozen)
        self.params = {name: param for name, param in self.model.named_parameters() if name not in self._frozen}
        """Parameters that are trained, in the model's order."""
        if not self.params:
            raise TrainerError("workload.frozen", "freezes every parameter; expected one that is trained")

    def _lay_out(self, version: int) -> None:
        specs = [
            ParamSpec(name, tuple(param.shape), DType.from_label(str(param.dtype)))
            for name, param in self.params.items()
        ]
        self.layout: Layout = build_layout(specs, self.job.workload.bucket_bytes, version)
        self.buckets: list[torch.Tensor] = [
            torch.zeros(bucket.elements, dtype=TORCH_DTYPES[bucket.dtype]) for bucket in self.layout.buckets
        ]
        """Flat gradient buckets in the layout's order: to be all-reduced between `compute` and `apply`."""
        for slot in self.layout.slots:
            part = self.buckets[slot.bucket][slot.offset : slot.offset + slot.param.elements]
            self.params[slot.param.name].grad = part.view(slot.param.shape)

    # --- changes in the middle of the run

    def prepare(self, step: int, epoch: int) -> ChangeRequest | None:
        """Make the change that the workload has for `step`, before its gradient is computed.

        Returns:
            What rank 0 announces to the shadow before any rank begins the step, None where nothing changes. The
            ranks' layout may be another one then.

        Raises:
            TrainerError: another step is due, or the change does not fit the workload.
        """
        self._require(step == self.step + 1 and not self._computed, "prepare", step)
        change = self._due(step)
        if change is None:
            return None
        self.change(change)
        return self.change_request(epoch)

    def _due(self, step: int) -> ChangeSpec | None:
        changes = self.job.workload.changes
        return next((c for c in changes if c.step == step and self._prepared < step), None)

    def change(self, change: ChangeSpec) -> None:
        """Make `change` now; the schedule goes on at its place.

        Raises:
            TrainerError: the change does not fit the workload.
        """
        joining: list[str] = []
        if change.train:
            joining = matching(change.train, sorted(self._frozen), "workload.changes.train")
            self._frozen -= set(joining)
            self._train_all_but_frozen()
            joining = [name for name in self.params if name in joining]
        if change.optimizer is not None:
            same = change.optimizer.name == self.optimizer_spec.name
            options = {**(self.optimizer_spec.options if same else {}), **change.optimizer.options}
            self.optimizer_spec = OptimizerSpec(name=change.optimizer.name, options=options)
        self.optimizer = regrouped(self.optimizer, self.optimizer_spec, change, [self.params[n] for n in joining])
        self.scheduler = resumed_schedule(self.job.workload.schedule, self.optimizer, change.step - 1)
        if joining:
            self._lay_out(self.layout.version + 1)
        self._prepared = change.step

    @property
    def groups(self) -> list[list[str]]:
        """Names of the members of each parameter group."""
        names = {id(param): name for name, param in self.params.items()}
        return [[names[id(param)] for param in group["params"]] for group in self.optimizer.param_groups]

    # --- training

    def compute(self, step: int) -> float:
        """Fill the buckets with this rank's share of the gradient, and return the mean loss of its share.

        Args:
            step: step to compute, the one after the last applied.

        Raises:
            TrainerError: another step is due.
        """
        self._require(step == self.step + 1 and not self._computed, "compute", step)
        if self._due(step) is not None:
            raise TrainerError("compute", f"step {step} has a change: call prepare first")
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
        self._scale = self._clip()
        self.optimizer.step()
        self.scheduler.step()
        self.step = step
        self._computed = False

    def _clip(self) -> float | None:
        """Scale the gradient to the norm that it may have, as torch.nn.utils.clip_grad_norm_; return the factor."""
        bound = self.job.workload.clip_norm
        if bound is None:
            return None
        norm = torch.nn.utils.get_total_norm([param.grad for param in self.params.values() if param.grad is not None])
        scale = (bound / (norm + 1e-6)).clamp(max=1.0).item()
        for bucket in self.buckets:
            bucket.mul_(scale)
        return scale

    @property
    def rate(self) -> float:
        """Learning rate that the last applied step used; the next step's before the first."""
        if not self._used_options:
            return float(self.optimizer.param_groups[0]["lr"])
        return float(json.loads(self._used_options[0])["lr"])

    @property
    def used_options(self) -> tuple[str, ...]:
        """Hyperparameters that the last applied step used, canonical JSON for each parameter group."""
        return tuple(self._used_options)

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of the whole data set that the model gets right, without dropout."""
        self.model.eval()
        guesses = self.model(self.digits.features).argmax(dim=1)
        return float((guesses == self.digits.labels).float().mean())

    # --- what the shadow is told

    def attach_request(self, epoch: int) -> AttachRequest:
        """Return the description of this communicator; its first step is the next one."""
        return AttachRequest(
            job=self.job.name,
            group=self.group.name,
            epoch=epoch,
            first_step=self.step + 1,
            layout_json=self.layout.to_json(),
            optimizer=self._optimizer_description(),
            state_objects=self.framework_state().inventory(self.job.state_manifest),
        )

    def change_request(self, epoch: int) -> ChangeRequest:
        """Return the announcement of layout and optimizer as they are, in force from the next step on."""
        return ChangeRequest(
            group=self.group.name,
            epoch=epoch,
            effective_step=self.step + 1,
            layout_json=self.layout.to_json(),
            optimizer=self._optimizer_description(),
        )

    def _optimizer_description(self) -> OptimizerDescription:
        members = zip(self.groups, self.optimizer.param_groups, strict=True)
        groups = [ParamGroup(params=names, options_json=options_json(group)) for names, group in members]
        return OptimizerDescription(name=self.optimizer_spec.name, groups=groups)

    def step_record(self, step: int, epoch: int) -> StepRecord:
        """Return what this rank knows of the step that it applied last.

        Its state objects are listed when they are others than those listed last, and now and then, so that a
        record that was lost does not leave the shadow without the list.

        Raises:
            TrainerError: `step` is not the last one, or the next one was begun already.
        """
        self._require(step == self.step and not self._computed and self._used_options != [], "step_record", step)
        state = self.framework_state()
        listed = state.inventory()
        state_digest = inventory_digest(listed)
        fresh = self._listed != (epoch, state_digest) or step % LIST_EVERY == 0
        self._listed = (epoch, state_digest)
        return StepRecord(
            group=self.group.name,
            epoch=epoch,
            step=step,
            rank=self.rank,
            layout_version=self.layout.version,
            group_options_json=self._used_options,
            loss=self.loss,
            objects=state.objects(self.job.state_manifest, step),
            parameter_digest=self.digest() if self.job.digests else b"",
            optimizer_digest=self.optimizer_digest() if self.job.digests else b"",
            state_digest=state_digest,
            state_objects=listed if fresh else [],
            gradient_scale=self._scale,
        )

    def digest(self) -> bytes:
        """Return the SHA-256 of the parameters, as `checkmate_common.sidechannel.digest` defines it."""
        return parameter_digest((name, bytes_of(param)) for name, param in self.params.items())

    def optimizer_digest(self) -> bytes:
        """Return the SHA-256 of the optimizer's state, as `checkmate_common.sidechannel.digest` defines it."""
        return optimizer_digest(
            {
                f"optim/{name}/{key}": bytes_of(value.contiguous())
                for name, param in self.params.items()
                for key, value in tensor_state(self.optimizer, param).items()
            }
        )

    # --- state

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return copies of all tensors that the optimizer step changes, with the names of a recovery point.

        ``param/<parameter>`` and, once there is any, ``optim/<parameter>/<key>``; and what the job declares constant,
        ``state/<object>``.
        """
        tensors = {f"param/{name}": param.detach().clone() for name, param in self.params.items()}
        for name, param in self.params.items():
            for key, value in tensor_state(self.optimizer, param).items():
                tensors[f"optim/{name}/{key}"] = value.detach().clone()
        return {**tensors, **self.framework_state().constants(self.job.state_manifest)}

    def state_safetensors(self) -> bytes:
        """Return `state_tensors` as the bytes of a safetensors file."""
        return pack_tensors(self.state_tensors())

    def framework_state(self) -> FrameworkState:
        """Return everything that a checkpoint of this rank would hold now."""
        sampler = self.sampler
        sections = {
            "scheduler": self.scheduler.state_dict(),
            "data": {"epoch": sampler.epoch, "position": sampler.position, "seed": sampler.seed},
            "trainer": {
                "step": self.step,
                "seed": self.seed,
                "ranks": len(self.group.ring),
                "workload": self.job.workload.model_dump(mode="json"),
            },
        }
        raw = {"rng.torch": self.generator.get_state().numpy().tobytes()}
        return FrameworkState(self.model.state_dict(), self.params, self.optimizer, self.groups, sections, raw)

    def _require(self, good: bool, call: str, step: int) -> None:
        if not good:
            doing = f"step {self.step + 1} is computed" if self._computed else f"step {self.step} is applied"
            raise TrainerError(call, f"step {step} is not due: {doing}")
