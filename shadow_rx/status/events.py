"""What happens to a group's steps: told by the core to its driver, and by a node to its observer.

Every event has the attributes ``group``, ``epoch`` and ``step``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from checkmate_common.stream.layout import Layout
from shadow_rx.apply.model import Tensors
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.group_status import Gap, StepReport
from shadow_rx.status.load import Load
from shadow_rx.trainer.description import OptimizerPlan


@dataclass(frozen=True)
class _OfStep:
    """An event about a step."""

    group: str
    """DP group name."""
    epoch: int
    """Incarnation of the communicator."""
    step: int
    """The step; which one is said by the event."""


@dataclass(frozen=True)
class Attached(_OfStep):
    """Event: an epoch began, or a running one was joined again, after `step`, the newest trained one."""

    need_state: bool
    """Whether the trainer has to upload its state before the first step."""
    rejoin: bool
    """Whether this shadow was started again while the communicator ran."""
    undeclared: str | None = None
    """What is wrong with the trainer's state objects, so that nothing will be published; None where nothing is."""


@dataclass(frozen=True)
class _OfPoint:
    """An event about a recovery point."""

    snapshot: Snapshot
    """The point."""

    @property
    def group(self) -> str:
        """DP group name."""
        return self.snapshot.group

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self.snapshot.epoch

    @property
    def step(self) -> int:
        """The step."""
        return self.snapshot.step


@dataclass(frozen=True)
class StepReplicated(_OfPoint):
    """Event: a step became a recovery point."""

    report: StepReport
    """How it came about."""


@dataclass(frozen=True)
class _OfGap:
    """An event about a gap."""

    group: str
    """DP group name."""
    epoch: int
    """The epoch."""
    gap: Gap
    """Step and reason."""

    @property
    def step(self) -> int:
        """The step."""
        return self.gap.step


@dataclass(frozen=True)
class StepLost(_OfGap):
    """Event: a step cannot become a recovery point by replay, and so none of the later ones until a resync."""


@dataclass(frozen=True)
class StateUploaded(_OfStep):
    """Event: a state that the trainer uploaded, that after `step`, is what the shadow goes on from."""

    layout: Layout
    """Layout in force."""
    optimizer: OptimizerPlan
    """Optimizer in force."""
    tensors: Tensors
    """Parameters and optimizer state: copies that nothing changes."""
    constants: Tensors = field(default_factory=dict)
    """Objects that are the same for the whole run: ``state/<object>``."""


@dataclass(frozen=True)
class StepResynced(_OfStep):
    """Event: after a loss the shadow goes on from the trainer's state after `step`; those before it are lost."""

    since: int
    """First step that was lost: `since` up to ``step - 1`` are."""


@dataclass(frozen=True)
class StateAdopted(_OfPoint):
    """Event: a shadow node that was started again took a recovery point of another one, newer than its own."""

    peer: str
    """Name of the shadow node that gave it."""
    since: int
    """First step that was not here: of those up to the one before the point only the other node may have points."""


@dataclass(frozen=True)
class StepStored(_OfStep):
    """Event: a recovery point is durable."""


@dataclass(frozen=True)
class StepNotStored(_OfGap):
    """Event: a recovery point was not written to storage, and will not be (`overload` or `storage_error`)."""


@dataclass(frozen=True)
class OverloadChanged(_OfStep):
    """Event: node or storage begin to fall behind training, or keep up again; `step` is the newest recovery point."""

    overloaded: bool
    """Whether it falls behind now."""
    load: Load
    """Work and time of one step, and so how many nodes would be enough."""


Event = (
    Attached
    | StepReplicated
    | StepLost
    | StateUploaded
    | StepResynced
    | StateAdopted
    | StepStored
    | StepNotStored
    | OverloadChanged
)
"""What a core reports to its driver, and a node to its observer."""
