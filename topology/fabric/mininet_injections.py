"""Faults of links and of the shadow node in a Mininet fabric."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from topology.simulation.links import Impairments, LinkStats


@dataclass(frozen=True)
class MininetInjections:
    """Faults; by default none."""

    links: Mapping[str, tuple[Impairments, Impairments]] = field(default_factory=dict)
    """(uplink, downlink) impairments by host or shadow node."""
    shadow_program: tuple[str, ...] = ("shadow_rx",)
    """Module and first arguments of the shadow node's process, until it is restarted."""

    @property
    def shadow_may_crash(self) -> bool:
        """Whether the shadow node may end by itself; it is then restarted."""
        return self.shadow_program != ("shadow_rx",)


def as_json(impairments: Impairments) -> str:
    """Return the JSON text that `topology.simulation.impairing_bridge` reads."""
    # JSON has no infinity: an unlimited field is left out.
    return json.dumps({name: value for name, value in asdict(impairments).items() if value != float("inf")})


def read_stats(path: Path) -> tuple[LinkStats, LinkStats]:
    """Read a bridge's statistics of (uplink, downlink); zeros if it wrote no file."""
    try:
        up, down = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return LinkStats(), LinkStats()
    return LinkStats(**up), LinkStats(**down)
