"""The section ``store`` of a job: how often recovery points become durable, and how long they are kept."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from checkmate_common.fields import Strict

MAX_EVERY = 10_000
"""Most steps that can become durable together."""


class Fsync(StrEnum):
    """What is flushed to storage before a step counts as durable."""

    ALWAYS = "always"
    """Everything: a durable step survives a power cut."""
    BASE = "base"
    """Bases only: a durable step survives the end of the process; a power cut may lose those after the base."""
    NEVER = "never"
    """Nothing: a durable step survives the end of the process. Checksums show what a power cut has damaged."""


class Retention(Strict):
    """What is kept: with both rules, whatever either wants; with neither, everything."""

    steps: int | None = Field(default=None, ge=1)
    """Minimum number of newest steps of a group that stay recoverable."""
    bases: int | None = Field(default=None, ge=1)
    """Number of newest bases of a group that are kept, with the gradients since the oldest of them."""


class StoreSpec(Strict):
    """How recovery points are stored: bases, and a log of the reduced gradients between them."""

    every: int = Field(default=1, ge=1, le=MAX_EVERY)
    """Steps that become durable together; 1 flushes each step."""
    base_every: int = Field(default=50, ge=1)
    """Steps from one base to the next; 1 stores each step as a base, without gradients."""
    fsync: Fsync = Fsync.ALWAYS
    """What is flushed."""
    retention: Retention = Field(default_factory=Retention)
    """What is kept."""
