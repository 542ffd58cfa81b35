"""What the testbed asks of a fabric: switches to install on, shadow nodes, and ranks that train and write logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from checkmate_common.sidechannel.side_channel_pb2 import Status
from topology.fabric.roles import Track

OnStep = Callable[[int, float], None]
"""Called as on_step(step, mean loss) when all groups have finished a step."""


@dataclass(frozen=True)
class TrainingPlan:
    """One epoch of training."""

    epoch: int
    """Incarnation of the communicators."""
    first_step: int
    """First step to train."""
    last_step: int
    """Last step to train."""
    logs: Path
    """Folder for the ranks' logs and states (see `RunFiles.rank_logs`)."""
    resume_from: Mapping[str, Path] = field(default_factory=dict)
    """Recovery point to build the trainers from, by group; empty trains from the seed."""
    dies_after: int | None = None
    """Step after which all ranks are killed, in the middle of the next one; None: they train to the last step."""


class Fabric(Protocol):
    """A network with switches, shadow nodes and ranks; a context manager that starts and stops everything."""

    name: str
    """``inproc`` or ``mininet``."""
    targets: dict[str, str]
    """P4Runtime address of each switch, or of its standby once that has taken over."""
    happened: list[str]
    """What became of the events that were asked for, in words."""

    def __enter__(self) -> Self:
        """Start switches and shadow nodes."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything that was started."""
        ...

    def train(self, plan: TrainingPlan, on_step: OnStep) -> float:
        """Train one epoch of all groups; returns, when all ranks have ended, the accuracy of the final models.

        That is the share of the data set that a model classifies rightly (0..1), the mean over the groups.

        Raises:
            TestbedError: a rank failed or made no progress.
        """
        ...

    def settle(self, step: int) -> dict[Track, Status]:
        """Wait until `step` is a recovery point or can never be one; return the status of every track."""
        ...
