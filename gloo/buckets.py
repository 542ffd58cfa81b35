"""Buckets that gradients are reduced in (PyTorch, ``c10d/reducer.cpp`` and ``nn/parallel/distributed.py``).

In the first step there is one bucket for each element type, or, with ``find_unused_parameters``, buckets of up to 1 MiB
and then ``bucket_cap_mb``; later ones are rebuilt in the order in which gradients became ready, and broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from gloo.collective import Collective
from gloo.model import Types
from gloo.parameters import Parameter, assign
from packets.batch import Bytes

FIRST_BUCKET_BYTES = 1 << 20
"""``dist._DEFAULT_FIRST_BUCKET_BYTES``."""
DEFAULT_CAP_BYTES = 25 << 20
"""``bucket_cap_mb`` of 25."""

Layout = tuple[tuple[int, ...], ...]
"""Parameters of each bucket, in order."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Element sizes on the wire: what a compression hook makes of the parameters' own."""

    halved: bool
    """Whether all elements have 2 bytes (``fp16_compress_hook``)."""

    def size(self, own: int) -> int:
        """Return the bytes of an element that has `own` bytes in its parameter."""
        return 2 if self.halved else own


def bucket_bytes(bucket: Sequence[int], parameters: Sequence[Parameter], types: Types, wire: Wire) -> int:
    """Return the bytes of a bucket on the wire."""
    return sum(parameters[index].elements * wire.size(types.sizes[index]) for index in bucket)


def first_layouts(parameters: Sequence[Parameter], types: Types, caps: Sequence[int]) -> list[Layout]:
    """Return the layouts that the first step may have: without and with ``find_unused_parameters``.

    Args:
        parameters: all of them.
        types: their types.
        caps: sizes that ``bucket_cap_mb`` may stand for, in bytes.
    """
    sizes = [parameter.elements * size for parameter, size in zip(parameters, types.sizes, strict=True)]
    found: list[Layout] = []
    choices: list[tuple[float, ...]] = [
        (inf,),
        *((FIRST_BUCKET_BYTES, cap) for cap in caps),
        *((cap,) for cap in caps),
    ]
    for limits in choices:
        layout = tuple(reversed(assign(sizes, types.kinds, limits)))
        if layout not in found:
            found.append(layout)
    return found


def match_first(seen: Sequence[int], parameters: Sequence[Parameter], types: Types) -> tuple[Layout, Wire] | None:
    """Return the layout of the first step whose all-reduces have `seen` bytes, None where none or several fit."""
    found: set[tuple[Layout, Wire]] = set()
    for halved in (False, True) if max(types.sizes, default=2) > 2 else (False,):
        wire = Wire(halved)
        scale = max(types.sizes, default=1) // 2 if halved else 1
        caps = sorted({DEFAULT_CAP_BYTES, FIRST_BUCKET_BYTES, *(size * scale for size in seen)})
        for layout in first_layouts(parameters, types, caps):
            if [bucket_bytes(bucket, parameters, types, wire) for bucket in layout] == list(seen):
                found.add((layout, wire))
    return found.pop() if len(found) == 1 else None


def rebuilt_order(broadcast: Collective, count: int) -> tuple[tuple[int, ...], int] | None:
    """Return parameters in bucket order and the number of buckets from the first broadcast of ``sync_bucket_indices``.

    None where it is another broadcast.
    """
    if broadcast.nbytes != 4 * (count + 1) or not broadcast.complete or broadcast.value is None:
        return None
    numbers = broadcast.value.view("<i4")
    if not 1 <= numbers[-1] <= count or not np.array_equal(np.sort(numbers[:-1]), np.arange(count)):
        return None
    return tuple(numbers[:-1].tolist()), int(numbers[-1])


def rebuilt_layout(order: Sequence[int], broadcast: Collective, buckets: int) -> Layout | None:
    """Return the layout from the second broadcast, with the parameters in each bucket; None where it is another one."""
    if broadcast.nbytes != 4 * buckets or not broadcast.complete or broadcast.value is None:
        return None
    sizes = broadcast.value.view("<i4").tolist()
    if min(sizes) < 1 or sum(sizes) != len(order):
        return None
    found, at = [], 0
    for size in sizes:
        found.append(tuple(order[at : at + size]))
        at += size
    return tuple(found)


def used_map(reduced: Collective, count: int, ranks: int) -> tuple[int, ...] | None:
    """Return on how many ranks each parameter was used, None where the all-reduce tells something else.

    With ``find_unused_parameters`` an int32 for each parameter is summed over the ranks.
    """
    if reduced.nbytes != 4 * count or not reduced.complete or reduced.value is None:
        return None
    numbers = reduced.value.view("<i4")
    if numbers.min() < 0 or numbers.max() > ranks or not numbers.any():
        return None
    return tuple(numbers.tolist())


def widened(data: Bytes, wire: int, own: int) -> Bytes:
    """Return elements of `wire` bytes as ones of `own` bytes, as ``fp16_compress_hook`` does with float16."""
    if wire == own:
        return data
    return data.view("<f2").astype(f"<f{own}").view(np.uint8)
