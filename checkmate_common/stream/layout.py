"""Layout: position of each parameter in the buckets.

Layouts have versions, because DDP rebuilds its buckets after the first step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from checkmate_common.stream.dtypes import DType


@dataclass(frozen=True)
class ParamSpec:
    """A trainable parameter, in the trainer's order."""

    name: str
    """Name in the model's ``named_parameters()``."""
    shape: tuple[int, ...]
    """Shape in elements; ``()`` is a scalar."""
    dtype: DType
    """Element type of the parameter and of its gradient."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Slot:
    """Position of one parameter's gradient: `param.elements` elements of `bucket` from `offset` on."""

    param: ParamSpec
    """The parameter."""
    bucket: int
    """Index of the bucket."""
    offset: int
    """First element in the bucket."""


@dataclass(frozen=True)
class Bucket:
    """One all-reduced tensor: flat, of one element type."""

    index: int
    """Position in the order of all-reduces."""
    dtype: DType
    """Element type."""
    elements: int
    """Number of elements."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """Buckets of one version of the layout and the parameters in them."""

    version: int
    """Grows by one whenever the trainer rebuilds its buckets; starts at 1."""
    buckets: tuple[Bucket, ...]
    """In the order of their all-reduces."""
    slots: tuple[Slot, ...]
    """One per parameter, in the trainer's parameter order."""

    def __post_init__(self) -> None:
        """Check that the slots fill the buckets exactly.

        Raises:
            ValueError: slots overlap, leave a hole, or differ in type from their bucket.
        """
        filled = [0] * len(self.buckets)
        for slot in sorted(self.slots, key=lambda slot: (slot.bucket, slot.offset, slot.param.elements)):
            if not 0 <= slot.bucket < len(self.buckets):
                raise ValueError(f"parameter {slot.param.name!r} is in bucket {slot.bucket}, which does not exist")
            bucket = self.buckets[slot.bucket]
            if slot.param.dtype is not bucket.dtype:
                raise ValueError(
                    f"parameter {slot.param.name!r} is {slot.param.dtype.label}, its bucket {bucket.dtype.label}"
                )
            if slot.offset != filled[slot.bucket]:
                raise ValueError(
                    f"parameter {slot.param.name!r} begins at element {slot.offset} of bucket {slot.bucket}, "
                    f"expected {filled[slot.bucket]}: slots must neither overlap nor leave holes"
                )
            filled[slot.bucket] += slot.param.elements
        for index, bucket in enumerate(self.buckets):
            if bucket.index != index or bucket.elements != filled[index]:
                raise ValueError(
                    f"bucket {index} declares {bucket.elements} elements, its parameters have {filled[index]}"
                )

    @property
    def nbytes(self) -> int:
        """Bytes of one whole gradient."""
        return sum(bucket.nbytes for bucket in self.buckets)

    def to_json(self) -> str:
        """Return the layout as canonical JSON, as used in the side channel and in manifests."""
        doc = {
            "version": self.version,
            "params": [
                {
                    "name": slot.param.name,
                    "shape": list(slot.param.shape),
                    "dtype": slot.param.dtype.label,
                    "bucket": slot.bucket,
                    "offset": slot.offset,
                }
                for slot in self.slots
            ],
        }
        return json.dumps(doc, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Read what `to_json` wrote.

        Raises:
            ValueError: not JSON, a field is missing or of a wrong type, or the slots do not fill their buckets.
        """
        try:
            doc: dict[str, Any] = json.loads(text)
            slots = tuple(
                Slot(
                    ParamSpec(str(item["name"]), tuple(int(n) for n in item["shape"]), DType.from_label(item["dtype"])),
                    int(item["bucket"]),
                    int(item["offset"]),
                )
                for item in doc["params"]
            )
            version = int(doc["version"])
        except (AttributeError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"not a layout: {error!r} is missing or of a wrong type") from error
        return cls(version, _buckets_of(slots), slots)

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the canonical JSON: equal digests mean equal layouts."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _buckets_of(slots: Sequence[Slot]) -> tuple[Bucket, ...]:
    sizes: dict[int, int] = {}
    dtypes: dict[int, DType] = {}
    for slot in slots:
        sizes[slot.bucket] = sizes.get(slot.bucket, 0) + slot.param.elements
        dtypes.setdefault(slot.bucket, slot.param.dtype)
    if sorted(sizes) != list(range(len(sizes))):
        raise ValueError(f"bucket numbers {sorted(sizes)} are not 0..{len(sizes) - 1}")
    return tuple(Bucket(index, dtypes[index], sizes[index]) for index in range(len(sizes)))


def build_layout(params: Sequence[ParamSpec], bucket_bytes: int, version: int = 1) -> Layout:
    """Assign parameters to buckets as DDP does: in reverse order, a new bucket at the cap or when the type changes.

    Args:
        params: trainable parameters in the trainer's order; names are unique.
        bucket_bytes: cap of a bucket in bytes; a parameter larger than that gets its own bucket.
        version: version of the layout.

    Raises:
        ValueError: no parameters, repeated names, or a cap below one byte.
    """
    if not params:
        raise ValueError("a layout needs at least one parameter")
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}, expected at least 1")
    names = [param.name for param in params]
    if len(set(names)) != len(names):
        raise ValueError(f"parameter names repeat: {sorted({name for name in names if names.count(name) > 1})}")
    placed: dict[str, Slot] = {}
    bucket, offset, dtype = -1, 0, None
    for param in reversed(params):
        full = (offset + param.elements) * param.dtype.itemsize > bucket_bytes and offset > 0
        if bucket < 0 or full or param.dtype is not dtype:
            bucket, offset, dtype = bucket + 1, 0, param.dtype
        placed[param.name] = Slot(param, bucket, offset)
        offset += param.elements
    slots = tuple(placed[param.name] for param in params)
    return Layout(version, _buckets_of(slots), slots)
