"""A device with a server and a first controller, for tests over real gRPC on loopback."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from finsy.proto import U128, p4r

from softswitch.p4rt import Device, serve
from tests.softswitch.p4rt_client import CPU_PORT, DEVICE_ID, Call, Controller, load_config


def held_device() -> Device:
    """Return a device without a server, with a client of election id 1 that holds it."""
    device = Device(DEVICE_ID, cpu_port=CPU_PORT)
    arbitration = p4r.MasterArbitrationUpdate(device_id=DEVICE_ID, election_id=U128.encode(1))
    device.receive(device.open_stream(lambda _: True), p4r.StreamMessageRequest(arbitration=arbitration))
    return device


class Rig:
    """The sample program on one device; `controller` is the primary and has pushed the pipeline.

    Args:
        pipeline: whether the controller sets the pipeline.
        cpu_port: CPU port of the device.
    """

    def __init__(self, *, pipeline: bool = True, cpu_port: int | None = CPU_PORT) -> None:
        self._stack = ExitStack()
        self.wakes = 0
        self.device = Device(DEVICE_ID, cpu_port=cpu_port, wake=self._wake)
        self.server = self._stack.enter_context(serve(self.device))
        self.controller = self.connect()
        assert self.controller.arbitrate(1) == 0
        if pipeline:
            self.controller.set_pipeline(Call.VERIFY_AND_COMMIT, load_config())

    def connect(self, role: str = "", device_id: int = DEVICE_ID) -> Controller:
        return self._stack.enter_context(Controller(self.server.address, device_id, role))

    def _wake(self) -> None:
        self.wakes += 1

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
