"""Sends what a rank tells a shadow in the background, so that training never waits for the shadow."""

from __future__ import annotations

import threading

from checkmate_common.sidechannel.side_channel_pb2 import ChangeRequest, StepRecord
from checkmate_common.supervised import OnDeath, SupervisedThread
from nccl_emu.shadow_client.sender_core import SenderCore, Turn
from nccl_emu.shadow_client.shadow_session import ShadowSession

_RETRY_SECONDS = 0.1
"""Time between two attempts to reach a shadow that is not there."""


class RecordSender:
    """A thread around a session: a driver of `SenderCore`."""

    def __init__(self, session: ShadowSession, on_death: OnDeath | None = None) -> None:
        """Start the thread; from now on it alone sends. `on_death` is told where it ends by what nobody expected."""
        self._session = session
        self._core = SenderCore(session)
        self._changed = threading.Condition()
        self._thread = SupervisedThread("step records", self._run, on_death)
        self._thread.start()

    def send(self, record: StepRecord) -> None:
        """Queue a record; returns at once."""
        with self._changed:
            self._core.offer(record)
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
            self._core.offer_state(step, state, final=final)
            self._changed.notify()

    def finish(self, timeout: float) -> str | None:
        """Send what is queued and stop, within `timeout` seconds; return why it could not all be sent, None if it was.

        A sender whose thread has died sends nothing any more.
        """
        with self._changed:
            self._core.finish()
            self._changed.notify()
        self._thread.join(timeout)
        sends = self._thread.alive  # asked before it is told to give up, which it may do at once
        with self._changed:
            self._core.abandon()
            self._changed.notify()
        return f"step records still wait after {timeout} s" if sends else self._thread.trouble

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._core.turn is not Turn.IDLE)
                if self._core.turn is Turn.RETRY:
                    # What is offered meanwhile does not make it sooner.
                    self._changed.wait_for(lambda: self._core.turn is Turn.OVER, _RETRY_SECONDS)
                    self._core.retry()
                turn = self._core.turn
            if turn is Turn.OVER:
                return
            if turn is Turn.SEND:
                self._core.send()
