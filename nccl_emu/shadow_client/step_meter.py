"""What one rank measures of one step: a line of its result file, equal in a process and in a simulation."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from nccl_emu.errors import LinkError
from nccl_emu.ring.rank_node import RankNode
from nccl_emu.training.trainer import DataParallelTrainer


@dataclass(frozen=True)
class StepResult:
    """One step of one rank."""

    step: int
    """Training step."""
    epoch: int
    """Incarnation of the communicator."""
    loss: float
    """Mean loss of the rank's share of the batch."""
    lr: float
    """Learning rate that the step used."""
    stream_bytes: int
    """Bytes that the step adds to the rank's streams."""
    tagged_bytes: int
    """Those of them with a codepoint, which are replicated."""
    sent_payload_bytes: int
    """TCP payload sent meanwhile, retransmissions included."""
    frame_bytes: int
    """Bytes of all frames sent meanwhile, acknowledgments included."""
    retransmits: int
    """Segments sent again meanwhile."""
    at: float
    """Seconds of the driver's clock when the step was applied."""
    state_sha256: str
    """SHA-256 (hex) of the state after the step as a safetensors file."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return asdict(self)


class StepMeter:
    """Measures one step after the other."""

    def __init__(self, node: RankNode, trainer: DataParallelTrainer) -> None:
        """Measure `node` and `trainer` from now on."""
        self._node = node
        self._trainer = trainer
        self._mark()

    def result(self, state: bytes, at: float) -> StepResult:
        """Return what the step that was applied last took, and begin with the next.

        Args:
            state: the trainer's state after the step, as a safetensors file.
            at: seconds of the driver's clock.

        Raises:
            LinkError: there is no ring, so no step either.
        """
        node, trainer = self._node, self._trainer
        if node.runner is None:
            raise LinkError("not_connected", "no step was all-reduced: connect first")
        before = self._before
        self._mark()
        sent, frames, again = (now - then for now, then in zip(self._before, before, strict=True))
        return StepResult(
            step=trainer.step,
            epoch=node.epoch,
            loss=trainer.loss,
            lr=trainer.rate,
            stream_bytes=node.runner.stream_bytes,
            tagged_bytes=node.runner.tagged_bytes,
            sent_payload_bytes=sent,
            frame_bytes=frames,
            retransmits=again,
            at=at,
            state_sha256=hashlib.sha256(state).hexdigest(),
        )

    def _mark(self) -> None:
        stats = self._node.stats
        self._before = (stats.sent_payload_bytes, stats.frame_bytes, stats.retransmits)
