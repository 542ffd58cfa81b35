"""Damage to encoded captures: losses, duplicates, reordering, retransmissions, each at a named place."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from rocev2.encode import Encoded


def lose(packets: Sequence[Encoded], places: Collection[int]) -> list[Encoded]:
    """Return the packets without those at `places`, as a mirror that drops them leaves them."""
    gone = set(places)
    return [packet for place, packet in enumerate(packets) if place not in gone]


def duplicate(packets: Sequence[Encoded], places: Collection[int], later: int = 1) -> list[Encoded]:
    """Return the packets with copies of those at `places`, each `later` packets after the original."""
    out: list[tuple[int, int, Encoded]] = [(place, 0, packet) for place, packet in enumerate(packets)]
    out += [(place + later, 1, packets[place]) for place in sorted(set(places))]
    return [packet for _, _, packet in sorted(out, key=lambda item: item[:2])]


def reorder(packets: Sequence[Encoded], seed: int, distance: int) -> list[Encoded]:
    """Return the packets shuffled, none more than about `distance` places from where it was."""
    rng = random.Random(seed)
    keys = [place + rng.uniform(0, distance) for place in range(len(packets))]
    return [packets[place] for place in sorted(range(len(packets)), key=keys.__getitem__)]


def retransmit(packets: Sequence[Encoded], place: int, again: int, lost: bool) -> list[Encoded]:
    """Return the packets with a go-back-N retransmission of one flow.

    Args:
        packets: the capture.
        place: packet that the receiver missed.
        again: how many packets of its flow, from it on, are sent again.
        lost: whether its first copy is absent from the capture too.
    """
    first = packets[place]
    flow = [
        number
        for number in range(place, len(packets))
        if packets[number].source == first.source and packets[number].sent.packet.dest_qp == first.sent.packet.dest_qp
    ][:again]
    end = flow[-1] + 1
    out = [packet for number, packet in enumerate(packets[:end]) if not (lost and number == place)]
    out += [packets[number] for number in flow]
    return out + list(packets[end:])
