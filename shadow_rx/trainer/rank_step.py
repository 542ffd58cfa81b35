"""What one rank told of one step: parsed from its record, and written again for storage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from checkmate_common.sidechannel import side_channel_pb2 as pb
from shadow_rx.errors import invalid
from shadow_rx.trainer.description import OptimizerPlan, Options, Update, parse_options
from shadow_rx.trainer.json_value import parse_json

DIGEST_BYTES = 32
"""Length of a SHA-256."""
MAX_OBJECTS = 1 << 16
"""Most objects of one record."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)}  # fmt: skip
"""Element types of a record's tensors by name."""


@dataclass(frozen=True)
class RankStep:
    """What one rank told of one step."""

    rank: int
    """The rank."""
    layout_version: int
    """Layout version that the step used."""
    options: tuple[Options, ...]
    """Hyperparameters of each parameter group that the step used."""
    loss: float
    """Mean loss of the rank's share of the batch."""
    objects: Mapping[str, Any]
    """JSON objects by name."""
    raw: Mapping[str, bytes]
    """Raw objects by name."""
    digest: bytes
    """SHA-256 of the parameters after the step, empty without."""
    optimizer_digest: bytes = field(default=b"", kw_only=True)
    """SHA-256 of the optimizer's state after the step, empty without."""
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Tensors by name, e.g. buffers of the model."""
    captured: frozenset[str] = frozenset()
    """Names of objects that are explicit snapshots of this step."""
    state_digest: bytes = b""
    """SHA-256 over the rank's state objects (`checkmate_common.recovery.state.inventory_digest`), empty without."""
    scale: float | None = None
    """Factor on the reduced gradient before the optimizer step, None for none."""
    skipped: bool = False
    """Whether the optimizer step was left out."""

    @property
    def update(self) -> Update:
        """What the optimizer step did besides using the gradient."""
        return Update(self.options, self.scale, self.skipped)

    def has(self, name: str) -> bool:
        """Tell whether the record carries the object `name`, or that key of a JSON one (``data.epoch``)."""
        if name in self.raw or name in self.tensors or name in self.objects:
            return True
        place, _, key = name.partition(".")
        value = self.objects.get(place)
        return isinstance(value, dict) and key in value


def reported_digest(records: Iterable[RankStep]) -> bytes:
    """Return the digest of the parameters that the ranks told, empty where none did (that they agree is checked)."""
    return next((record.digest for record in records if record.digest), b"")


def reported_optimizer_digest(records: Iterable[RankStep]) -> bytes:
    """Return the digest of the optimizer's state that the ranks told, empty where none did."""
    return next((record.optimizer_digest for record in records if record.optimizer_digest), b"")


def parse_record(message: pb.StepRecord, options: tuple[Options, ...]) -> RankStep:
    """Check a record in itself; `options` are those of its groups, checked (`group_options`).

    Raises:
        ShadowError: a field is wrong; it is named.
    """
    for field_name in ("parameter_digest", "optimizer_digest", "state_digest"):
        digest = getattr(message, field_name)
        if len(digest) not in (0, DIGEST_BYTES):
            raise invalid(field_name, f"{len(digest)} bytes, expected {DIGEST_BYTES} (SHA-256) or none")
    scale = message.gradient_scale if message.HasField("gradient_scale") else None
    if scale is not None and not math.isfinite(scale):
        raise invalid("gradient_scale", f"{scale}, expected a finite number; a step that is left out is 'skipped'")
    if len(message.objects) > MAX_OBJECTS:
        raise invalid("objects", f"{len(message.objects)} objects, expected at most {MAX_OBJECTS}")
    objects: dict[str, Any] = {}
    raw: dict[str, bytes] = {}
    tensors: dict[str, torch.Tensor] = {}
    captured: set[str] = set()
    for name, value in message.objects.items():
        where = f"objects[{name!r}]"
        if not name:
            raise invalid("objects", "an object has no name")
        if value.step not in (0, message.step):
            raise invalid(
                f"{where}.step", f"{value.step}, expected {message.step}: a value of another step is not kept"
            )
        if value.step:
            captured.add(name)
        match value.WhichOneof("value"):
            case "raw":
                raw[name] = value.raw
            case "json":
                objects[name] = parse_json(value.json, where)
            case "tensor":
                tensors[name] = parse_tensor(value.tensor, f"{where}.tensor")
            case _:
                raise invalid(where, "has no value")
    return RankStep(
        message.rank, message.layout_version, options, message.loss, objects, raw, message.parameter_digest,
        tensors, frozenset(captured), message.state_digest, scale, message.skipped,
        optimizer_digest=message.optimizer_digest,
    )  # fmt: skip


def group_options(plan: OptimizerPlan, index: int, text: str) -> Options:
    """Return the options of one group of a record, checked.

    Raises:
        ShadowError: options that the class cannot use, or without one that the group was announced with.
    """
    where = f"group_options_json[{index}]"
    options = parse_options(plan.name, text, where)
    missing = set(plan.groups[index].options) - set(options)
    if missing:
        raise invalid(where, f"lacks {sorted(missing)}, which the group had when the trainer announced it")
    return options


def parse_tensor(value: pb.TensorValue, where: str) -> torch.Tensor:
    """Return a tensor of a record: a copy of its own.

    Raises:
        ShadowError: an unknown element type, or another number of bytes than the shape says.
    """
    dtype = DTYPES.get(value.dtype)
    if dtype is None:
        raise invalid(f"{where}.dtype", f"{value.dtype!r}, expected one of {', '.join(DTYPES)}")
    expected = math.prod(value.shape) * dtype.itemsize
    if len(value.data) != expected:
        raise invalid(f"{where}.data", f"{len(value.data)} bytes, a {value.dtype} {tuple(value.shape)} has {expected}")
    # A copy, because torch wants writable memory and bytes are not.
    data = torch.from_numpy(np.frombuffer(value.data, np.uint8).copy())
    try:
        return data.view(dtype).reshape(tuple(value.shape))
    except (RuntimeError, OverflowError, TypeError) as error:
        raise invalid(f"{where}.shape", f"{list(value.shape)} is no shape of a tensor: {error}") from error
