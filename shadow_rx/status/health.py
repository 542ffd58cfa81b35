"""What a status says besides step numbers: lags, coverage of flows, buffers, load, totals. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkmate_common.recovery.reasons import GapReason
from shadow_rx.status.histogram import Distribution
from shadow_rx.status.load import Load


@dataclass(frozen=True)
class Part:
    """A part of a shadow node that works beside the replication: a thread, or a log."""

    name: str
    """Its name."""
    trouble: str | None = None
    """Why it does not work, or not fully; None while it does."""
    lost: int = 0
    """Of logs: lines or messages that are not in it."""


@dataclass(frozen=True)
class Lag:
    """How far one of the three step numbers is behind the one before it."""

    steps: int = 0
    """Difference of the numbers."""
    seconds: float = 0.0
    """How long the oldest step in between has been waiting, by the clock that the core is driven with."""
    bytes: int = 0
    """Between trained and replica: replica bytes (frame headers included) that are not there yet. Between replica and
    durable: gradient bytes of the recovery points that are not on storage."""
    reason: GapReason | None = None
    """Why the oldest step in between waits, None where there is none."""
    detail: str = ""
    """What exactly it waits for."""


@dataclass(frozen=True)
class FlowCoverage:
    """What has arrived of one flow's part of the oldest step that is being collected, in bytes with frame headers."""

    flow_id: int
    """The flow."""
    primary: int
    """Bytes of hop 0 that are there."""
    primary_expected: int
    """Bytes of hop 0 in one step."""
    redundant: int = 0
    """Bytes of later hops that are there."""
    redundant_expected: int = 0
    """Bytes of later hops that are replicated in one step."""


@dataclass(frozen=True)
class StoreStatus:
    """What a publisher holds of one group."""

    waiting: int = 0
    """Recovery points that wait for storage."""
    depth: int = 0
    """Most that may wait."""
    waiting_bytes: int = 0
    """Their bytes, and those of the one that is being written."""
    log_bytes: int = 0
    """Bytes of steps that were taken and wait for a commit together with later ones."""
    stride: int = 1
    """While storage is slower than training, every `stride`-th waiting step is sure to be kept; 1: each."""


@dataclass(frozen=True)
class Buffers:
    """Memory of a group, and what it is used for."""

    slots: int = 0
    """Steps that can be collected at a time."""
    slots_used: int = 0
    """Steps of which bytes are there."""
    held: int = 0
    """Recovery points in memory."""
    hold: int = 0
    """Most of them."""
    collecting_bytes: int = 0
    """Memory of the slots, used or not."""
    state_bytes: int = 0
    """Parameters and optimizer state: the live copy, that of the step before, and the held recovery points."""
    reserved_bytes: int = 0
    """What `collecting_bytes` and `state_bytes` may grow to; the rest of the limit is for storing."""
    memory_limit: int = 0
    """Configured bound."""
    store: StoreStatus = field(default_factory=StoreStatus)
    """What waits for storage."""

    @property
    def memory_bytes(self) -> int:
        """All of it."""
        return self.collecting_bytes + self.state_bytes + self.store.waiting_bytes + self.store.log_bytes


@dataclass(frozen=True)
class Totals:
    """Counts that only grow while a shadow node runs."""

    replicated_steps: int = 0
    """Steps that became recovery points."""
    stored_steps: int = 0
    """Recovery points that became durable."""
    repaired_bytes: int = 0
    """Replica bytes that are there, and right, only because of a redundant hop."""
    peer_bytes: int = 0
    """Replica bytes that another shadow node gave."""
    resyncs: int = 0
    """States that the trainer uploaded after a loss."""
    lost_steps: Mapping[str, int] = field(default_factory=dict)
    """Steps that could not become recovery points, by reason."""
    unstored_steps: Mapping[str, int] = field(default_factory=dict)
    """Recovery points that were not written to storage, by reason."""


@dataclass(frozen=True)
class Health:
    """All of these, of one group."""

    replica_lag: Lag = field(default_factory=Lag)
    """From trained to replica."""
    durable_lag: Lag = field(default_factory=Lag)
    """From replica to durable."""
    collecting: int = 0
    """Oldest step that is being collected, 0 before the first attach."""
    coverage: tuple[FlowCoverage, ...] = ()
    """Of that step, by flow."""
    buffers: Buffers = field(default_factory=Buffers)
    """Memory."""
    totals: Totals = field(default_factory=Totals)
    """Counts."""
    load: Load = field(default_factory=Load)
    """How busy the node is with the group."""
    overloaded: bool = False
    """Whether it, or its storage, falls behind training."""
    apply_seconds: Distribution = field(default_factory=Distribution)
    """How long the node worked on each step: placing its replicas and applying it."""
    store_seconds: Distribution = field(default_factory=Distribution)
    """How long each write took."""
