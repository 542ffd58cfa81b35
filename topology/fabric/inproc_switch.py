"""A simulated switch that can be killed while frames are in flight, then restarted or replaced by a standby."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from topology.processes.switch_events import EventKind, SwitchEvent
from topology.processes.switch_supervisor import SwitchSupervisor
from topology.simulation.simulated_switch import EmbeddedSwitch

_DOWN_S = 0.2
"""Virtual seconds until a killed switch runs again: about TCP's first retransmission timeout."""


class InprocSwitch:
    """One switch of the job: the switch itself, nothing while it is down, or its standby."""

    def __init__(self, device_id: int, *, standby: bool, credentials: grpc.ServerCredentials | None = None) -> None:
        """Start the switch and, if asked for, its standby."""
        self._device_id = device_id
        self._credentials = credentials
        self._active: EmbeddedSwitch | None = EmbeddedSwitch(device_id, credentials=credentials)
        self.address = self._active.address
        self._standby = EmbeddedSwitch(device_id, credentials=credentials) if standby else None
        self.standby_address = self._standby.address if self._standby is not None else None
        self.frames = 0
        """Number of frames that have arrived."""
        self._event: SwitchEvent | None = None
        self._last_frame = 0
        self._restart_at: float | None = None
        self._supervisor: SwitchSupervisor | None = None
        self._on_done: Callable[[SwitchEvent, str], None] | None = None

    def arm(
        self, event: SwitchEvent, frames: int, supervisor: SwitchSupervisor, on_done: Callable[[SwitchEvent, str], None]
    ) -> None:
        """Let `event` happen after `frames` more frames.

        Args:
            event: restart or failover.
            frames: frames that the switch still forwards, at least one.
            supervisor: its controller.
            on_done: called with the event and the address of the switch that is active from then on.
        """
        self._event, self._last_frame, self._supervisor, self._on_done = (
            event,
            self.frames + frames,
            supervisor,
            on_done,
        )

    def forward(self, port: int, frame: bytes, now: float) -> list[tuple[int, bytes]]:
        """Process a frame that arrives at `port`; it is lost while the switch is down."""
        self.frames += 1
        if self._restart_at is not None and now >= self._restart_at:
            self._restart()
        if self._active is None:
            return []
        copies = self._active.forward(port, frame, now)
        if self._event is not None and self.frames >= self._last_frame:
            self._fail(self._event, now)
        return copies

    def close(self) -> None:
        """End all switches."""
        for switch in (self._active, self._standby):
            if switch is not None:
                switch.close()

    def _fail(self, event: SwitchEvent, now: float) -> None:
        assert self._active is not None
        self._active.close()
        self._active = None
        if event.kind is EventKind.RESTART:
            self._restart_at = now + _DOWN_S
        else:
            self._active, self._standby = self._standby, None
            assert self._active is not None
            self.address = self._active.address
            self._finish(event)

    def _restart(self) -> None:
        assert self._event is not None
        assert self._supervisor is not None
        self._restart_at = None
        times = self._supervisor.installations(self.address)
        self._active = EmbeddedSwitch(self._device_id, self.address, self._credentials)
        # Virtual time stands still meanwhile: the controller's time is not simulated.
        self._supervisor.await_installed(self.address, times + 1)
        self._finish(self._event)

    def _finish(self, event: SwitchEvent) -> None:
        assert self._on_done is not None
        self._event = None
        self._on_done(event, self.address)
