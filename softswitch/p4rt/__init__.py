"""P4Runtime server of the embedded switch: `Device` holds the state, `serve` exposes it over gRPC."""

from __future__ import annotations

from softswitch.p4rt.device import Device, DeviceStats, Frames
from softswitch.p4rt.errors import BatchError, Code, P4RuntimeError
from softswitch.p4rt.pipeline import Pipeline
from softswitch.p4rt.server import ServerHandle, serve
from softswitch.p4rt.streams import Stream

__all__ = [
    "BatchError",
    "Code",
    "Device",
    "DeviceStats",
    "Frames",
    "P4RuntimeError",
    "Pipeline",
    "ServerHandle",
    "Stream",
    "serve",
]
