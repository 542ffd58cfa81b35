"""The switch of a simulated network: embedded, with a job installed over P4Runtime."""

from __future__ import annotations

from typing import Protocol

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


class InstalledSwitch:
    """An embedded switch with a job installed over P4Runtime."""

    def __init__(self, job: Job) -> None:
        """Install `job`, which has one switch."""
        self.device = Device(job.switch.device_id)
        self._server = serve(self.device)
        with Target.connect(self._server.address, job.switch.device_id, election_id=1) as target:
            target.install(desired_state([job]))

    def forward(self, port: int, frame: bytes, now: float) -> list[tuple[int, bytes]]:
        """See `SimulatedSwitch`."""
        return self.device.inject(port, frame, int(now * 1e6))

    def close(self) -> None:
        """See `SimulatedSwitch`."""
        self._server.close()
