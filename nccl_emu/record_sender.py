"""Sends step records in the background, so that training never waits for the shadow."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from jobspec.sidechannel.side_channel_pb2 import StepRecord
from nccl_emu.errors import SideChannelError
from nccl_emu.side_channel import SideChannel

MAX_WAITING = 1024
"""Records kept while the shadow does not answer; later ones are lost (and their steps no recovery points)."""


class RecordSender:
    """A thread and a bounded queue."""

    def __init__(self, channel: SideChannel, on_failure: Callable[[int, str], None]) -> None:
        """Start the thread.

        Args:
            channel: where records go.
            on_failure: called with step and reason, from any thread, for each record that is lost.
        """
        self._channel = channel
        self._on_failure = on_failure
        self._queue: queue.Queue[StepRecord | None] = queue.Queue(MAX_WAITING)
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="step records", daemon=True)
        self._thread.start()

    def send(self, record: StepRecord) -> None:
        """Queue a record; returns at once."""
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._on_failure(record.step, f"{MAX_WAITING} records wait already")

    def finish(self, timeout: float) -> bool:
        """Send what is queued and stop; returns False when that took longer than `timeout` seconds."""
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            self._abandoned.set()
            return False
        self._thread.join(timeout)
        self._abandoned.set()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (record := self._queue.get()) is not None and not self._abandoned.is_set():
            try:
                self._channel.record_step(record)
            except SideChannelError as error:
                self._on_failure(record.step, str(error))
