"""The trainer's optimizer over gradients from the wire: parameters and optimizer state of each step, as declared."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checkmate_common.files.regular_files import regular
from checkmate_common.recovery.tensors import bytes_of
from gloo.ddp import DdpDecoder
from gloo.parameters import Parameter
from jobspec.trainer import TrainerFile
from packets.batch import Bytes
from replay.errors import ReplayError
from shadow_rx.trainer.description import OPTIMIZERS

_DTYPES = {
    "float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16,
}  # fmt: skip
_REDUCING = ("Adafactor", "Muon")
"""Optimizers that reduce over whole parameters, which a DDP rank has."""
_SCHEDULERS = (
    "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LinearLR",
    "MultiStepLR", "OneCycleLR", "PolynomialLR", "StepLR",
)  # fmt: skip
"""Schedulers that follow from numbers alone."""
_FORBIDDEN = ("capturable", "differentiable", "params")


@dataclass(frozen=True)
class StartingPoint:
    """A checkpoint to begin from."""

    path: Path
    """File."""
    model: dict[str, torch.Tensor]
    """Parameters by name, and buffers."""
    optimizer: dict[str, Any] | None
    """State of the optimizer."""
    scheduler: dict[str, Any] | None
    """State of the scheduler."""


def load_starting_point(path: Path) -> StartingPoint:
    """Read a checkpoint as ``torch.save`` writes it: ``{"model": ..., "optimizer": ...}``, or a model's state alone.

    Raises:
        ReplayError: it cannot be read, or holds something else.
    """
    try:
        with open(path, "rb", opener=regular) as file:
            data = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ReplayError("--checkpoint", f"{path} cannot be read: {error.strerror}", "check the name") from error
    except Exception as error:  # torch.load refuses files with many types of exceptions
        what = " ".join(str(error).split())[:200]
        raise ReplayError("--checkpoint", f"{path} is no checkpoint of tensors: {what}", "save state dicts") from error
    fix = 'save {"model": model.state_dict(), "optimizer": optimizer.state_dict()}'
    if not isinstance(data, dict):
        raise ReplayError("--checkpoint", f"{path} holds a {type(data).__name__}, not a dictionary", fix)
    model = data.get("model", data)
    if not isinstance(model, dict) or not model or not all(isinstance(value, torch.Tensor) for value in model.values()):
        raise ReplayError("--checkpoint", f"{path} has no model of tensors", fix)
    named = {str(name).removeprefix("module."): value for name, value in model.items()}
    parts = [data.get(name) if "model" in data else None for name in ("optimizer", "scheduler")]
    return StartingPoint(path, named, *(part if isinstance(part, dict) else None for part in parts))


class TrainerReplay:
    """Parameters and optimizer of one DDP model, stepped as its ranks step theirs: on the CPU, with one thread."""

    def __init__(self, declared: TrainerFile, ddp: DdpDecoder, start: StartingPoint | None) -> None:
        """Begin with the initial values from the wire, or from a checkpoint, which have to agree.

        Raises:
            JobError: what is declared does not fit the model, or torch refuses it.
            ReplayError: the checkpoint does not fit the model.
        """
        parameters, types = ddp.parameters, ddp.types
        assert parameters is not None
        assert types is not None
        self._declared = declared
        trainer = declared.trainer
        count = len(parameters)
        self.names = trainer.names(count)
        """Names of the parameters."""
        for field, given in (("parameters", self.names), ("dtypes", trainer.kinds(count))):
            if given is not None and len(given) != count:
                raise declared.error((field,), f"has {len(given)} entries, the job's model has {count} parameters")
        kinds = trainer.kinds(count) or types.kinds
        if any(kind not in _DTYPES for kind in kinds):
            raise declared.error(("dtypes",), "is missing: 2-byte parameters are float16 or bfloat16; say which")
        self.problem: str | None = None
        """Why there are no parameters (any more), None while there are."""
        values = self._initial(ddp, kinds, start)
        self._tensors = [
            _tensor(p, _DTYPES[kind], value) for p, kind, value in zip(parameters, kinds, values, strict=True)
        ]
        self._optimizer = self._make_optimizer()
        self._scheduler = self._make_scheduler()
        if start is not None:
            self._load(start)

    def _initial(self, ddp: DdpDecoder, kinds: Sequence[str], start: StartingPoint | None) -> list[Bytes]:
        known = ddp.initial.values
        parameters = ddp.parameters or ()
        if start is None:
            if known is None:
                self.problem = f"{ddp.initial.problem}; begin from a checkpoint (--checkpoint)"
                return [
                    np.zeros(p.elements * _DTYPES[k].itemsize, np.uint8) for p, k in zip(parameters, kinds, strict=True)
                ]
            return list(known)
        found: list[Bytes] = []
        for number, (name, parameter, kind) in enumerate(zip(self.names, parameters, kinds, strict=True)):
            tensor = start.model.get(name)
            if tensor is None:
                problem = f"{start.path} has no parameter {name!r}"
                raise ReplayError("--checkpoint", problem, "name the parameters in trainer.yaml as the model does")
            if tuple(tensor.shape) != parameter.shape or tensor.dtype != _DTYPES[kind]:
                problem = f"{name!r} is {tensor.dtype} {tuple(tensor.shape)}, in the job {kind} {parameter.shape}"
                raise ReplayError("--checkpoint", problem, "take the checkpoint that the job began from")
            found.append(np.frombuffer(bytes_of(tensor.contiguous()), np.uint8))
            if known is not None and not np.array_equal(found[-1], known[number]):
                problem = f"{name!r} is not what rank 0 broadcast when the job began"
                raise ReplayError("--checkpoint", problem, "take the checkpoint that the job began from")
        return found

    def _make_optimizer(self) -> torch.optim.Optimizer:
        spec = self._declared.trainer.optimizer
        known = {**OPTIMIZERS, **{name: getattr(torch.optim, name) for name in _REDUCING if hasattr(torch.optim, name)}}
        if spec.name not in known:
            message = f"{spec.name!r} cannot be replayed; expected one of {', '.join(sorted(known))}"
            raise self._declared.error(("optimizer", "name"), message)
        self._check(spec.options, ("optimizer", "options"))
        try:
            made: torch.optim.Optimizer = known[spec.name](self._tensors, **spec.options)
            return made
        except Exception as error:  # torch.optim refuses options with several types of exceptions
            message = f"torch.optim.{spec.name} refuses them: {_short(error)}"
            raise self._declared.error(("optimizer", "options"), message) from error

    def _make_scheduler(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        spec = self._declared.trainer.scheduler
        if spec is None:
            return None
        if spec.name not in _SCHEDULERS:
            message = f"{spec.name!r} cannot be replayed; expected one of {', '.join(_SCHEDULERS)}"
            raise self._declared.error(("scheduler", "name"), message)
        try:
            made: torch.optim.lr_scheduler.LRScheduler = getattr(torch.optim.lr_scheduler, spec.name)(
                self._optimizer, **spec.options
            )
            return made
        except Exception as error:  # as above
            message = f"torch.optim.lr_scheduler.{spec.name} refuses them: {_short(error)}"
            raise self._declared.error(("scheduler", "options"), message) from error

    def _check(self, options: dict[str, Any], path: tuple[str, ...]) -> None:
        for name in _FORBIDDEN:
            if options.get(name):
                raise self._declared.error((*path, name), "cannot be replayed; leave it out")

    def _load(self, start: StartingPoint) -> None:
        for name, target in (("optimizer", self._optimizer), ("scheduler", self._scheduler)):
            state = getattr(start, name)
            if state is None or target is None:
                continue
            try:
                target.load_state_dict(state)
            except Exception as error:  # torch refuses what does not fit with several types of exceptions
                problem = f"the {name}'s state in {start.path} does not fit: {_short(error)}"
                raise ReplayError("--checkpoint", problem, f"declare the {name} that the job has") from error

    def step(self, gradients: Sequence[Bytes | None]) -> None:
        """Make one optimizer step; parameters whose gradient is None have none.

        Raises:
            JobError: torch cannot make a step as it is declared.
        """
        for tensor, gradient in zip(self._tensors, gradients, strict=True):
            if gradient is None:
                tensor.grad = None
            else:
                dense = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)
                tensor.grad = dense.copy_(torch.from_numpy(gradient).view(tensor.dtype).view(tensor.shape))
        try:
            if self._declared.trainer.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self._tensors, self._declared.trainer.clip_norm)
            self._optimizer.step()
            if self._scheduler is not None:
                self._scheduler.step()
        except Exception as error:  # torch.optim finds some options wrong in the first step only
            raise self._declared.error(("optimizer",), f"torch cannot make a step with it: {_short(error)}") from error

    def parameter_digests(self) -> list[str]:
        """Return the SHA-256 of each parameter."""
        return [_digest(tensor) for tensor in self._tensors]

    def optimizer_digests(self) -> list[dict[str, str]]:
        """Return the SHA-256 of each tensor of the optimizer's state, for each parameter by key."""
        states = [self._optimizer.state.get(tensor, {}) for tensor in self._tensors]
        return [{key: _digest(v) for key, v in sorted(state.items()) if torch.is_tensor(v)} for state in states]

    def checkpoint(self, step: int) -> bytes:
        """Return a checkpoint as ``torch.save`` writes it: step, status, model, optimizer and scheduler."""
        data = {
            "step": step,
            "status": "declared",
            "model": {name: tensor.detach() for name, tensor in zip(self.names, self._tensors, strict=True)},
            "optimizer": self._optimizer.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
        }
        file = io.BytesIO()
        torch.save(data, file)
        return file.getvalue()


def gradient_file(step: int, gradients: Sequence[Bytes | None], ddp: DdpDecoder) -> bytes:
    """Return gradients as ``torch.save`` writes them; elements of 2 bytes, whose type is not known, as int16."""
    parameters, types = ddp.parameters or (), ddp.types
    kinds = types.kinds if types is not None else ()
    tensors = [
        None if data is None else torch.from_numpy(data).view(_DTYPES.get(kind, torch.int16)).view(parameter.shape)
        for data, parameter, kind in zip(gradients, parameters, kinds, strict=True)
    ]
    file = io.BytesIO()
    torch.save({"step": step, "gradients": tensors}, file)
    return file.getvalue()


def _tensor(parameter: Parameter, dtype: torch.dtype, value: Bytes) -> torch.nn.Parameter:
    dense = torch.empty_strided(parameter.shape, parameter.strides, dtype=dtype)
    dense.copy_(torch.from_numpy(value.copy()).view(dtype).view(parameter.shape))
    return torch.nn.Parameter(dense)


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(bytes_of(tensor.detach().contiguous())).hexdigest()


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
