"""The state that the generated code works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from softswitch.state import CounterArray, RegisterArray, Table

Replicas = tuple[tuple[int, int], ...]
"""(egress port, replica id) of each copy."""


@dataclass(frozen=True, slots=True)
class CloneSession:
    """Destinations of clones, and the length in bytes to which they are truncated (0: not truncated)."""

    replicas: Replicas
    truncate_bytes: int


@dataclass
class Runtime:
    """The state that the generated code works on. All containers are changed in place, never replaced.

    Attributes:
        tables, counters, registers: by name.
        groups: multicast groups by id.
        sessions: clone sessions by id.
        random: source of P4's random().
        cut_off: one number, the passes that were cut off because a packet exceeded the limit.
    """

    tables: Mapping[str, Table]
    counters: Mapping[str, CounterArray]
    registers: Mapping[str, RegisterArray]
    groups: dict[int, Replicas] = field(default_factory=dict)
    sessions: dict[int, CloneSession] = field(default_factory=dict)
    random: Random = field(default_factory=Random)
    cut_off: list[int] = field(default_factory=lambda: [0])
