"""Parameters of a DistributedDataParallel model, as its constructor tells them to all ranks.

``_verify_params_across_processes`` (PyTorch, ``c10d/reducer.cpp``) gathers the number of parameters and broadcasts, for
each parameter, its sizes and then its strides. How many dimensions each one has is not told: it follows, because
strides follow from sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from packets.batch import Bytes

MOST_PARAMETERS = 1 << 20
"""Parameters of a model at most: what claims more is not believed."""
_MOST_DIMENSIONS = 8
_MOST_READINGS = 16


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter."""

    shape: tuple[int, ...]
    """Sizes."""
    strides: tuple[int, ...]
    """Strides in elements: a permutation of contiguous ones."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def contiguous(self, data: Bytes, itemsize: int) -> Bytes:
        """Return the bytes of a tensor, which lie in `data` in order of memory, in order of its indices."""
        elements = data.view(f"V{itemsize}")
        strides = [stride * itemsize for stride in self.strides]
        ordered = np.lib.stride_tricks.as_strided(elements, self.shape, strides)
        return np.ascontiguousarray(ordered).reshape(-1).view(np.uint8)


def read_shapes(numbers: Sequence[int], count: int) -> tuple[Parameter, ...]:
    """Return the `count` parameters whose sizes and strides are `numbers`.

    Raises:
        ValueError: no parameters have these numbers, or several models of unlike parameters do.
    """
    readings = _readings(tuple(numbers), count)
    if not readings:
        raise ValueError("sizes and strides are not those of dense parameters")
    if len({tuple(parameter.elements for parameter in reading) for reading in readings}) > 1:
        raise ValueError("sizes and strides can be read in two ways")
    return readings[0]


def _readings(numbers: tuple[int, ...], count: int) -> list[tuple[Parameter, ...]]:
    """Return the ways to cut `numbers` into `count` parameters, a few of them at most."""
    size = len(numbers)
    # From the end on: which numbers of parameters the rest can be cut into, as bits.
    possible = [0] * (size + 1)
    possible[size] = 1
    mask = (1 << (count + 1)) - 1
    options: list[list[int]] = [[] for _ in range(size + 1)]
    for at in range(size - 1, -1, -1):
        for dimensions in range(1, min(_MOST_DIMENSIONS, (size - at) // 2) + 1):
            end = at + 2 * dimensions
            if possible[end] and _dense(numbers[at : at + dimensions], numbers[at + dimensions : end]):
                options[at].append(dimensions)
                possible[at] |= possible[end] << 1 & mask
    found: list[tuple[Parameter, ...]] = []
    waiting: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    # A parameter without dimensions has no numbers, so that only where all have some the places are known.
    while waiting and len(found) < _MOST_READINGS:
        at, taken = waiting.pop()
        if at == size and len(taken) == count:
            found.append(_cut(numbers, taken))
            continue
        for dimensions in options[at]:
            end = at + 2 * dimensions
            if possible[end] >> (count - len(taken) - 1) & 1:
                waiting.append((end, (*taken, dimensions)))
    return found


def _cut(numbers: tuple[int, ...], dimensions: tuple[int, ...]) -> tuple[Parameter, ...]:
    found, at = [], 0
    for many in dimensions:
        found.append(Parameter(numbers[at : at + many], numbers[at + many : at + 2 * many]))
        at += 2 * many
    return tuple(found)


@lru_cache(maxsize=4096)
def _dense(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    if min(sizes) < 0 or min(strides) < 0 or prod(sizes) > 1 << 40:
        return False
    orders = [range(len(sizes)), (0, *range(2, len(sizes)), 1)]  # contiguous, channels_last
    if 1 not in sizes:
        orders.append(sorted(range(len(sizes)), key=lambda axis: -strides[axis]))
    return any(strides == _strides(sizes, order) for order in orders if len(order) == len(sizes))


def _strides(sizes: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor whose dimensions lie in memory in `order`, the outermost first."""
    found, step = [0] * len(sizes), 1
    for axis in reversed(order):
        found[axis] = step
        step *= max(1, sizes[axis])
    return tuple(found)


def assign(sizes: Sequence[int], kinds: Sequence[str], limits: Sequence[float]) -> tuple[tuple[int, ...], ...]:
    """Return the buckets of tensors as ``compute_bucket_assignment_by_size`` (``c10d/reducer.cpp``) makes them.

    Args:
        sizes: bytes of each tensor.
        kinds: element type of each; a bucket has one.
        limits: bytes at which a bucket is full: of the first bucket of each kind, of the second, and so on.

    Returns:
        For each bucket the indices of its tensors, in order of the first of them.
    """
    filling: dict[str, tuple[list[int], int]] = {}
    full: dict[str, int] = {}
    found: list[tuple[int, ...]] = []
    for index, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
        members, total = filling.get(kind, ([], 0))
        members.append(index)
        total += size
        filling[kind] = (members, total)
        if total >= limits[min(full.get(kind, 0), len(limits) - 1)]:
            found.append(tuple(members))
            del filling[kind]
            full[kind] = full.get(kind, 0) + 1
    found += [tuple(members) for members, _ in filling.values()]
    return tuple(sorted(found, key=min))
