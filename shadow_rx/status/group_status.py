"""Where a group is: gaps, reports of steps, and its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkmate_common.recovery.reasons import GapReason
from placement.holes import MissingRange
from shadow_rx.status.health import Health


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
    """Current incarnation, 0 before the first attach."""
    trained_step: int
    """Newest step that the ranks announced."""
    replica_step: int
    """Newest recovery point of the current history."""
    durable_step: int
    """Newest one that is completely on storage, 0 without."""
    gaps: tuple[Gap, ...]
    """Why the numbers differ, and which steps could not be recovered: newest first."""
    replica_packets: int
    """Intact replicas of the group's flows, SYNs included."""
    replica_payload_bytes: int
    """Their payload bytes, repeated ones included."""
    discarded: Mapping[str, int]
    """Frames and replicas that were not placed, by cause (`placement.discard.Discard`)."""
    pending_bytes: Mapping[int, int]
    """Bytes that were placed (frame headers included) of each step that is still being collected, by step."""
    state_from: int | None = None
    """The trainer is asked for its state after a step from this one on; None while none is needed."""
    confirmed: tuple[str, ...] = ()
    """What the ranks' digests confirmed of the newest recovery point: "parameters", "optimizer"; nothing without."""
    health: Health = field(default_factory=Health)
    """Lags, coverage, buffers, load and totals."""
