"""What a rank process tells: progress on standard output, results in files."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, TextIO

from checkmate_common.files.private_files import make_private_folder, private, write_private
from nccl_emu.shadow_client.step_meter import StepResult


class Reporter:
    """Writes JSON lines: events to a stream, one result a step to ``rank-<rank>.jsonl``."""

    def __init__(self, out: Path, rank: int, epoch: int, stream: TextIO) -> None:
        """Make the directory and begin the result file anew.

        Args:
            out: directory for results.
            rank: the rank.
            epoch: incarnation of the communicator.
            stream: takes the events, each flushed at once.
        """
        make_private_folder(out)
        self._out = out
        self._rank, self._epoch = rank, epoch
        self._stream = stream
        self._lock = threading.Lock()  # lost records are told by the sender's thread
        self._results = open(out / f"rank-{rank}.jsonl", "w", encoding="utf-8", opener=private)  # noqa: SIM115 - `close` does

    def close(self) -> None:
        """Close the result file."""
        self._results.close()

    def ready(self, first_step: int) -> None:
        """All connections are established."""
        self._event("ready", first_step=first_step)

    def step(self, result: StepResult, state: bytes | None) -> None:
        """Keep the result of a step, and the state after it (rank 0) as ``state-<step>.safetensors``."""
        if state is not None:
            path = self._out / f"state-{result.step:08d}.safetensors"
            partial = path.with_suffix(".partial")
            write_private(partial, state)
            partial.replace(path)
        self._results.write(json.dumps(result.to_json()) + "\n")
        self._results.flush()
        self._event("step", step=result.step, loss=result.loss, lr=result.lr)

    def record_lost(self, step: int, reason: str) -> None:
        """The shadow could not be told of a step; training goes on."""
        self._event("record_lost", step=step, reason=reason)

    def thread_died(self, name: str, trouble: str) -> None:
        """A thread ended by what nobody expected; training goes on, and ends with an error."""
        self._event("thread_died", thread=name, trouble=trouble)

    def done(self, step: int, accuracy: float) -> None:
        """Everything is trained and closed."""
        self._event("done", step=step, accuracy=accuracy)

    def error(self, message: str) -> None:
        """The rank gives up."""
        self._event("error", message=message)

    def _event(self, name: str, **fields: Any) -> None:
        line = json.dumps({"event": name, "rank": self._rank, "epoch": self._epoch, **fields})
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()
