"""Another optimizer, other groups or another layout from a named step on: announced before it, exact from it on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from checkmate_common.recovery.point import RecoveryPointError, unpack_tensors
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.stream.layout import Layout
from shadow_rx.errors import check_step, invalid, wrong_state
from shadow_rx.trainer.description import OptimizerPlan, parse_layout, parse_optimizer

MAX_CHANGES = 1024
"""Most changes of one epoch."""


@dataclass(frozen=True)
class Change:
    """What is in force from one step on."""

    step: int
    """First step of it."""
    layout: Layout
    """The layout."""
    optimizer: OptimizerPlan
    """The optimizer."""
    state: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Tensors that came with the announcement; they go before what the shadow has."""


class Timeline:
    """What is in force at each step of an epoch."""

    def __init__(self, step: int, layout: Layout, optimizer: OptimizerPlan) -> None:
        """Begin with what the trainer attached with: that of the state after `step`, the one before its first."""
        self._changes = [Change(step, layout, optimizer)]

    def at(self, step: int) -> Change:
        """Return what is in force at `step`; of steps before the epoch what it began with."""
        return self._changes[max(0, bisect_right(self._changes, step, key=lambda change: change.step) - 1)]

    def begins(self, step: int) -> Change | None:
        """Return the announced change whose first step is `step`, None where nothing changes there."""
        return next((change for change in self._changes[1:] if change.step == step), None)

    @property
    def last(self) -> Change:
        """The newest change that was announced."""
        return self._changes[-1]

    def parse(self, message: pb.ChangeRequest, oldest: int) -> Change | None:
        """Check an announcement; return None where it was made before (a repeated call).

        Args:
            message: the announcement.
            oldest: oldest step that is neither applied nor given up.

        Raises:
            ShadowError: not usable in itself, or late: a step that it concerns is applied, or a later change is known.
        """
        check_step("effective_step", message.effective_step)
        layout = parse_layout(message.layout_json) if message.layout_json else self.last.layout
        optimizer = parse_optimizer(message.optimizer, layout)
        try:
            state = unpack_tensors(message.state) if message.state else {}
        except RecoveryPointError as error:
            raise invalid("state", str(error)) from error
        step = message.effective_step
        known = self.begins(step)
        if known is not None and (known.layout, known.optimizer) == (layout, optimizer):
            return None
        if step <= self.last.step:
            raise wrong_state(
                "effective_step", f"{step}, but what is in force from step {self.last.step} on is settled"
            )
        if step < oldest:
            raise wrong_state("effective_step", f"{step} comes late: step {oldest - 1} is settled already")
        if layout != self.last.layout and layout.version <= self.last.layout.version:
            raise invalid("layout_json", f"version {layout.version}, expected more than {self.last.layout.version}")
        if len(self._changes) > MAX_CHANGES:
            raise wrong_state("effective_step", f"more than {MAX_CHANGES} changes in one epoch; begin a new one")
        return Change(step, layout, optimizer, state)

    def add(self, change: Change) -> None:
        """Let a change that `parse` has returned be in force from its step on."""
        self._changes.append(change)
