"""Captures of a simulated switch's ports, named as BMv2 names them: ``INTERFACE_in.pcap``, ``INTERFACE_out.pcap``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from softswitch.pcap import PcapWriter


class PortCaptures:
    """One pair of capture files a port."""

    def __init__(self, folder: Path, interfaces: Mapping[int, str]) -> None:
        """Create the files in `folder`, which is made where it is missing; `interfaces` maps ports to names."""
        folder.mkdir(parents=True, exist_ok=True)
        self._writers = {
            (port, direction): PcapWriter(folder / f"{name}_{direction}.pcap")
            for port, name in interfaces.items()
            for direction in ("in", "out")
        }

    def tap(self, port: int, direction: str, frame: bytes, now: float) -> None:
        """Write a frame; frames of other ports are left out."""
        writer = self._writers.get((port, direction))
        if writer is not None:
            writer.write(int(now * 1e9), frame)

    def close(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()
