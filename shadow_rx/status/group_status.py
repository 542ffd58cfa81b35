"""What a shadow tells about itself: gaps, step reports, status, and the events of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobspec.layout import Layout
from jobspec.reasons import GapReason
from placement.assembler import MissingRange
from shadow_rx.apply.model import Tensors
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.estimate import Load
from shadow_rx.status.health import Health
from shadow_rx.trainer.description import OptimizerPlan


@dataclass(frozen=True)
class Gap:
    """Why a step is not a recovery point, or not on storage."""

    step: int
    """The training step."""
    reason: GapReason
    """Kind of the gap."""
    detail: str
    """What exactly is missing or wrong, and where."""
    missing: tuple[MissingRange, ...] = ()
    """Byte ranges that have not arrived (of very many the first ones; `detail` has the total)."""


@dataclass(frozen=True)
class StepReport:
    """How a step became a recovery point; times are seconds of the clock that the core is driven with."""

    epoch: int
    """Incarnation that trained it."""
    step: int
    """The training step."""
    replica_bytes: int
    """Stream bytes that were placed, frame headers included; 0 where the state was uploaded, not replayed."""
    first_byte_at: float | None
    """Time of the first byte, None when the step has no bytes."""
    complete_at: float | None
    """Time of the last byte."""
    applied_at: float
    """Time when the optimizer step was applied and the snapshot taken."""
    repaired_bytes: int = 0
    """Those of `replica_bytes` that are there, and right, only because of a redundant hop."""
    peer_bytes: int = 0
    """Those of `replica_bytes` that another shadow node gave."""


@dataclass(frozen=True)
class GroupStatus:
    """Where a group's replica is; ``trained_step >= replica_step >= durable_step``."""

    group: str
    """DP group name."""
    epoch: int
    """Present incarnation, 0 before the first attach."""
    trained_step: int
    """Newest step that the ranks announced."""
    replica_step: int
    """Newest recovery point of the present history."""
    durable_step: int
    """Newest one that is completely on storage, 0 without."""
    gaps: tuple[Gap, ...]
    """Why the numbers differ, and which steps could not be recovered: newest first."""
    replica_packets: int
    """Intact replicas of the group's flows, SYNs included."""
    replica_payload_bytes: int
    """Their payload bytes, repeated ones included."""
    discarded: Mapping[str, int]
    """Frames and replicas that were not placed, by cause (`shadow_rx.receive.replica_filter.Discard`)."""
    pending_bytes: Mapping[int, int]
    """Bytes that were placed (frame headers included) of each step that is still being collected, by step."""
    state_from: int | None = None
    """The trainer is asked for its state after a step from this one on; None while none is needed."""
    confirmed: tuple[str, ...] = ()
    """What the ranks' digests confirmed of the newest recovery point: "parameters", "optimizer"; nothing without."""
    health: Health = field(default_factory=Health)
    """Lags, coverage, buffers, load and totals."""


@dataclass(frozen=True)
class Attached:
    """Event: an epoch began, or a running one was joined again."""

    group: str
    """DP group name."""
    epoch: int
    """The epoch."""
    step: int
    """Newest trained step: ``first_step - 1``, or that of the rejoined communicator."""
    need_state: bool
    """Whether the trainer has to upload its state before the first step."""
    rejoin: bool
    """Whether this shadow was started again while the communicator ran."""
    undeclared: str | None = None
    """What is wrong with the trainer's state objects, so that nothing will be published; None where nothing is."""


@dataclass(frozen=True)
class StepReplicated:
    """Event: a step became a recovery point."""

    snapshot: Snapshot
    """Its state."""
    report: StepReport
    """How it came about."""


@dataclass(frozen=True)
class StepLost:
    """Event: a step cannot become a recovery point by replay, and so none of the later ones until a resync."""

    group: str
    """DP group name."""
    epoch: int
    """The epoch."""
    gap: Gap
    """Step and reason."""


@dataclass(frozen=True)
class StateUploaded:
    """Event: a state that the trainer uploaded is what the shadow goes on from."""

    group: str
    """DP group name."""
    epoch: int
    """The epoch."""
    step: int
    """Step after which the state is valid: ``first_step - 1``, or that of a resync."""
    layout: Layout
    """Layout in force."""
    optimizer: OptimizerPlan
    """Optimizer in force."""
    tensors: Tensors
    """Parameters and optimizer state: copies that nothing changes."""
    constants: Tensors = field(default_factory=dict)
    """Objects that are the same for the whole run: ``state/<object>``."""


@dataclass(frozen=True)
class StepResynced:
    """Event: after a loss the shadow goes on from the trainer's state; the steps between can never be recovered."""

    group: str
    """DP group name."""
    epoch: int
    """The epoch."""
    step: int
    """Step of the uploaded state."""
    since: int
    """First step that was lost: `since` up to ``step - 1`` are."""


@dataclass(frozen=True)
class StateAdopted:
    """Event: a shadow node that was started again took a recovery point of another one, newer than its own."""

    snapshot: Snapshot
    """The point."""
    peer: str
    """Name of the shadow node that gave it."""
    since: int
    """First step that was not here: of those up to the one before the point only the other node may have points."""


@dataclass(frozen=True)
class StepStored:
    """Event: a recovery point is durable."""

    group: str
    """DP group name."""
    epoch: int
    """The epoch."""
    step: int
    """The step."""


@dataclass(frozen=True)
class StepNotStored:
    """Event: a recovery point was not written to storage, and will not be."""

    group: str
    """DP group name."""
    epoch: int
    """The epoch."""
    gap: Gap
    """Step and reason: `overload` or `storage_error`."""


@dataclass(frozen=True)
class OverloadChanged:
    """Event: the node, or its storage, begins to fall behind training, or keeps up again."""

    group: str
    """DP group name."""
    epoch: int
    """The epoch."""
    step: int
    """Newest recovery point at that time."""
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
