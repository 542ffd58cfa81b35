"""Another optimizer or another parameter group in the middle of a run, as an ordinary training script does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from jobspec.workload import ChangeSpec, OptimizerSpec, OptionValue, ScheduleSpec
from nccl_emu.errors import TrainerError
from nccl_emu.training.optimizers import build_groups, build_scheduler, plain_options


def matching(patterns: Sequence[str], names: Sequence[str], field: str) -> list[str]:
    """Return the `names` that a pattern fits, in their order.

    Raises:
        TrainerError: a pattern fits none.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise TrainerError(field, f"{pattern!r} fits no parameter; expected one of {', '.join(names)}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def regrouped(
    optimizer: torch.optim.Optimizer,
    spec: OptimizerSpec,
    change: ChangeSpec,
    joining: Sequence[torch.nn.Parameter],
) -> torch.optim.Optimizer:
    """Return the optimizer after `change`.

    State of parameters is kept where the class stays; a new group begins without. Rates are base rates: the caller
    makes the schedule anew.

    Args:
        optimizer: the optimizer until now.
        spec: how the optimizer is from now on.
        change: the change.
        joining: parameters that are trained from now on, as a group of their own; empty for none.

    Raises:
        TrainerError: the class does not take an option or its value.
    """
    same_class = type(optimizer).__name__ == spec.name
    given = change.optimizer.options if change.optimizer is not None else {}
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        options = _base_options(group, given) if same_class else plain_options(spec.options)
        groups.append({"params": group["params"], **options})
    if joining:
        groups.append({"params": list(joining), **plain_options({**spec.options, **change.options})})
    changed = build_groups(spec.name, groups)
    if same_class:
        for group in optimizer.param_groups:
            changed.state.update(
                {param: optimizer.state[param] for param in group["params"] if param in optimizer.state}
            )
    return changed


def _base_options(group: Mapping[str, Any], given: Mapping[str, OptionValue]) -> dict[str, Any]:
    options = {key: value for key, value in group.items() if key != "params"}
    options["lr"] = options.pop("initial_lr")
    return {**options, **plain_options(given)}


def resumed_schedule(spec: ScheduleSpec, optimizer: torch.optim.Optimizer, completed: int) -> LambdaLR:
    """Return the schedule over a changed optimizer, at the place after `completed` steps."""
    schedule = build_scheduler(spec, optimizer)
    factor = schedule.lr_lambdas[0](completed)
    schedule.last_epoch = completed
    schedule._step_count = completed + 1
    for group, base in zip(optimizer.param_groups, schedule.base_lrs, strict=True):
        group["lr"] = base * factor
    schedule._last_lr = [group["lr"] for group in optimizer.param_groups]
    return schedule
