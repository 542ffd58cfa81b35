"""Captures of RoCEv2 as traffic through a switch: the job that replicates them, and what each frame must cause."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml

from capture.model import Packet
from capture.reader import open_capture
from jobspec.loader import parse_job
from jobspec.model import Job, ShadowNode
from tests.rocev2.parsing import RoceFrame, parse

FOLDER = Path(__file__).parents[3] / "shared" / "captures"
"""Captures of real NICs, which are not part of this repository; tests that want them are skipped without them."""
SHADOW_PORT = 6


def names() -> list[str]:
    """Return the names of the captures that are there."""
    return sorted(path.name for path in FOLDER.glob("*.pcapng"))


def truth(name: str) -> dict[str, Any]:
    """Return what is known of a capture."""
    found: dict[str, Any] = json.loads((FOLDER / "truth.json").read_text())[name]
    return found


def packets_of(path: Path) -> list[Packet]:
    """Return all packets of a capture."""
    with open_capture(path) as capture:
        return list(capture)


@dataclass(frozen=True)
class Wiring:
    """The job that replicates a capture's reliable connections, and where its hosts are attached."""

    job: Job
    """Every queue pair of the capture is in it."""
    ports: dict[bytes, int]
    """MAC address -> port."""
    replicated: frozenset[tuple[bytes, bytes, int]]
    """Source and destination address, and number of the queue pair."""

    @property
    def shadow(self) -> ShadowNode:
        """The one shadow node."""
        return self.job.shadows[0]

    @classmethod
    def of(cls, packets: Sequence[Packet]) -> Wiring:
        """Attach every host that the capture shows to a port of its own."""
        addresses: dict[bytes, bytes] = {}
        pairs: dict[tuple[bytes, bytes, int], None] = {}
        for packet in packets:
            frame = parse(packet.data, packet.original_length)
            if isinstance(frame, RoceFrame) and frame.dest_qp > 1:
                addresses[packet.data[6:12]] = frame.source
                addresses[packet.data[:6]] = frame.destination
                pairs[frame.source, frame.destination, frame.dest_qp] = None
        ports = {mac: port for port, mac in enumerate(sorted(addresses), 1)}
        assert len(ports) < SHADOW_PORT
        hosts = [
            {
                "name": f"h{port}",
                "port": port,
                "mac": mac.hex(":"),
                "ip" if len(addresses[mac]) == 4 else "ipv6": str(ip_address(addresses[mac])),
            }
            for mac, port in ports.items()
        ]
        document = {
            "version": 1,
            "name": "captured",
            "switch": {"name": "s1", "ports": SHADOW_PORT + 1},
            "network": {"mtu": 9000},
            "hosts": hosts,
            "shadows": [{"name": "sh0", "port": SHADOW_PORT, "mac": "02:00:00:00:02:00", "ip": "192.0.2.1"}],
            "rdma": [
                {
                    "source": str(ip_address(source)),
                    "target": str(ip_address(target)),
                    "queue_pair": number,
                    "shadows": ["sh0"],
                }
                for source, target, number in pairs
            ],
        }
        return cls(parse_job(yaml.safe_dump(document)).job, ports, frozenset(pairs))

    def is_replicated(self, frame: bytes) -> bool:
        """Return whether a frame (without IP options) is to a queue pair of the job, from its bytes alone."""
        frame = frame[:12] + frame[16:] if frame[12:14] == b"\x81\0" else frame
        ip, size, at = (26, 4, 34) if frame[12:14] == b"\x08\0" else (22, 16, 54)
        protocol = frame[23] if size == 4 else frame[20]
        if frame[12:14] not in (b"\x08\0", b"\x86\xdd") or protocol != 17 or frame[at + 2 : at + 4] != b"\x12\xb7":
            return False
        key = (frame[ip : ip + size], frame[ip + size : ip + 2 * size], int.from_bytes(frame[at + 13 : at + 16], "big"))
        return len(frame) >= at + 20 and key in self.replicated

    def expected(self, frame: bytes) -> dict[int, list[bytes]]:
        """Return port -> frames that must leave it; nothing goes back to where it came from."""
        out = self.ports.get(frame[:6])
        if frame[0] & 1:
            return {port: [frame] for mac, port in self.ports.items() if mac != frame[6:12]}
        if out is None:
            return {}
        if self.is_replicated(frame):
            return {out: [frame], SHADOW_PORT: [bytes.fromhex(self.shadow.mac.replace(":", "")) + frame[6:]]}
        return {out: [frame]}
