"""The result of a testbed run, from which the table, `summary.json` and the HTML report are made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkmate_common.files.private_files import write_private
from jobspec.model import Job


@dataclass(frozen=True)
class Iteration:
    """One training step of one group, as seen by the ranks, the switch and one shadow node."""

    step: int
    """Training step, from 1."""
    loss: float
    """Mean loss over the ranks' shares of the batch."""
    wire_bytes: int
    """Bytes of all Ethernet frames that the ranks sent for the step, with headers and retransmissions."""
    tagged_payload_bytes: int
    """TCP payload bytes that the ranks sent with a DSCP of the job, without retransmissions."""
    replica_payload_bytes: int
    """TCP payload bytes that the shadow node placed, each counted once."""
    complete: bool
    """Whether every byte of the reduced gradient arrived and every frame's CRC was right."""
    applied: bool
    """Whether the optimizer step was applied and the recovery point published."""
    matches: bool | None
    """Whether every parameter and optimizer tensor equals the trainer's bit for bit; None if none was published."""
    mismatch: str | None = None
    """First tensor that differs, None if none does."""
    reason: str | None = None
    """Why there is no recovery point: a value of `checkmate_common.recovery.reasons.GapReason`."""
    detail: str | None = None
    """Flow, byte ranges, or what else the reason refers to."""
    trained_at: float = 0.0
    """Seconds from the start of training until the slowest rank had finished the step."""
    published_at: float | None = None
    """Seconds from the start of training until the recovery point was published."""
    group: str = ""
    """Name of the DP group."""
    shadow: str = ""
    """Name of the shadow node."""
    repaired_bytes: int = 0
    """Part of `replica_payload_bytes` that came only from a redundant hop."""
    durable_at: float | None = None
    """Seconds from the start of training until the recovery point was on storage."""

    @property
    def verified(self) -> bool:
        """Whether a recovery point exists and equals the trainer's state."""
        return self.applied and self.matches is True


@dataclass(frozen=True)
class RestartResult:
    """The run of new trainers that start from recovery points of one step alone."""

    from_step: int
    """Step of the recovery points; 0 if there were none to restart from."""
    iterations: tuple[Iteration, ...]
    """Its steps, in the order of `RunResult.iterations`."""
    identical: bool
    """Whether the final state of every group equals the uninterrupted run's byte for byte."""
    difference: str | None = None
    """First difference, or why there was no restart."""


@dataclass(frozen=True)
class RunResult:
    """The result of a testbed run."""

    job: Job
    """The job as run, with ``--ranks``, ``--mtu`` and so on applied."""
    switch: str
    """``softswitch`` or ``bmv2``."""
    fabric: str
    """``inproc`` or ``mininet``."""
    seed: int
    """Seed of the run."""
    gradient_bytes: int
    """Bytes of one gradient, over all groups."""
    header_bytes: int
    """Frame-header bytes that accompany one gradient at hop 0, over all flows."""
    iterations: tuple[Iteration, ...]
    """The uninterrupted run: a row for each step, group and shadow node of the group, in this order."""
    ranks_equal: bool
    """Whether all ranks held byte-equal state after every step."""
    restart: RestartResult
    """The restarted run."""
    wall_seconds: float
    """Duration of the whole run in seconds of wall time."""
    accuracy: float | None = None
    """Share (0..1) of the data set that the final model classifies correctly."""
    discarded: dict[str, int] = field(default_factory=dict)
    """Number of replicas that shadow nodes did not place, by cause."""
    switch_counters: dict[str, int] = field(default_factory=dict)
    """Packets not replicated, by reason (`p4src.constants.NotReplicated`), and those ``replicated``."""
    faults: tuple[str, ...] = ()
    """Injected faults, as ``KIND:STEP``."""
    events: tuple[str, ...] = ()
    """What happened to switch and shadow node during the uninterrupted run, a sentence each."""
    group_bytes: Mapping[str, int] = field(default_factory=dict)
    """Gradient and frame-header bytes of one step by group; may be empty if there is one group."""

    @property
    def ranks(self) -> int:
        """Number of ranks of all groups."""
        return sum(len(group.ring) for group in self.job.groups)

    @property
    def steps(self) -> tuple[int, ...]:
        """Training steps of the uninterrupted run."""
        return tuple(dict.fromkeys(i.step for i in self.iterations))

    def single_copy_bytes(self, group: str) -> int:
        """Return the bytes of one reduced gradient of `group` with its frame headers."""
        return self.group_bytes.get(group, self.gradient_bytes + self.header_bytes)

    @property
    def expected_replica_bytes(self) -> int:
        """Bytes that reach shadow nodes in one step if each node gets each byte of its groups once."""
        return sum(self.single_copy_bytes(group.name) * len(group.shadows) for group in self.job.groups)

    @property
    def verified(self) -> int:
        """Number of verified rows."""
        return sum(iteration.verified for iteration in self.iterations)

    @property
    def mismatched(self) -> int:
        """Number of published rows that differ from the trainer; must be 0 whatever happens."""
        both = (*self.iterations, *self.restart.iterations)
        return sum(iteration.matches is False for iteration in both)

    @property
    def passed(self) -> bool:
        """Whether everything that the testbed checks holds."""
        steps = (*self.iterations, *self.restart.iterations)
        return all(step.verified for step in steps) and self.ranks_equal and self.restart.identical

    @property
    def verdict(self) -> str:
        """The closing line of a run."""
        restart = "restart identical" if self.restart.identical else "restart NOT identical"
        return f"shadow == trainer: {self.verified}/{len(self.iterations)} iterations, {restart}"

    def summary(self) -> dict[str, Any]:
        """Return the machine-readable result (``summary.json``)."""
        return {
            "iterations": len(self.iterations),
            "verified_iterations": self.verified,
            "mismatched_iterations": self.mismatched,
            "restart_identical": self.restart.identical,
            "steps": len(self.steps),
            "ranks": self.ranks,
            "switch": self.switch,
            "fabric": self.fabric,
            "gradient_bytes_per_iteration": self.gradient_bytes,
            "replica_payload_bytes": sum(i.replica_payload_bytes for i in self.iterations),
            "tagged_payload_bytes": sum({(i.group, i.step): i.tagged_payload_bytes for i in self.iterations}.values()),
            "repaired_bytes": sum(i.repaired_bytes for i in self.iterations),
            # With several shadow nodes that all get everything, replica_payload_bytes is that many times the tagged.
            "replica_bytes_wanted_per_step": self.expected_replica_bytes,
            "shadows_by_group": {group.name: list(group.shadows) for group in self.job.groups},
            "wall_s": round(self.wall_seconds, 3),
            "config": self.job.model_dump(mode="json"),
            "passed": self.passed,
            "ranks_equal": self.ranks_equal,
            "seed": self.seed,
            "accuracy": self.accuracy,
            "frame_header_bytes_per_iteration": self.header_bytes,
            "restart_from_step": self.restart.from_step,
            "restart_difference": self.restart.difference,
            "discarded_replicas": self.discarded,
            "switch_counters": self.switch_counters,
            "faults": list(self.faults),
            "events": list(self.events),
            "gaps": [
                {"step": i.step, "group": i.group, "shadow": i.shadow, "reason": i.reason, "detail": i.detail}
                for i in self.iterations
                if i.reason is not None
            ],
        }

    def write_summary(self, path: Path) -> None:
        """Write `summary` as JSON to `path`."""
        write_private(path, json.dumps(self.summary(), indent=2) + "\n")
