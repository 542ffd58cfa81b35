"""A switch of the simulation that can be killed while frames are in flight, then restarted or replaced by a standby."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from softswitch.p4rt.device import Device
from softswitch.p4rt.server import serve
from topology.processes.switch_events import EventKind, SwitchEvent
from topology.processes.switch_supervisor import SwitchSupervisor

_DOWN_S = 0.2
"""Virtual seconds from the death of a switch until it runs again: about TCP's first retransmission timeout."""


class EmbeddedSwitch:
    """A device and its P4Runtime server."""

    def __init__(
        self, device_id: int, address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None
    ) -> None:
        """Start the server, by default at any free port and in plain text."""
        self.device = Device(device_id)
        self._server = serve(self.device, address, credentials=credentials)
        self.address = self._server.address

    def kill(self) -> None:
        """End it at once, with all that it holds."""
        self._server.close(0)


class InprocSwitch:
    """What is in the place of one switch: the switch, nothing while it is down, or its standby."""

    def __init__(self, device_id: int, *, standby: bool, credentials: grpc.ServerCredentials | None = None) -> None:
        """Start the switch, and its standby where there shall be one."""
        self._device_id = device_id
        self._credentials = credentials
        self._serving: EmbeddedSwitch | None = EmbeddedSwitch(device_id, credentials=credentials)
        self.address = self._serving.address
        self._spare = EmbeddedSwitch(device_id, credentials=credentials) if standby else None
        self.standby_address = self._spare.address if self._spare is not None else None
        self.frames = 0
        """Frames that have arrived."""
        self._event: SwitchEvent | None = None
        self._last_frame = 0
        self._restart_at: float | None = None
        self._supervisor: SwitchSupervisor | None = None
        self._tell: Callable[[SwitchEvent, str], None] | None = None

    def arm(
        self, event: SwitchEvent, frames: int, supervisor: SwitchSupervisor, tell: Callable[[SwitchEvent, str], None]
    ) -> None:
        """Let `event` happen after `frames` more frames.

        Args:
            event: what.
            frames: the switch still forwards so many, at least one.
            supervisor: its controller.
            tell: called with the event and the address of the switch that serves from then on.
        """
        self._event, self._last_frame, self._supervisor, self._tell = event, self.frames + frames, supervisor, tell

    def forward(self, port: int, frame: bytes, now: float) -> list[tuple[int, bytes]]:
        """Process a frame that arrives at `port`; while the switch is down it is lost."""
        self.frames += 1
        if self._restart_at is not None and now >= self._restart_at:
            self._restart()
        if self._serving is None:
            return []
        copies = self._serving.device.inject(port, frame, int(now * 1e6))
        if self._event is not None and self.frames >= self._last_frame:
            self._fail(self._event, now)
        return copies

    def close(self) -> None:
        """End what runs."""
        for switch in (self._serving, self._spare):
            if switch is not None:
                switch.kill()

    def _fail(self, event: SwitchEvent, now: float) -> None:
        assert self._serving is not None
        self._serving.kill()
        self._serving = None
        if event.kind is EventKind.RESTART:
            self._restart_at = now + _DOWN_S
        else:
            self._serving, self._spare = self._spare, None
            assert self._serving is not None
            self.address = self._serving.address
            self._happened(event)

    def _restart(self) -> None:
        assert self._event is not None
        assert self._supervisor is not None
        self._restart_at = None
        times = self._supervisor.installations(self.address)
        self._serving = EmbeddedSwitch(self._device_id, self.address, self._credentials)
        # Virtual time stands still meanwhile: what the controller takes is not part of the simulation.
        self._supervisor.await_installed(self.address, times + 1)
        self._happened(self._event)

    def _happened(self, event: SwitchEvent) -> None:
        assert self._tell is not None
        self._event = None
        self._tell(event, self.address)
