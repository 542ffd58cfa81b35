"""Captures of simulated switches' ports, named as BMv2 names them: ``INTERFACE_in.pcap``, ``INTERFACE_out.pcap``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from capture.writer import PcapWriter
from checkmate_common.files.private_files import make_private_folder, private
from topology.simulation.event_loop import Place


class PortCaptures:
    """One pair of capture files a port."""

    def __init__(self, folder: Path, places: Iterable[Place]) -> None:
        """Create the files of the ports at `places` in `folder`, which is made where it is missing."""
        make_private_folder(folder)
        self._writers = {
            (place, direction): PcapWriter(folder / f"{interface_name(place)}_{direction}.pcap", private)
            for place in places
            for direction in ("in", "out")
        }

    def tap(self, place: Place, direction: str, frame: bytes, now: float) -> None:
        """Write a frame; frames of other ports are left out."""
        writer = self._writers.get((place, direction))
        if writer is not None:
            writer.write(int(now * 1e9), frame)

    def close(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()


def interface_name(place: Place) -> str:
    """Return the name of a switch port's interface."""
    return f"{place.switch}-eth{place.port}"
