"""The state that a group's steps have led to: the live model, and copies of its tensors to publish. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from checkmate_common.stream.layout import Layout
from placement.slots import StepSlot
from shadow_rx.apply.carry_over import carry_over
from shadow_rx.apply.model import LiveModel, Tensors, digest_difference
from shadow_rx.apply.upload import PreparedState
from shadow_rx.trainer.changes import Timeline
from shadow_rx.trainer.description import OptimizerPlan
from shadow_rx.trainer.rank_step import RankStep


class AppliedState:
    """State after one step. A step that fails leaves it as it was."""

    def __init__(self) -> None:
        """Begin without a state."""
        self._model: LiveModel | None = None
        self.step = 0
        """The step."""
        self.tensors: Tensors = {}
        """Copies of parameters and optimizer state after it."""
        self.constants: Tensors = {}
        """Objects that are the same for the whole run: ``state/<object>``."""

    @property
    def usable(self) -> bool:
        """Whether the next step can be applied to it."""
        return self._model is not None

    def clear(self) -> None:
        """Forget the state."""
        self._model, self.tensors = None, {}

    def reject(self) -> None:
        """Let no step follow: the state is not that of the ranks."""
        self._model = None

    def take(self, state: PreparedState) -> None:
        """Go on from a state that the trainer uploaded."""
        self._model, self.tensors, self.step = state.model, state.tensors, state.plan.step
        self.constants = state.constants

    def leads_to(self, layout: Layout, optimizer: OptimizerPlan, before: Timeline) -> bool:
        """Tell whether a trainer with this layout and optimizer can go on from the state, of an epoch `before` it."""
        old = before.at(self.step)
        params = [slot.param for slot in layout.slots]
        same = [slot.param for slot in old.layout.slots] == params and optimizer.same_state(old.optimizer)
        return self.usable and same

    def apply(self, slot: StepSlot, step: int, records: Sequence[RankStep], timeline: Timeline) -> str | None:
        """Apply the step whose gradient is in `slot`; return what went wrong, None where nothing did."""
        assert self._model is not None
        model, constants, change = self._model, self.constants, timeline.begins(step)
        try:
            if change is not None:
                # A model of its own, so that the one of the step before is there should this step fail.
                before = timeline.at(step - 1).optimizer
                model, constants = carry_over(change, before, self.tensors, constants)
            model.step(slot.memory, slot.plan.bucket_offsets, records[0].update)
            tensors = model.snapshot()
            problem = digest_difference(records, model, tensors)
            problem = problem and f"the {problem}"
        except Exception as error:  # whatever torch raises, the step before stays valid
            problem = f"the optimizer step cannot be replayed: {error}"
        if problem is not None:
            if model is self._model:
                model.restore(self.tensors)
            return problem
        self._model, self.tensors, self.constants, self.step = model, tensors, constants, step
        return None

    def digest_difference(self, records: Sequence[RankStep]) -> str | None:
        """Return what of the state has another digest than `records` tell, None where nothing has or none is here."""
        return digest_difference(records, self._model, self.tensors) if self._model is not None else None
