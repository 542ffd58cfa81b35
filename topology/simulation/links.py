"""One direction of a link with seeded impairments: frames in, (arrival time, frame) out. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Impairments:
    """Impairments of one direction of a link; probabilities are per frame, times in seconds."""

    loss: float = 0.0
    """Probability that a frame is lost."""
    duplicate: float = 0.0
    """Probability that a frame arrives twice, the second time up to `jitter` (at least a millisecond) later."""
    reorder: float = 0.0
    """Probability that a frame is delayed so that later ones overtake it."""
    corrupt: float = 0.0
    """Probability that bits of a frame are flipped."""
    corrupt_bits: int = 1
    """Most bits flipped in one frame. TCP's checksum finds every single flip but misses about one pair in 30; on a real
    link the Ethernet FCS finds those."""
    delay: float = 20e-6
    """Propagation delay."""
    jitter: float = 2e-3
    """Largest extra delay of a reordered frame."""
    rate: float = 10e9
    """Bits per second; frames queue behind one another."""
    queue_bytes: float = float("inf")
    """Most bytes that may be queued; a frame that does not fit is lost."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: names the field that is out of range.
        """
        for spec in fields(self):
            value = getattr(self, spec.name)
            if value < 0 or (spec.name in ("loss", "duplicate", "reorder", "corrupt") and value > 1):
                raise ValueError(f"impairment {spec.name} is {value}, expected a probability or a time of at least 0")
        if not self.rate or not self.corrupt_bits:
            raise ValueError("impairments rate and corrupt_bits are at least 1")


@dataclass
class LinkStats:
    """Counters of one direction of a link."""

    frames: int = 0
    """Frames put on the link."""
    lost: int = 0
    """Frames lost."""
    overflowed: int = 0
    """Frames lost because the queue was full."""
    duplicated: int = 0
    """Frames delivered twice."""
    reordered: int = 0
    """Frames delayed by reordering."""
    corrupted: int = 0
    """Frames with flipped bits."""


class Link:
    """One direction of a link."""

    def __init__(self, impairments: Impairments, rng: random.Random) -> None:
        """Take every decision from `rng`, so that equal seeds give equal histories."""
        self.impairments = impairments
        self.stats = LinkStats()
        self._rng = rng
        self._free_at = 0.0

    def transmit(self, frame: bytes, now: float) -> list[tuple[float, bytes]]:
        """Return (arrival time, bytes) of each copy of a frame put on the link at `now`; times in seconds."""
        spec, rng = self.impairments, self._rng
        self.stats.frames += 1
        start = max(self._free_at, now)
        if (start - now) * spec.rate / 8 + len(frame) > spec.queue_bytes:
            self.stats.overflowed += 1
            return []
        self._free_at = start + len(frame) * 8 / spec.rate
        if spec.loss and rng.random() < spec.loss:
            self.stats.lost += 1
            return []
        arrival = self._free_at + spec.delay
        if spec.reorder and rng.random() < spec.reorder:
            self.stats.reordered += 1
            arrival += rng.uniform(0, spec.jitter)
        copies = [arrival]
        if spec.duplicate and rng.random() < spec.duplicate:
            self.stats.duplicated += 1
            copies.append(arrival + rng.uniform(0, max(spec.jitter, 1e-3)))
        return [(when, self._maybe_corrupt(frame)) for when in copies]

    def _maybe_corrupt(self, frame: bytes) -> bytes:
        if not self.impairments.corrupt or self._rng.random() >= self.impairments.corrupt:
            return frame
        self.stats.corrupted += 1
        damaged = bytearray(frame)
        for _ in range(self._rng.randint(1, self.impairments.corrupt_bits)):
            bit = self._rng.randrange(len(damaged) * 8)
            damaged[bit // 8] ^= 1 << bit % 8
        return bytes(damaged)
