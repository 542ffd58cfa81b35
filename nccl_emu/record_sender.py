"""Sends what a rank tells a shadow in the background, so that training never waits for the shadow."""

from __future__ import annotations

import threading

from jobspec.sidechannel.side_channel_pb2 import ChangeRequest, StepRecord
from jobspec.supervised import OnDeath, SupervisedThread
from nccl_emu.shadow_session import ShadowSession

_RETRY_SECONDS = 0.1
"""Time between two attempts to reach a shadow that is not there."""


class RecordSender:
    """A thread around a session."""

    def __init__(self, session: ShadowSession, on_death: OnDeath | None = None) -> None:
        """Start the thread; from now on it alone sends. `on_death` is told where it ends by what nobody expected."""
        self._session = session
        self._changed = threading.Condition()
        self._finishing = False
        self._abandoned = threading.Event()
        self._thread = SupervisedThread("step records", self._run, on_death)
        self._thread.start()

    def send(self, record: StepRecord) -> None:
        """Queue a record; returns at once."""
        with self._changed:
            self._session.offer(record)
            self._changed.notify()

    def change(self, request: ChangeRequest) -> None:
        """Announce another optimizer or layout, from the caller's thread: `ShadowSession.change`."""
        self._session.change(request)

    def wants_state(self, step: int) -> bool:
        """Tell whether the shadow asks for the state after `step`."""
        return self._session.wants_state(step)

    def send_state(self, step: int, state: bytes, *, final: bool = False) -> None:
        """Queue the state after `step` (`ShadowSession.offer_state`); returns at once."""
        with self._changed:
            self._session.offer_state(step, state, final=final)
            self._changed.notify()

    def finish(self, timeout: float) -> str | None:
        """Send what is queued and stop, within `timeout` seconds; return why it could not all be sent, None if it was.

        A sender whose thread has died sends nothing any more.
        """
        with self._changed:
            self._finishing = True
            self._changed.notify()
        self._thread.join(timeout)
        self._abandoned.set()
        return f"step records still wait after {timeout} s" if self._thread.alive else self._thread.trouble

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._session.waiting or self._finishing)
                if not self._session.waiting:
                    return
            while not self._session.flush():
                if self._abandoned.wait(_RETRY_SECONDS):
                    return
