"""The interface of a fabric: switches to install the job on, shadow nodes, and ranks that train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from checkmate_common.sidechannel.side_channel_pb2 import Status
from topology.fabric.participants import Track

OnStep = Callable[[int, float], None]
"""Called as on_step(step, mean loss over the groups) when all groups have finished a step."""


@dataclass(frozen=True)
class TrainingPlan:
    """What to train in one epoch."""

    epoch: int
    """Number of the epoch, from 1."""
    first_step: int
    """First step to train."""
    last_step: int
    """Last step to train."""
    logs: Path
    """Folder for the ranks' logs and states (see `RunFiles.rank_logs`)."""
    resume_from: Mapping[str, Path] = field(default_factory=dict)
    """Folder of the recovery point that a group's trainers start from, by group; empty: they start from the seed."""
    kill_after: int | None = None
    """Step after which all ranks are killed, in the middle of the next step; None: not at all."""


class Fabric(Protocol):
    """A network of switches, shadow nodes and ranks; a context manager that starts and stops them."""

    name: str
    """``inproc`` or ``mininet``."""
    targets: dict[str, str]
    """P4Runtime address by switch; that of the standby once it has taken over."""
    event_log: list[str]
    """What happened at each event, a sentence each."""

    def __enter__(self) -> Self:
        """Start switches and shadow nodes."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything that was started."""
        ...

    def train(self, plan: TrainingPlan, on_step: OnStep) -> float:
        """Train one epoch of all groups; return the accuracy of the final models when all ranks have ended.

        The accuracy is the share (0..1) of the data set classified correctly, the mean over the groups.

        Raises:
            TestbedError: a rank failed or made no progress.
        """
        ...

    def settle(self, step: int) -> dict[Track, Status]:
        """Wait until `step` is a recovery point or never will be; return the status of every track."""
        ...
