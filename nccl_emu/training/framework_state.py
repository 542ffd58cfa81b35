"""Everything that a rank's framework checkpoint would hold, by name: what a shadow is told of it, and how.

Names are those of `checkmate_common.recovery.state`. The sections are the ``state_dict()``s of model, optimizer and
scheduler, the random number generators that the rank draws from, the place in the data, and user metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from checkmate_common.recovery.state import SHARED_PREFIX, Origin, StateManifest, members_text, value_digest
from checkmate_common.recovery.tensors import bytes_of
from checkmate_common.sidechannel.side_channel_pb2 import StateObject, StateObjectInfo, TensorValue
from nccl_emu.errors import TrainerError
from nccl_emu.training.optimizers import tensor_state


@dataclass(frozen=True)
class FrameworkState:
    """The state of one rank after a step; tensors are the live ones, not copies."""

    model: Mapping[str, torch.Tensor]
    """``model.state_dict()``: parameters and buffers."""
    trained: Mapping[str, torch.nn.Parameter]
    """Parameters of the layout, in its order."""
    optimizer: torch.optim.Optimizer
    """The optimizer."""
    groups: list[list[str]]
    """Names of the members of each parameter group."""
    sections: Mapping[str, Mapping[str, Any]]
    """JSON objects: scheduler, data, trainer."""
    raw: Mapping[str, bytes]
    """Raw objects by name: states of random number generators."""

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield name and value of each object that neither is trained nor belongs to the optimizer."""
        for name, tensor in self.model.items():
            if name not in self.trained:
                yield f"model.{name}", tensor
        for section, values in self.sections.items():
            for key, value in values.items():
                yield f"{section}.{key}", value
        yield from self.raw.items()

    def inventory(self, manifest: StateManifest | None = None) -> list[StateObjectInfo]:
        """Return all objects in the order of their names; with the values' digests of those `manifest` has constant."""
        found = [_info(f"model.{name}", param.detach()) for name, param in self.trained.items()]
        for name, param in self.trained.items():
            found += [_info(f"optimizer.{name}.{k}", v) for k, v in tensor_state(self.optimizer, param).items()]
        for index, (names, group) in enumerate(zip(self.groups, self.optimizer.param_groups, strict=True)):
            members = members_text(type(self.optimizer).__name__, names)
            found.append(StateObjectInfo(name=f"param_groups.{index}.params", kind="params", dtype=members))
            options = (key for key in group if key != "params")
            found += [StateObjectInfo(name=f"param_groups.{index}.{key}", kind="option") for key in options]
        for name, value in self.values():
            info = _info(name, value)
            declared = manifest.find(name) if manifest is not None else None
            if declared is not None and declared.origin is Origin.CONSTANT:
                tensor = _as_tensor(value)
                info.digest = value_digest(_dtype(tensor), tensor.shape, bytes_of(tensor.contiguous()))
            found.append(info)
        return sorted(found, key=lambda info: info.name)

    def constants(self, manifest: StateManifest) -> dict[str, torch.Tensor]:
        """Return copies of the objects that `manifest` has constant, by their tensor names (``state/<object>``)."""
        return {
            SHARED_PREFIX + name: _as_tensor(value).clone()
            for name, value in self.values()
            if (declared := manifest.find(name)) is not None and declared.origin is Origin.CONSTANT
        }

    def objects(self, manifest: StateManifest, step: int) -> dict[str, StateObject]:
        """Return what the record of `step` carries: all objects that the side channel is to carry at this step.

        An object that is not declared is left out: the shadow names it, and publishes nothing until it is declared.
        """
        found: dict[str, StateObject] = {}
        sections: dict[str, dict[str, Any]] = {}
        for name, value in self.values():
            declared = manifest.find(name)
            if declared is None or not declared.due(step):
                continue
            section, _, key = name.partition(".")
            captured = step if declared.origin is Origin.SNAPSHOT else 0
            if isinstance(value, torch.Tensor):
                data = bytes(bytes_of(value.contiguous()))
                tensor = TensorValue(dtype=_dtype(value), shape=value.shape, data=data)
                found[name] = StateObject(tensor=tensor, step=captured)
            elif isinstance(value, bytes):
                found[name] = StateObject(raw=value, step=captured)
            elif captured:
                found[name] = StateObject(json=plain_json(name, value), step=captured)
            else:
                sections.setdefault(section, {})[key] = value
        for section, values in sections.items():
            found[section] = StateObject(json=plain_json(section, values))
        return found


def plain_json(name: str, value: Any) -> str:
    """Return `value` as canonical JSON.

    Raises:
        TrainerError: it is no plain value; `name` is named.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except TypeError as error:
        raise TrainerError(name, f"is no plain value: {error}") from error


def _info(name: str, value: Any) -> StateObjectInfo:
    if isinstance(value, torch.Tensor):
        return StateObjectInfo(name=name, kind="tensor", shape=value.shape, dtype=_dtype(value))
    return StateObjectInfo(name=name, kind="raw" if isinstance(value, bytes) else "json")


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach()
    data = value if isinstance(value, bytes) else plain_json("constant", value).encode()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
