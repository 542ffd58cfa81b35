"""Optimizer and learning-rate schedule of the job's workload, and their state as plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from jobspec.workload import OptimizerSpec, OptionValue, ScheduleSpec
from nccl_emu.errors import TrainerError


def plain_options(options: Mapping[str, OptionValue]) -> dict[str, Any]:
    """Return `options` as torch takes them: pairs as tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def build_optimizer(spec: OptimizerSpec, params: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the job's optimizer over `params`, in one parameter group.

    Raises:
        TrainerError: the class does not take an option or its value.
    """
    return build_groups(spec.name, [{"params": list(params), **plain_options(spec.options)}])


def build_groups(name: str, groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
    """Return optimizer class `name` of ``torch.optim`` over `groups`, each ``params`` and its options.

    The first group's options are the class's arguments too, so that it checks them as it does for any caller.

    Raises:
        TrainerError: the class does not take an option or its value.
    """
    cls = getattr(torch.optim, name)
    taken = signature(cls).parameters
    arguments = {key: value for key, value in groups[0].items() if key in taken and key != "params"}
    try:
        known = {*taken, *cls([torch.zeros(1)]).defaults}
        unknown = [key for group in groups for key in group if key not in known]
        if unknown:
            raise TypeError(f"unexpected option {unknown[0]!r}")
        optimizer = cls([dict(group) for group in groups], **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TrainerError("workload.optimizer.options", f"{name} refuses them: {error}") from error
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def rate_factor(spec: ScheduleSpec, completed: int) -> float:
    """Return the factor on the base rate for the step after `completed` steps.

    Linear warm-up, then half a cosine from 1 to the floor (Loshchilov and Hutter, "SGDR", 2017).
    """
    if completed < spec.warmup_steps:
        return (completed + 1) / spec.warmup_steps
    progress = (completed - spec.warmup_steps) / max(1, spec.total_steps - spec.warmup_steps)
    return spec.floor + (1 - spec.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def build_scheduler(spec: ScheduleSpec, optimizer: torch.optim.Optimizer) -> LambdaLR:
    """Return the job's schedule; it sets the optimizer's rate for the first step at once."""

    def factor(completed: int) -> float:
        return rate_factor(spec, completed)

    return LambdaLR(optimizer, factor)


def options_json(group: Mapping[str, Any]) -> str:
    """Return the hyperparameters of a parameter group as canonical JSON.

    Raises:
        TrainerError: an option that is no plain value.
    """
    options = {key: value for key, value in group.items() if key != "params"}
    try:
        return json.dumps(options, sort_keys=True, separators=(",", ":"))
    except TypeError as error:
        raise TrainerError("optimizer", f"an option of its parameter group is no plain value: {error}") from error


def set_options(group: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Set the hyperparameters of a parameter group from what `options_json` wrote (JSON knows no tuples)."""
    for key, value in options.items():
        group[key] = tuple(value) if isinstance(group.get(key), tuple) else value


def tensor_state(optimizer: torch.optim.Optimizer, param: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    """Return the state tensors of `param`, the optimizer's own, without those that are None.

    Raises:
        TrainerError: a state value that is neither a tensor nor None and so could not be restored.
    """
    state: dict[str, torch.Tensor] = {}
    for key, value in optimizer.state.get(param, {}).items():
        if isinstance(value, torch.Tensor):
            state[key] = value
        elif value is not None:
            raise TrainerError("optimizer", f"state {key!r} is a {type(value).__name__}, expected a tensor")
    return state


def expected_state(spec: OptimizerSpec, param: torch.nn.Parameter) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return name, shape and type of each state tensor that the optimizer has for `param` after a step.

    Found by stepping a throw-away copy: a state that is silently not restored must be noticed.
    """
    probe = torch.nn.Parameter(torch.zeros_like(param))
    probe.grad = torch.zeros_like(param)
    optimizer = build_optimizer(spec, [probe])
    optimizer.step()
    return {key: (value.shape, value.dtype) for key, value in tensor_state(optimizer, probe).items()}
