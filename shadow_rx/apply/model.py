"""The live copy of a model: the trainer's own optimizer class, stepped with gradients from the wire.

Each parameter is a tensor of the trainer's shape (never a slice of one flat tensor): an elementwise kernel
may round differently in its vector body and in its tail, so equal lengths are what makes results equal bit
for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch

from checkmate_common.recovery.tensors import TORCH_DTYPES, bytes_of
from checkmate_common.sidechannel.digest import optimizer_digest, parameter_digest
from checkmate_common.stream.layout import Layout
from placement.plan import ALIGNMENT, bucket_offsets
from shadow_rx.apply.buffer_pool import BufferPool
from shadow_rx.errors import invalid
from shadow_rx.trainer.description import GroupPlan, OptimizerPlan, Update, new_optimizer, state_keys
from shadow_rx.trainer.rank_step import RankStep, reported_digest, reported_optimizer_digest

Tensors = dict[str, torch.Tensor]
"""``param/<parameter>`` and ``optim/<parameter>/<key>``."""


class LiveModel:
    """Parameters and optimizer state of one group after one step."""

    def __init__(self, layout: Layout, plan: OptimizerPlan, state: Tensors) -> None:
        """Start from `state`, which is copied.

        Raises:
            ShadowError: a tensor is missing, not declared, or has another shape or element type than expected.
        """
        self.plan = plan
        self._layout = layout
        self._names = [slot.param.name for slot in layout.slots]
        self._params: Tensors = {}
        optim = _split(state, set(self._names))
        for slot in layout.slots:
            name, shape, dtype = slot.param.name, slot.param.shape, TORCH_DTYPES[slot.param.dtype]
            tensor = state.get(f"param/{name}")
            if tensor is None:
                raise invalid("data", f"tensor 'param/{name}' is missing")
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                found = f"{tensor.dtype} {tuple(tensor.shape)}"
                raise invalid("data", f"tensor 'param/{name}' is {found}, the layout says {dtype} {shape}")
            self._params[name] = _copy(tensor)
        for index, group in enumerate(plan.groups):
            self._check_state(index, group, optim)
        groups = [{"params": [self._params[n] for n in g.params], **g.options} for g in plan.groups]
        self._optimizer = new_optimizer(plan, groups)
        for name, values in optim.items():
            self._optimizer.state[self._params[name]] = {key: _copy(value) for key, value in values.items()}
        self._pool = BufferPool(0)

    def _check_state(self, index: int, group: GroupPlan, optim: dict[str, Tensors]) -> None:
        """Refuse optimizer state that is torn: a group has all of its state, or none (a new optimizer)."""
        given = [name for name in group.params if optim.get(name)]
        if not given:
            return
        dtype = self._params[given[0]].dtype
        try:
            expected = state_keys(self.plan.name, group.options, dtype)
        except Exception as error:  # torch.optim refuses values with several exception types
            raise invalid("data", f"torch.optim.{self.plan.name} cannot step {dtype} parameters: {error}") from error
        for name in group.params:
            state = optim.get(name, {})
            if set(state) != set(expected):
                raise invalid(
                    "data",
                    f"optimizer state of parameter {name!r} (group {index}) has {sorted(state)}, "
                    f"torch.optim.{self.plan.name} keeps {sorted(expected)} after a step",
                )
            param = self._params[name]
            for key, is_scalar in expected.items():
                shape = () if is_scalar else tuple(param.shape)
                if tuple(state[key].shape) != shape or not state[key].is_floating_point():
                    found = f"{state[key].dtype} {tuple(state[key].shape)}"
                    raise invalid("data", f"tensor 'optim/{name}/{key}' is {found}, expected floating point {shape}")

    def step(self, memory: bytearray | memoryview, offsets: Sequence[int], update: Update) -> None:
        """Advance by one step with a gradient, as the ranks did it (`update`).

        Raises whatever torch raises, and may then have changed some parameters and not others: the caller
        restores the tensors of the step before. (It holds them anyway: every applied step is copied for
        publication.)

        Args:
            memory: the gradient's buckets, little-endian; read only.
            offsets: first byte of each bucket in `memory`, as `bucket_offsets` says.
            update: what the step did besides using the gradient.
        """
        flat = torch.frombuffer(memory, dtype=torch.uint8) if memory else torch.empty(0, dtype=torch.uint8)
        for place in self._layout.slots:
            param = self._params[place.param.name]
            start = offsets[place.bucket] + place.offset * place.param.dtype.itemsize
            end = start + place.param.elements * place.param.dtype.itemsize
            grad = flat[start:end].view(param.dtype).view(param.shape)
            # As the ranks' grad.mul_(scale): the slot's own bytes stay, they may go into the log.
            param.grad = grad if update.scale is None else grad * update.scale
        try:
            for group, changed in zip(self._optimizer.param_groups, update.options, strict=True):
                group.update(changed)
            if not update.skipped:
                self._optimizer.step()
        finally:
            # The slot's memory is used again for a later step.
            for param in self._params.values():
                param.grad = None

    def step_with(self, gradient: bytes | bytearray, update: Update) -> None:
        """Advance by one step with a stored gradient: buckets in layout order, without padding (`Snapshot.gradient`).

        Raises:
            ValueError: the gradient has another length than the layout says.
            Exception: whatever torch raises, see `step`.
        """
        if len(gradient) != self._layout.nbytes:
            raise ValueError(f"a gradient of {len(gradient)} bytes, the layout has {self._layout.nbytes}")
        # Laid out as in a slot: where a tensor lies must not make a difference to any kernel.
        offsets, size = bucket_offsets(self._layout)
        memory, position = bytearray(size), 0
        for start, bucket in zip(offsets, self._layout.buckets, strict=True):
            memory[start : start + bucket.nbytes] = gradient[position : position + bucket.nbytes]
            position += bucket.nbytes
        self.step(memory, offsets, update)

    def snapshot(self) -> Tensors:
        """Return copies of all tensors: what is published must never change with the next step.

        Raises:
            ShadowError: the optimizer keeps an object that is no tensor and so has no place in a recovery point.
        """
        tensors: Tensors = {f"param/{name}": param for name, param in self._params.items()}
        for name, param in self._params.items():
            for key, value in self._optimizer.state.get(param, {}).items():
                if torch.is_tensor(value):
                    tensors[f"optim/{name}/{key}"] = value
                elif value is not None:
                    raise invalid(f"optim/{name}/{key}", f"is a {type(value).__name__}, expected a tensor")
        ends = list(accumulate(-(-value.nbytes // ALIGNMENT) * ALIGNMENT for value in tensors.values()))
        if ends[-1] != self._pool.nbytes:
            self._pool = BufferPool(ends[-1])
        memory = torch.from_numpy(self._pool.take())
        copies: Tensors = {}
        for (name, value), start in zip(tensors.items(), [0, *ends], strict=False):
            place = memory[start : start + value.nbytes].view(value.dtype).view(value.shape)
            copies[name] = place.copy_(value.detach())
        return copies

    def restore(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        """Go back to the state in `snapshot` (from the method of that name), which is copied."""
        optim = _split(snapshot, set(self._names))
        for name, param in self._params.items():
            param.copy_(snapshot[f"param/{name}"])
            # Not there in the snapshot: the optimizer had not made its first step.
            self._optimizer.state.pop(param, None)
            if name in optim:
                self._optimizer.state[param] = {key: _copy(value) for key, value in optim[name].items()}

    def parameter_digest(self) -> bytes:
        """Return the SHA-256 that the ranks' digests are compared with (`optimizer_digest`)."""
        return parameter_digest((name, bytes_of(self._params[name])) for name in self._names)


def digest_difference(records: Sequence[RankStep], model: LiveModel, tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Return what of a state has another digest than the ranks' records tell, None where all that they tell agrees.

    Args:
        records: of the step.
        model: the live copy after it.
        tensors: its snapshot.
    """
    told = reported_digest(records), reported_optimizer_digest(records)
    for what, expected, found in (
        ("parameters", told[0], model.parameter_digest() if told[0] else b""),
        ("optimizer state", told[1], optimizer_state_digest(tensors) if told[1] else b""),
    ):
        if found != expected:
            return f"{what} have digest {found.hex()}, the ranks' have {expected.hex()}"
    return None


def optimizer_state_digest(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return the digest of the optimizer's state among the tensors of a snapshot (`optimizer_digest`)."""
    return optimizer_digest({name: bytes_of(t) for name, t in tensors.items() if name.startswith("optim/")})


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _split(tensors: Mapping[str, torch.Tensor], params: set[str]) -> dict[str, Tensors]:
    """Return the optimizer state by parameter and key; refuse names that have no place in a state."""
    optim: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "param" and rest in params:
            continue
        param, _, key = rest.rpartition("/")
        if kind != "optim" or param not in params or not key:
            raise invalid("data", f"tensor {name!r} is neither a parameter of the layout nor optimizer state of one")
        optim.setdefault(param, {})[key] = tensor
    return optim


def tensor_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return the memory that `tensors` take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
