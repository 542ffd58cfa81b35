"""The fault rows of the acceptance test, as data: the faults injected and the outcomes they must have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Injection(StrEnum):
    """A fault that is injected in a run."""

    LOSS_BEFORE = "loss-before-switch"
    """Frames are lost between the ranks and the switch, in both directions."""
    LOSS_AFTER = "loss-after-switch"
    """Replicas are lost between the switch and the shadow node."""
    REORDER = "reordering"
    """Frames are delayed on every link, so that later ones overtake them."""
    DUPLICATE = "duplication"
    """Frames arrive twice on every link."""
    CORRUPT = "corruption"
    """Bits of frames are flipped on every link."""
    CONGESTION = "mirror-congestion"
    """The link to the shadow node is slower than the replicas arrive, with a short queue: bursts are lost."""
    SIDE_CHANNEL = "side-channel-loss"
    """Side-channel requests and replies are lost, and requests arrive twice."""
    SHADOW_RESTART = "shadow-restart"
    """The shadow node is killed in the middle of a step and restarted with its store."""
    OPTIMIZER_CHANGE = "optimizer-change"
    """The optimizer's options, parameter groups or class change in the middle of the run."""
    SWITCH_RESTART = "switch-restart"
    """The switch is killed and restarted empty; its controller restores it."""
    SWITCH_FAILOVER = "switch-failover"
    """The switch is killed for good; a standby takes over."""
    RANK_RESTART = "rank-restart"
    """All ranks are killed in the middle of a step and restarted from the newest durable recovery point."""
    FULL_DISK = "full-disk"
    """The store's disk is full for some steps: writes fail with ENOSPC after a part."""
    STORAGE_ERRORS = "storage-errors"
    """For some steps, writes to the store fail at random after a part."""
    SLOW_STORAGE = "slow-storage"
    """For some steps, writes to the store take up to several steps; few points may wait, or memory is low."""
    TORN_WRITE = "torn-write"
    """The shadow node is killed in the middle of a write to its store and restarted."""


class Outcome(StrEnum):
    """What can happen to a step other than being replicated and stored at once."""

    REPAIRED = "repaired"
    """Lost bytes came from the redundant hop."""
    RESYNCED = "resynced"
    """The trainer uploaded the state of the step after a loss."""
    REPORTED = "reported"
    """The step is not on storage, and the reason was reported."""


@dataclass(frozen=True)
class Scenario:
    """One fault row."""

    name: str
    """Short name, for ``--only``."""
    injections: tuple[Injection, ...]
    """Faults. Each must happen at least once in the row's runs together."""
    expects: frozenset[Outcome] = frozenset()
    """At least one of these must occur in the row's runs together; empty: any."""
    complete: bool = False
    """Whether every step must become durable."""
    pick: int = 0
    """How many of `injections` the seed draws; 0: all of them."""


_REPAIR = frozenset({Outcome.REPAIRED})
_LOSES = frozenset({Outcome.RESYNCED, Outcome.REPORTED})

NETWORK = (
    Injection.LOSS_BEFORE, Injection.LOSS_AFTER, Injection.REORDER, Injection.DUPLICATE, Injection.CORRUPT,
)  # fmt: skip
"""Link impairments, which can be combined freely."""

SINGLE_FAULTS = (
    Scenario("loss-before-switch", (Injection.LOSS_BEFORE,), complete=True),
    Scenario("loss-after-switch", (Injection.LOSS_AFTER,), _REPAIR),
    Scenario("reordering", (Injection.REORDER,), complete=True),
    Scenario("duplication", (Injection.DUPLICATE,), complete=True),
    Scenario("corruption", (Injection.CORRUPT,), _REPAIR),
    Scenario("mirror-congestion", (Injection.CONGESTION,), frozenset(Outcome)),
    Scenario("shadow-restart", (Injection.SHADOW_RESTART,), _LOSES),
    Scenario("optimizer-change", (Injection.OPTIMIZER_CHANGE,), complete=True),
    Scenario("switch-restart", (Injection.SWITCH_RESTART,)),
    Scenario("switch-failover", (Injection.SWITCH_FAILOVER,)),
    Scenario("rank-restart", (Injection.RANK_RESTART,), complete=True),
    Scenario("full-disk", (Injection.FULL_DISK,), frozenset({Outcome.REPORTED})),
    Scenario("storage-errors", (Injection.STORAGE_ERRORS,), frozenset({Outcome.REPORTED})),
    Scenario("slow-storage", (Injection.SLOW_STORAGE,), frozenset({Outcome.REPORTED})),
    Scenario("torn-write", (Injection.TORN_WRITE,), _LOSES),
)
"""Each fault of the contract alone."""

MIXED_ANY = Scenario("mixed-anything", tuple(Injection), pick=5)
"""Five faults that the seed draws from all of them; the row of the soak test."""

MIXED_FAULTS = (
    Scenario("mixed-network", (*NETWORK, Injection.SIDE_CHANNEL)),
    Scenario(
        "mixed-restarts",
        (*NETWORK[:2], Injection.SHADOW_RESTART, Injection.SWITCH_RESTART, Injection.RANK_RESTART),
    ),
    Scenario(
        "mixed-storage",
        (Injection.LOSS_AFTER, Injection.OPTIMIZER_CHANGE, Injection.FULL_DISK, Injection.TORN_WRITE),
    ),
    Scenario(
        "mixed-slow-storage",
        (Injection.SHADOW_RESTART, Injection.RANK_RESTART, Injection.STORAGE_ERRORS, Injection.SLOW_STORAGE),
    ),
    MIXED_ANY,
)
"""Several faults in each run."""

SCENARIOS = (*SINGLE_FAULTS, *MIXED_FAULTS)
"""All fault rows, in the order of the table."""
