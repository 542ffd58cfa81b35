"""The compiled P4 program, run in this process: original ring traffic in, replicas out."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from controlplane.desired import desired_state
from controlplane.errors import ControlPlaneError
from controlplane.target import Target
from jobspec.model import Job
from packets.headers import LinkType
from packets.reference import decode_packet
from replay.errors import ReplayError
from softswitch.p4rt.device import Device
from softswitch.p4rt.server import serve

_MAX_HOPS = 16
"""Switches on a path: trunks form a tree, so that no frame passes more."""


class SwitchProgram:
    """All switches of a job, embedded, with the job installed through P4Runtime; a context manager.

    The frames of a capture carry no port, so each enters where the host with its source address is attached.
    """

    def __init__(self, job: Job) -> None:
        """Run `job` on embedded switches."""
        self.replicas = 0
        """Frames that reached a shadow node."""
        self.not_from_hosts = 0
        """Frames that no host of the job has sent, which were left out."""
        self._job = job
        self._devices: dict[str, Device] = {}
        self._hosts = {
            address.packed: (job.switch_of(host).name, host.port) for host in job.hosts for _, address in host.addresses
        }
        self._shadows = {(job.switch_of(shadow).name, shadow.port) for shadow in job.shadows}
        self._trunks: dict[tuple[str, int], tuple[str, int]] = {}
        for trunk in job.trunks:
            one, other = trunk.ends
            self._trunks[one], self._trunks[other] = other, one
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start the switches and install the job.

        Raises:
            ReplayError: the job cannot be installed.
        """
        try:
            for switch in self._job.switches:
                device = Device(switch.device_id)
                server = self._stack.enter_context(serve(device, "127.0.0.1:0"))
                with Target.connect(server.address, switch.device_id, election_id=1) as target:
                    target.install(desired_state([self._job], switch.name))
                self._devices[switch.name] = device
        except ControlPlaneError as error:
            self._stack.close()
            raise ReplayError("--through-switch", str(error), "check the job with: checkmate job check") from error
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the switches."""
        self._stack.close()

    def forward(self, frame: bytes, time_ns: int) -> list[bytes]:
        """Let a frame enter at its sender's port; return what leaves by the ports of shadow nodes."""
        place = self._hosts.get(_source(frame))
        if place is None:
            self.not_from_hosts += 1
            return []
        found: list[bytes] = []
        waiting = [(place, frame, 0)]
        while waiting:
            (switch, port), data, hops = waiting.pop()
            for egress, copy in self._devices[switch].inject(port, data, time_ns // 1000):
                out = (switch, egress)
                if out in self._shadows:
                    found.append(copy)
                elif out in self._trunks and hops < _MAX_HOPS:
                    waiting.append((self._trunks[out], copy, hops + 1))
        self.replicas += len(found)
        return found


def _source(frame: bytes) -> bytes:
    """Return the IPv4 or IPv6 source address of a frame, nothing where it has none."""
    header = decode_packet(memoryview(frame), 0, len(frame), len(frame), LinkType.ETHERNET, False)
    if header.ip_version == 6:
        return (header.source_high << 64 | header.source_low).to_bytes(16, "big")
    return header.source_low.to_bytes(4, "big") if header.ip_version else b""
