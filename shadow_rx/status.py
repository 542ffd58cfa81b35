"""What a shadow tells about itself: gaps, step reports, status, and the events of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobspec.reasons import GapReason
from shadow_rx.assembler import MissingRange
from shadow_rx.snapshot import Snapshot


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
    """Stream bytes that were placed, frame headers included."""
    first_byte_at: float | None
    """Time of the first byte, None when the step has no bytes."""
    complete_at: float | None
    """Time of the last byte."""
    applied_at: float
    """Time when the optimizer step was applied and the snapshot taken."""


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
    """Frames and replicas that were not placed, by cause (`shadow_rx.capture.Discard`)."""
    pending_bytes: Mapping[int, int]
    """Bytes that were placed (frame headers included) of each step that is still being collected, by step."""


@dataclass(frozen=True)
class StepReplicated:
    """Event: a step became a recovery point."""

    snapshot: Snapshot
    """Its state."""
    report: StepReport
    """How it came about."""


@dataclass(frozen=True)
class StepLost:
    """Event: a step can never become a recovery point in this epoch, and so none of the later ones."""

    group: str
    """DP group name."""
    epoch: int
    """The epoch."""
    gap: Gap
    """Step and reason."""


Event = StepReplicated | StepLost
"""What a core reports to its driver."""
