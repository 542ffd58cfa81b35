"""What DistributedDataParallel tells before the first gradient: parameters, their element types, initial values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gloo.collective import Collective
from gloo.parameters import Parameter, assign
from packets.batch import Bytes

COALESCED_BYTES = 250 << 20
"""Bytes at which a broadcast of parameters or buffers is full (``dist._broadcast_coalesced``)."""
ITEM_SIZES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
"""Element types of parameters."""


@dataclass(frozen=True, slots=True)
class Types:
    """Element types of the parameters."""

    kinds: tuple[str, ...]
    """Name of each one's type; what only has to be told apart may be named otherwise, as ``2-byte``."""
    sizes: tuple[int, ...]
    """Bytes of an element of each."""

    @classmethod
    def declared(cls, kinds: Sequence[str]) -> Types:
        """Return types by name, each of `ITEM_SIZES`."""
        return cls(tuple(kinds), tuple(ITEM_SIZES[kind] for kind in kinds))

    @classmethod
    def alike(cls, size: int, count: int) -> Types:
        """Return one type of `size` bytes for `count` parameters."""
        return cls((_NAMES[size],) * count, (size,) * count)


_NAMES = {4: "float32", 8: "float64", 2: "2-byte"}


@dataclass(frozen=True, slots=True)
class Initial:
    """Values of the parameters before the first step."""

    values: tuple[Bytes, ...] | None
    """Bytes of each parameter, contiguous; None where they are not known."""
    problem: str | None
    """Why they are not known."""


def find_types(parameters: Sequence[Parameter], lengths: Sequence[int]) -> Types | None:
    """Return the one element type of all parameters that the broadcasts `lengths` allow.

    Returns:
        None where they allow none or several, or the parameters have unlike types.
    """
    fitting = [types for size in (4, 8, 2) if _split(parameters, types := Types.alike(size, len(parameters)), lengths)]
    return fitting[0] if len(fitting) == 1 else None


def initial_values(parameters: Sequence[Parameter], types: Types, broadcasts: Sequence[Collective]) -> Initial:
    """Return the parameters' values from the broadcasts between their sizes and the first all-reduce.

    ``_sync_module_states`` broadcasts all parameters and buffers, one broadcast for each type; parameters come first.
    Each forward pass then broadcasts the buffers. What is neither, as frozen parameters, lies between the others.
    """
    lengths = [broadcast.nbytes for broadcast in broadcasts]
    if None in lengths:
        return Initial(None, "a broadcast of initial values was lost")
    buckets = _split(parameters, types, [length or 0 for length in lengths])
    if buckets is None:
        problem = "initial values cannot be told from frozen parameters or buffers that forward passes do not broadcast"
        return Initial(None, problem)
    values: dict[int, Bytes] = {}
    for bucket, broadcast in zip(buckets, broadcasts, strict=False):
        at = 0
        for index in bucket:
            size = parameters[index].elements * types.sizes[index]
            if broadcast.value is None or any(start < at + size and end > at for start, end in broadcast.missing):
                return Initial(None, f"initial values of parameter {index} were lost")
            values[index] = broadcast.value[at : at + size].copy()
            at += size
    return Initial(tuple(values[index] for index in range(len(parameters))), None)


def _split(parameters: Sequence[Parameter], types: Types, lengths: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Return which parameters each of the first broadcasts holds, None where `lengths` cannot be so made up."""
    sizes = [parameter.elements * size for parameter, size in zip(parameters, types.sizes, strict=True)]
    buckets = assign(sizes, types.kinds, [COALESCED_BYTES])
    if len(lengths) < len(buckets):
        return None
    last = {types.kinds[bucket[0]]: number for number, bucket in enumerate(buckets)}
    extra = 0
    for number, bucket in enumerate(buckets):
        more = lengths[number] - sum(sizes[index] for index in bucket)
        if more < 0 or (more and last[types.kinds[bucket[0]]] != number):
            return None
        extra += more
    rest = list(lengths[len(buckets) :])
    for own in range(len(rest) + 1):
        if _repeats(rest[own:], extra + sum(rest[:own])):
            return buckets
    return None


def _repeats(lengths: list[int], total: int) -> bool:
    """Tell whether `lengths` are one or more equal rounds of `total` bytes, or none where `total` is 0."""
    if not lengths or not total:
        return not lengths and not total
    for many in range(1, len(lengths) + 1):
        if len(lengths) % many == 0 and sum(lengths[:many]) == total:
            rounds = [lengths[at : at + many] for at in range(0, len(lengths), many)]
            return all(a == b for a, b in pairwise(rounds))
    return False
