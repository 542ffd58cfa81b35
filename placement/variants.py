"""Bytes that two copies of a frame tell differently: kept side by side, within a bound, until a CRC decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from checkmate_common.stream.schedule import FrameSlot

SIDE_BUFFER_BYTES = 1 << 20
"""Most bytes of differing copies that one epoch of a group keeps."""
_ALL_COMBINATIONS = 4
"""Up to so many variants of a frame, every combination of them is tried; beyond, one copy at a time."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a later copy told where an earlier one had told something else."""

    copy: int
    """Index of the copy within its frame, 0 for the primary."""
    start: int
    """First byte, relative to the payload's first."""
    data: bytes
    """The later copy's bytes, from the first to the last that differs."""


class SideBuffer:
    """Accounts for the variants of all frames of an epoch."""

    def __init__(self, limit: int = SIDE_BUFFER_BYTES) -> None:
        """Let variants of at most `limit` bytes in all be kept."""
        self.limit = limit
        """Most bytes."""
        self.held = 0
        """Bytes that are kept."""
        self.differing = 0
        """Replicas with at least one byte that another copy had told differently."""

    def reserve(self, count: int) -> bool:
        """Take `count` bytes of the bound; False when they are not there."""
        if self.held + count > self.limit:
            return False
        self.held += count
        return True

    def release(self, variants: Sequence[Variant]) -> None:
        """Give back what `variants` took."""
        self.held -= sum(len(variant.data) for variant in variants)


class Conflicts:
    """Copies of a step's frames that differ from what is there: how many, and the first ones in words."""

    KEPT = 8

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        """How many there were."""
        self.first: list[tuple[int, FrameSlot, str]] = []
        """Flow, frame, and what differs."""

    def add(self, flow_id: int, slot: FrameSlot, text: str) -> None:
        """Note one."""
        self.count += 1
        if len(self.first) < self.KEPT:
            self.first.append((flow_id, slot, text))

    def clear(self) -> None:
        """Forget all."""
        self.count = 0
        self.first.clear()


def difference(copy: int, start: int, there: memoryview, data: memoryview) -> Variant | None:
    """Return how `data` of copy `copy` differs from the equally long bytes that are `there`, None where it does not."""
    # bytes compare with memcmp, views one item after the other.
    old, new = bytes(there), bytes(data)
    if old == new:
        return None
    differing = [index for index, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    first, last = differing[0], differing[-1] + 1
    return Variant(copy, start + first, new[first:last])


def candidates(variants: Sequence[Variant]) -> Iterator[tuple[Variant, ...]]:
    """Yield which variants to lay over the bytes that came first, the likeliest first.

    Those of one copy together are "this copy, with its holes filled by the others": a wrong byte of one copy cannot
    spoil what another copy has right. A few variants are also tried in every combination, for a frame of which each
    copy has a wrong byte elsewhere. Each trial that a wrong payload passes by chance has probability 2^-32.
    """
    if not variants:
        return
    tried: set[tuple[Variant, ...]] = set()
    choices: list[tuple[Variant, ...]] = [
        tuple(variant for variant in variants if variant.copy == copy)
        for copy in sorted({variant.copy for variant in variants})
    ]
    if len(variants) <= _ALL_COMBINATIONS:
        choices += [some for size in range(1, len(variants) + 1) for some in combinations(variants, size)]
    for choice in choices:
        if choice not in tried:
            tried.add(choice)
            yield choice
