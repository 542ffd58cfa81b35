"""A link that loses, holds back, repeats and damages frames, as a process between two interfaces of a namespace.

``python -m topology.simulation.impairing_bridge --inside IF --outside IF --uplink JSON --downlink JSON --seed N
--stats FILE``

For kernels without netem. Frames that arrive at ``--inside`` leave by ``--outside`` after what ``--uplink`` does to
them (`links.Impairments` as a JSON object), and the other way round. Prints ``{"event": "ready"}`` when it
forwards; after SIGTERM it writes what it has done to the file (`links.LinkStats` of both directions).
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
    """Frames of two interfaces on their way to each other. Pure but for the two sockets."""

    def __init__(self, inside: PacketSocket, outside: PacketSocket, uplink: Link, downlink: Link) -> None:
        """Join the interfaces; `uplink` leads from `inside` to `outside`."""
        self._ways = ((inside, outside, uplink), (outside, inside, downlink))
        self._flying: list[tuple[float, int, PacketSocket, bytes]] = []
        self._order = count()

    def take(self, now: float) -> None:
        """Take the frames that have arrived."""
        for source, target, link in self._ways:
            for frame in source.receive():
                for when, copy in link.transmit(frame, now):
                    heapq.heappush(self._flying, (when, next(self._order), target, copy))

    def give(self, now: float) -> float | None:
        """Send the frames whose time has come; return how many seconds the next one has left, None without."""
        while self._flying and self._flying[0][0] <= now:
            _, _, target, frame = heapq.heappop(self._flying)
            target.send([frame])
        return self._flying[0][0] - now if self._flying else None

    def waiting(self) -> list[PacketSocket]:
        """Return the sockets whose kernel buffer is full."""
        return [target for _, target, _ in self._ways if target.waiting]


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
        left = bridge.give(time.monotonic())
        readable, writable, _ = select.select(readers, bridge.waiting(), [], left)
        if stopped in readable:
            return
        for wire in writable:
            wire.flush()
        bridge.take(time.monotonic())


if __name__ == "__main__":
    sys.exit(main())
