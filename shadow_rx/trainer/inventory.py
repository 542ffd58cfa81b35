"""Inventory: every state object that one rank has, as it lists them; the values are elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from checkmate_common.recovery.state import inventory_digest
from checkmate_common.sidechannel import side_channel_pb2 as pb
from shadow_rx.errors import invalid
from shadow_rx.trainer.rank_step import DTYPES, MAX_OBJECTS

MAX_NAME = 512
"""Longest name of an object."""
KINDS = ("tensor", "json", "raw", "option", "params")
"""What an object can be (see the message StateObjectInfo)."""


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a rank, without its value."""

    name: str
    """Section and key."""
    kind: str
    """One of `KINDS`."""
    shape: tuple[int, ...]
    """Of tensors."""
    dtype: str
    """Element type of tensors; of "params" what `checkmate_common.recovery.state.members_text` gives."""
    digest: bytes
    """SHA-256 of the value of a constant object, empty for others."""

    @property
    def section(self) -> str:
        """The part of the name before the first dot."""
        return self.name.partition(".")[0]

    @property
    def key(self) -> str:
        """The part of the name after the first dot."""
        return self.name.partition(".")[2]

    @property
    def nbytes(self) -> int:
        """Bytes of its value where the list tells them: of tensors of a known element type; 0 of others."""
        dtype = DTYPES.get(self.dtype) if self.kind == "tensor" else None
        return math.prod(self.shape) * dtype.itemsize if dtype is not None else 0

    def is_like(self, tensor: torch.Tensor) -> bool:
        """Tell whether `tensor` has the object's shape and element type."""
        return self.shape == tuple(tensor.shape) and self.dtype == str(tensor.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Inventory:
    """All objects of one rank."""

    objects: Mapping[str, ObjectInfo]
    """By name, in the order of the names."""
    digest: bytes
    """`checkmate_common.recovery.state.inventory_digest`."""

    @cached_property
    def optimizer_tensors(self) -> dict[str, ObjectInfo]:
        """Optimizer state by the names of a recovery point: ``optim/<parameter>/<key>``."""
        found: dict[str, ObjectInfo] = {}
        for info in self.objects.values():
            if info.section == "optimizer":
                param, _, key = info.key.rpartition(".")
                found[f"optim/{param}/{key}"] = info
        return found


def parse_inventory(messages: Sequence[pb.StateObjectInfo], field: str) -> Inventory:
    """Check a list of state objects in itself.

    Raises:
        ShadowError: too many, a name that is empty, too long or repeated, an unknown kind, or not in order.
    """
    if len(messages) > MAX_OBJECTS:
        raise invalid(field, f"{len(messages)} objects, expected at most {MAX_OBJECTS}")
    objects: dict[str, ObjectInfo] = {}
    last = ""
    for index, item in enumerate(messages):
        where = f"{field}[{index}]"
        if not 0 < len(item.name) <= MAX_NAME:
            raise invalid(f"{where}.name", f"has {len(item.name)} characters, expected 1..{MAX_NAME}")
        if item.name <= last:
            raise invalid(
                f"{where}.name", f"{item.name!r} does not come after {last!r}: expected the order of the names"
            )
        if item.kind not in KINDS:
            raise invalid(f"{where}.kind", f"{item.kind!r}, expected one of {', '.join(KINDS)}")
        last = item.name
        objects[last] = ObjectInfo(last, item.kind, tuple(item.shape), item.dtype, item.digest)
    return Inventory(objects, inventory_digest(messages))
