"""Whether every object of the trainer's state is accounted for, step by step: what a group's replica asks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from jobspec.layout import Layout
from jobspec.sidechannel import side_channel_pb2 as pb
from jobspec.state import SHARED_PREFIX, StateManifest
from shadow_rx.status.group_status import Gap
from shadow_rx.trainer.declared import StateCheck, tensor_digest
from shadow_rx.trainer.description import OptimizerPlan
from shadow_rx.trainer.inventory import Inventory, ObjectInfo, parse_inventory
from shadow_rx.trainer.rank_step import RankStep
from shadow_rx.trainer.records import RecordBook


class StateAccounts:
    """The declarations of a job, the objects that its trainer lists, and the constants that were captured.

    Memory: the constants, once, beside what `StateCheck` keeps.
    """

    def __init__(self, manifest: StateManifest) -> None:
        """Account for state that is declared by `manifest`."""
        self._check = StateCheck(manifest)
        self._attached = Inventory({}, b"")
        self.constants: dict[str, torch.Tensor] = {}
        """Objects that are the same for the whole run: ``state/<object>``."""

    def listed(self, message: pb.AttachRequest) -> Inventory:
        """Return what a trainer lists that attaches; nothing changes yet.

        Raises:
            ShadowError: the list is not usable, or a record would be too large that carries what it has to.
        """
        listed = parse_inventory(message.state_objects, "state_objects")
        self._check.check_record_size(listed)
        return listed

    def holds(self, listed: Inventory) -> bool:
        """Tell whether all constants of `listed` are here with the announced values."""
        needed = self._check.constants(listed)
        return needed.keys() == self.constants.keys() and all(
            tensor_digest(self.constants[name]) == info.digest for name, info in needed.items()
        )

    def begin(self, listed: Inventory) -> None:
        """Let the constants of `listed` be those that uploads have to bring."""
        self._attached = listed

    def undeclared(self, layout: Layout) -> str | None:
        """Return what is wrong with the objects that the trainer listed when it attached, None where nothing is."""
        return self._check.undeclared(self._attached, layout)

    def needed(self, layout: Layout) -> dict[str, ObjectInfo]:
        """Return the constants that an uploaded state has to bring, by their tensor names.

        A constant that is trained by the state's step, whose layout is `layout`, is one no longer.
        """
        trained = {f"{SHARED_PREFIX}model.{slot.param.name}" for slot in layout.slots}
        constants = self._check.constants(self._attached)
        return {name: info for name, info in constants.items() if name not in trained}

    def before(self, step: int, book: RecordBook, records: Sequence[RankStep], plan: OptimizerPlan) -> Gap | None:
        """Return why `step` must not be applied (`StateCheck.before`)."""
        return self._check.before(step, [(record, book.inventory(record)) for record in records], plan)

    def after(
        self, step: int, book: RecordBook, records: Sequence[RankStep], layout: Layout,
        tensors: Mapping[str, torch.Tensor],
    ) -> Gap | None:  # fmt: skip
        """Return why `step`, which was applied, cannot be published (`StateCheck.after`)."""
        listed = [(record, book.inventory(record)) for record in records]
        return self._check.after(step, listed, layout, tensors, self.constants)
