"""What a Mininet fabric is asked to spoil, besides the events of switch and shadow node."""

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
    """Impairments of the way to the switch and of that back, by host or shadow node."""
    shadow_program: tuple[str, ...] = ("shadow_rx",)
    """Module, with its first arguments, that runs as a shadow node until it is started again."""

    @property
    def shadow_dies(self) -> bool:
        """Whether the shadow node may end by itself; it is started again then."""
        return self.shadow_program != ("shadow_rx",)


def as_json(impairments: Impairments) -> str:
    """Return what `topology.simulation.impairing_bridge` reads."""
    # JSON knows no infinity: what is not limited is left out.
    return json.dumps({name: value for name, value in asdict(impairments).items() if value != float("inf")})


def read_stats(path: Path) -> tuple[LinkStats, LinkStats]:
    """Return what a bridge has done on the way to the switch, and on that back; nothing where it has left no file."""
    try:
        up, down = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return LinkStats(), LinkStats()
    return LinkStats(**up), LinkStats(**down)
