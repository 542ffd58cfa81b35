"""When a rank's records are sent to a shadow node, and when that is tried again or given up. Pure.

No threads, clocks or locks: a driver asks whose turn it is. `send` alone takes long: a driver with threads holds its
lock for all the other calls, and not for that one.
"""

from __future__ import annotations

from enum import Enum

from checkmate_common.sidechannel.side_channel_pb2 import StepRecord
from nccl_emu.shadow_client.shadow_session import ShadowSession


class Turn(Enum):
    """What a driver does next."""

    IDLE = "idle"
    """Wait until something is offered, or the end is told."""
    SEND = "send"
    """Call `send`."""
    RETRY = "retry"
    """Wait a while, as the shadow node is not there, then call `retry`."""
    OVER = "over"
    """Nothing, any more."""


class SenderCore:
    """What waits of one session, sent in order, one message at a time."""

    def __init__(self, session: ShadowSession) -> None:
        """Send what `session` is offered here."""
        self._session = session
        self._away = self._finishing = self._abandoned = False

    @property
    def turn(self) -> Turn:
        """What is to be done now."""
        if self._abandoned or (self._finishing and not self._session.waiting):
            return Turn.OVER
        if not self._session.waiting:
            return Turn.IDLE
        return Turn.RETRY if self._away else Turn.SEND

    def offer(self, record: StepRecord) -> None:
        """Queue a record (`ShadowSession.offer`)."""
        self._session.offer(record)

    def offer_state(self, step: int, state: bytes, *, final: bool = False) -> None:
        """Queue the state after `step` (`ShadowSession.offer_state`)."""
        self._session.offer_state(step, state, final=final)

    def send(self) -> None:
        """Send the oldest message that waits; it stays where the shadow node is not there."""
        self._away = not self._session.send_next()

    def retry(self) -> None:
        """Note that enough time has passed since the shadow node was not there."""
        self._away = False

    def finish(self) -> None:
        """Note that nothing more will be offered: over as soon as nothing waits."""
        self._finishing = True

    def abandon(self) -> None:
        """Give up what waits."""
        self._abandoned = True
