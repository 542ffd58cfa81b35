"""What a trainer describes when it attaches: layout, optimizer, groups and options, all checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.stream.layout import Layout
from shadow_rx.errors import invalid
from shadow_rx.trainer.json_value import parse_json

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "ASGD": torch.optim.ASGD,
    "Adadelta": torch.optim.Adadelta,
    "Adagrad": torch.optim.Adagrad,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": torch.optim.RMSprop,
    "Rprop": torch.optim.Rprop,
    "SGD": torch.optim.SGD,
}
"""Optimizers that a shadow can replay: functions of parameters, state and dense gradients alone, element by
element. LBFGS needs a closure, SparseAdam sparse gradients; Adafactor and Muon reduce over whole tensors."""
_FIRST_STATE = {"Adagrad": "initial_accumulator_value"}
"""Option by class that torch's constructor reads for the state that it makes at once, whatever the groups say."""
_FORBIDDEN = ("differentiable", "capturable")
"""Options that ask for an autograd graph or a CUDA graph: there is none in a shadow."""

Options = dict[str, Any]
"""Hyperparameters of one group: JSON values, with lists as tuples (as torch.optim keeps ``betas``)."""


@dataclass(frozen=True)
class Update:
    """What the optimizer step of one training step did besides using the gradient."""

    options: tuple[Options, ...]
    """Hyperparameters of each parameter group that the step used."""
    scale: float | None = None
    """Factor on the reduced gradient before the step (clipping, loss scale), None for none."""
    skipped: bool = False
    """Whether the step was left out."""


@dataclass(frozen=True)
class GroupPlan:
    """One parameter group."""

    params: tuple[str, ...]
    """Parameter names in the group's order."""
    options: Options
    """Hyperparameters when the trainer attached."""


@dataclass(frozen=True)
class OptimizerPlan:
    """The optimizer to replay."""

    name: str
    """Key of `OPTIMIZERS`."""
    groups: tuple[GroupPlan, ...]
    """In the optimizer's order."""

    def same_state(self, other: OptimizerPlan) -> bool:
        """Tell whether state of `other` is state of this one: equal class and groups, any options."""
        return self.name == other.name and [g.params for g in self.groups] == [g.params for g in other.groups]


def new_optimizer(plan: OptimizerPlan, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return the optimizer of `plan` over `groups` (``params`` and options), with what its constructor makes of state.

    Raises:
        ShadowError: groups differ in an option that only the constructor reads, so that the trainer's is not known.
    """
    option = _FIRST_STATE.get(plan.name)
    if option is None:
        return OPTIMIZERS[plan.name](groups)
    values = {group.options[option] for group in plan.groups}
    if len(values) > 1:
        raise invalid(
            "optimizer.groups", f"differ in {option}, which torch.optim.{plan.name} has one of for all groups"
        )
    return OPTIMIZERS[plan.name](groups, **{option: values.pop()})


def parse_optimizer(message: pb.OptimizerDescription, layout: Layout) -> OptimizerPlan:
    """Check a trainer's description, in itself and against the layout.

    Raises:
        ShadowError: an unknown class, groups that do not hold each parameter of the layout exactly once, or options
            that the class does not accept.
    """
    if message.name not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise invalid("optimizer.name", f"{message.name!r} cannot be replayed from gradients; expected one of {known}")
    expected = {slot.param.name for slot in layout.slots}
    seen: set[str] = set()
    groups: list[GroupPlan] = []
    for index, group in enumerate(message.groups):
        here = f"optimizer.groups[{index}]"
        if not group.params:
            raise invalid(f"{here}.params", "is empty; expected at least one parameter")
        for name in group.params:
            if name in seen:
                raise invalid(f"{here}.params", f"parameter {name!r} is in two groups; expected once")
            if name not in expected:
                raise invalid(f"{here}.params", f"parameter {name!r} is not in the layout")
            seen.add(name)
        options = parse_options(message.name, group.options_json, f"{here}.options_json")
        groups.append(GroupPlan(tuple(group.params), options))
    without = expected - seen
    if without:
        raise invalid("optimizer.groups", f"parameters of the layout without a group: {sorted(without)[:5]}")
    return OptimizerPlan(message.name, tuple(groups))


def parse_layout(text: str) -> Layout:
    """Read the layout of an attach request.

    Raises:
        ShadowError: not a layout, no parameters, negative sizes, or a repeated name.
    """
    field = "layout_json"
    try:
        layout = Layout.from_json(text)
    except (ValueError, OverflowError, RecursionError) as error:
        raise invalid(field, f"is not a layout: {error}") from error
    names = [slot.param.name for slot in layout.slots]
    if not names:
        raise invalid(field, "has no parameters, expected at least one")
    if len(set(names)) != len(names):
        raise invalid(field, "parameter names repeat")
    negative = [slot.param.name for slot in layout.slots if any(size < 0 for size in slot.param.shape)]
    if negative:
        raise invalid(field, f"sizes of parameter {negative[0]!r} are negative")
    return layout


def parse_options(optimizer: str, text: str, field: str) -> Options:
    """Read the options of one group and check that the optimizer's class can make a step with them.

    Raises:
        ShadowError: not a JSON object, a key of the group is missing, an option that needs what a shadow does not have,
            or a value that the class cannot use; `field` is named.
    """
    value = parse_json(text, field)
    if not isinstance(value, dict):
        raise invalid(field, f"holds {type(value).__name__}, expected a JSON object")
    options = {str(key): tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    if "params" in options:
        raise invalid(field, "holds 'params', which is not an option")
    for name in _FORBIDDEN:
        if options.get(name):
            raise invalid(field, f"{name}={options[name]!r} cannot be replayed; expected false")
    try:
        cls = OPTIMIZERS[optimizer]
        missing = set(cls([torch.zeros(1)]).defaults) - set(options)
        if not missing:
            state_keys(optimizer, options, torch.float32)
    except Exception as error:  # torch.optim refuses values with several exception types
        raise invalid(field, f"torch.optim.{optimizer} cannot make a step with {text}: {error}") from error
    if missing:
        raise invalid(field, f"lacks {sorted(missing)}; expected all keys of the group but 'params'")
    return options


def state_keys(optimizer: str, options: Options, dtype: torch.dtype) -> dict[str, bool]:
    """Return the state that the optimizer keeps for a parameter after a step: by key, whether it is a scalar.

    Found out by a step on a small tensor, which also shows whether the options work at all. The class's constructor is
    not asked to check them: the trainer's is not asked either when a scheduler changes an option.
    """
    probe = torch.zeros(2, dtype=dtype)
    stepper = OPTIMIZERS[optimizer]([{"params": [probe], **options}])
    probe.grad = torch.zeros_like(probe)
    stepper.step()
    return {key: value.ndim == 0 for key, value in stepper.state[probe].items() if torch.is_tensor(value)}
