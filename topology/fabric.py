"""What the testbed asks of a fabric: a switch to install on, a shadow, and ranks that train and write logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from jobspec.sidechannel.side_channel_pb2 import Status

OnStep = Callable[[int, float], None]
"""Called as on_step(step, loss) when a rank has finished a step."""


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
    """Folder for the ranks' logs and states (`nccl_emu.steplog`)."""
    resume_from: Path | None = None
    """Recovery point to build the trainers from; None trains from the seed."""


class Fabric(Protocol):
    """A network with a switch, a shadow and ranks; a context manager that starts and stops everything."""

    name: str
    """``inproc`` or ``mininet``."""
    target: str
    """P4Runtime address of the switch."""

    def __enter__(self) -> Self:
        """Start the switch and the shadow."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything that was started."""
        ...

    def train(self, plan: TrainingPlan, on_step: OnStep) -> float:
        """Train one epoch; returns, when all ranks have ended, the accuracy of the final model on the data set (0..1).

        Raises:
            TestbedError: a rank failed or made no progress.
        """
        ...

    def settle(self, step: int) -> Status:
        """Wait until `step` is a recovery point or can never be one; return the shadow's status."""
        ...
