"""Switches of a simulated network, embedded in this process."""

from __future__ import annotations

from typing import Protocol

import grpc

from controlplane.desired import desired_state
from controlplane.target import Target
from jobspec.model import Job
from softswitch.p4rt.device import Device
from softswitch.p4rt.server import serve


class SimulatedSwitch(Protocol):
    """A switch of the simulation."""

    def forward(self, port: int, frame: bytes, now: float) -> list[tuple[int, bytes]]:
        """Process a frame that arrives at `port`; return (egress port, frame) of each copy."""
        ...

    def close(self) -> None:
        """Stop the switch."""
        ...


class EmbeddedSwitch:
    """A switch in this process with its P4Runtime server; implements `SimulatedSwitch`."""

    def __init__(
        self, device_id: int, address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None
    ) -> None:
        """Start the server, by default at a free port and in plain text."""
        self.device = Device(device_id)
        self._server = serve(self.device, address, credentials=credentials)
        self.address = self._server.address
        """P4Runtime address, ``HOST:PORT``."""

    def forward(self, port: int, frame: bytes, now: float) -> list[tuple[int, bytes]]:
        """See `SimulatedSwitch`."""
        return self.device.inject(port, frame, int(now * 1e6))

    def close(self) -> None:
        """End the switch at once; its state is lost."""
        self._server.close(0)


class InstalledSwitch(EmbeddedSwitch):
    """An embedded switch with a job installed over P4Runtime."""

    def __init__(self, job: Job) -> None:
        """Install `job`, which has one switch."""
        super().__init__(job.switch.device_id)
        with Target.connect(self.address, job.switch.device_id, election_id=1) as target:
            target.install(desired_state([job]))
