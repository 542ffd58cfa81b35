"""The state at a change of optimizer, groups or layout: what torch does in the trainer, done here. Pure.

Optimizer state of parameters that stay with the same class is kept, another class begins with what its constructor
makes, a parameter that becomes trained begins with the value that it had as a constant, and one that is trained no
longer becomes a constant.
"""

from __future__ import annotations

from checkmate_common.recovery.state import SHARED_PREFIX
from shadow_rx.apply.model import LiveModel, Tensors
from shadow_rx.trainer.changes import Change
from shadow_rx.trainer.description import OptimizerPlan


def carry_over(change: Change, before: OptimizerPlan, state: Tensors, constants: Tensors) -> tuple[LiveModel, Tensors]:
    """Return the model that goes on with `change`, and the constant objects from then on.

    Args:
        change: the change.
        before: the optimizer of the step before it.
        state: parameters and optimizer state after that step (``param/...``, ``optim/...``).
        constants: the constant objects until then (``state/...``).

    Raises:
        ShadowError: a parameter that becomes trained is neither a constant nor in the announcement, or a tensor
            does not fit.
    """
    trained = {slot.param.name for slot in change.layout.slots}
    begun: Tensors = {}
    for name in trained:
        value = state.get(f"param/{name}", constants.get(f"{SHARED_PREFIX}model.{name}"))
        if value is not None:
            begun[f"param/{name}"] = value
    if before.name == change.optimizer.name:
        kept = (name for name in state if name.startswith("optim/"))
        begun.update((name, state[name]) for name in kept if name.removeprefix("optim/").rpartition("/")[0] in trained)
    begun.update(change.state)
    rest = {name: value for name, value in constants.items()
            if name.removeprefix(f"{SHARED_PREFIX}model.") not in trained}  # fmt: skip
    for name, value in state.items():
        param = name.removeprefix("param/")
        if param != name and param not in trained:
            rest[f"{SHARED_PREFIX}model.{param}"] = value
    return LiveModel(change.layout, change.optimizer, begun), rest
