"""Captures of simulated switch ports, named as by BMv2: ``INTERFACE_in.pcap``, ``INTERFACE_out.pcap``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from capture.writer import PcapWriter
from checkmate_common.files.private_files import make_private_folder, private
from topology.simulation.event_loop import SwitchPort


class PortCaptures:
    """A pair of capture files for each port."""

    def __init__(self, folder: Path, ports: Iterable[SwitchPort]) -> None:
        """Create the files of `ports` in `folder`, which is made if it does not exist."""
        make_private_folder(folder)
        self._writers = {
            (port, direction): PcapWriter(folder / f"{interface_name(port)}_{direction}.pcap", private)
            for port in ports
            for direction in ("in", "out")
        }

    def tap(self, port: SwitchPort, direction: str, frame: bytes, now: float) -> None:
        """Write a frame; frames of other ports are ignored."""
        writer = self._writers.get((port, direction))
        if writer is not None:
            writer.write(int(now * 1e9), frame)

    def close(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()


def interface_name(port: SwitchPort) -> str:
    """Return the name of a switch port's interface."""
    return f"{port.switch}-eth{port.port}"
