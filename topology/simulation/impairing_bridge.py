"""A process that bridges two interfaces and loses, delays, duplicates and corrupts frames.

``python -m topology.simulation.impairing_bridge --inside IF --outside IF --uplink JSON --downlink JSON --seed N
--stats FILE``

For kernels without netem. Frames from ``--inside`` to ``--outside`` pass the impairments ``--uplink``
(`links.Impairments` as a JSON object), the others ``--downlink``. Prints ``{"event": "ready"}`` when it forwards; after
SIGTERM it writes its counters (`links.LinkStats` of both directions) to the file.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path

from checkmate_common.files.private_files import write_private
from nccl_emu.errors import LinkError
from nccl_emu.net.packet_socket import PacketSocket
from topology.simulation.links import Impairments, Link


class Bridge:
    """Forwards frames between two interfaces over impaired links. Pure except for the two sockets."""

    def __init__(self, inside: PacketSocket, outside: PacketSocket, uplink: Link, downlink: Link) -> None:
        """Bridge the interfaces; `uplink` leads from `inside` to `outside`."""
        self._directions = ((inside, outside, uplink), (outside, inside, downlink))
        self._in_flight: list[tuple[float, int, PacketSocket, bytes]] = []
        self._order = count()

    def receive(self, now: float) -> None:
        """Put the frames that have arrived on their links."""
        for source, target, link in self._directions:
            for frame in source.receive():
                for when, copy in link.transmit(frame, now):
                    heapq.heappush(self._in_flight, (when, next(self._order), target, copy))

    def send_due(self, now: float) -> float | None:
        """Send the frames that are due; return the seconds until the next one is, None if there is none."""
        while self._in_flight and self._in_flight[0][0] <= now:
            _, _, target, frame = heapq.heappop(self._in_flight)
            target.send([frame])
        return self._in_flight[0][0] - now if self._in_flight else None

    def blocked(self) -> list[PacketSocket]:
        """Return the sockets whose kernel buffer is full."""
        return [target for _, target, _ in self._directions if target.waiting]


def main(argv: Sequence[str] | None = None) -> int:
    """Forward until SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m topology.simulation.impairing_bridge")
    for name in ("--inside", "--outside", "--uplink", "--downlink"):
        parser.add_argument(name, required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--stats", required=True, type=Path)
    arguments = parser.parse_args(argv)
    links = [
        Link(Impairments(**json.loads(text)), random.Random(f"{way}/{arguments.seed}"))
        for way, text in (("up", arguments.uplink), ("down", arguments.downlink))
    ]
    stopped, stop = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(stop, b"x"))
    try:
        inside, outside = PacketSocket(arguments.inside), PacketSocket(arguments.outside)
        print(json.dumps({"event": "ready"}), flush=True)
        _forward(Bridge(inside, outside, links[0], links[1]), [inside, outside], stopped)
    except LinkError as error:
        print(f"bridge {arguments.inside} - {arguments.outside}: {error}", file=sys.stderr)
        return 2
    finally:
        write_private(arguments.stats, json.dumps([asdict(link.stats) for link in links]))
    return 0


def _forward(bridge: Bridge, sockets: Sequence[PacketSocket], stopped: int) -> None:
    readers = [*(wire.fileno() for wire in sockets), stopped]
    while True:
        left = bridge.send_due(time.monotonic())
        readable, writable, _ = select.select(readers, bridge.blocked(), [], left)
        if stopped in readable:
            return
        for wire in writable:
            wire.flush()
        bridge.receive(time.monotonic())


if __name__ == "__main__":
    sys.exit(main())
