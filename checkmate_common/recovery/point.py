"""Recovery point: the state of one step that a job can restart from, and its two files.

A published recovery point is a directory with ``state.safetensors`` (tensors by name) and ``manifest.json``, written
last: a directory without a manifest is not a recovery point. Tensor names: ``param/<parameter>`` (trained parameters),
``optim/<parameter>/<key>``, ``state/<object>`` (constants, e.g. ``state/model.0.weight`` of a frozen parameter) and
``rank/<rank>/<object>`` (objects per rank: buffers such as ``model.1.running_mean``, and raw ones such as
``rng.torch``, as uint8). Nothing is ever unpickled. Format: safetensors (JSON header, little-endian data).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import safetensors
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from checkmate_common.files.checked_json import MAX_BYTES, with_checksum, without_checksum
from checkmate_common.files.regular_files import read_regular
from checkmate_common.recovery.state import Origin as Origin
from checkmate_common.recovery.tensor_file import tensor_parts

Confirmed = Literal["parameters", "optimizer"]
"""A part of a state for which the ranks send digests."""
SCHEMA = 2
"""Version of written manifests: they end with a checksum (`checkmate_common.files.checked_json`)."""
UNCHECKED_SCHEMA = 1
"""The previous version, which is read too: without a checksum, so damage to it may go undetected."""
STATE_FILE = "state.safetensors"
MANIFEST_FILE = "manifest.json"


_NUMBER = Field(ge=0, lt=1 << 63)


class RecoveryPointError(ValueError):
    """A recovery point cannot be read; `path` says where, the message why."""

    def __init__(self, path: Path | None, message: str) -> None:
        """Keep path and message."""
        self.path = path
        super().__init__(f"{path}: {message}" if path else message)


class _Model(BaseModel):
    # A loss may be NaN or infinite; pydantic's default writes null, which could not be read back.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class StateEntry(_Model):
    """One object of the recovery point."""

    name: str
    """Tensor or object name."""
    origin: Origin
    """Its origin."""
    step: Annotated[int, _NUMBER]
    """Step that it is valid for; the same for all objects."""
    rank: int | None = None
    """Its rank, None for objects that all ranks share."""


class OptimizerGroup(_Model):
    """A parameter group and the hyperparameters that the step used."""

    params: list[str]
    """Parameter names in the group's order."""
    options: dict[str, Any]
    """All keys of the group except ``params``."""


class OptimizerState(_Model):
    """The optimizer and its groups."""

    name: str
    """Class of ``torch.optim``."""
    groups: list[OptimizerGroup]
    """In the optimizer's order."""


class RankRecord(_Model):
    """The step's record of one rank."""

    rank: Annotated[int, _NUMBER]
    """The rank."""
    loss: float
    """Mean loss of its share of the batch."""
    objects: dict[str, Any]
    """Its JSON objects by name (raw ones are tensors in the state file)."""


class Manifest(_Model):
    """Contents of ``manifest.json``."""

    schema_version: int = SCHEMA
    """Version of this format; written manifests have the newest."""
    job: str
    """Job name."""
    group: str
    """DP group name."""
    epoch: Annotated[int, _NUMBER]
    """Incarnation of the communicator that trained the step."""
    step: Annotated[int, _NUMBER]
    """Training step whose result this is."""
    ranks: Annotated[int, _NUMBER]
    """Number of ranks."""
    layout: dict[str, Any]
    """The layout of the step (`checkmate_common.stream.layout.Layout.to_json`)."""
    optimizer: OptimizerState
    """The optimizer."""
    records: list[RankRecord]
    """One per rank, in rank order."""
    objects: list[StateEntry]
    """All objects with origin and step."""
    confirmed: list[Confirmed] = []
    """Parts of the replayed state that the ranks' digests of this step confirmed: "parameters", "optimizer"."""
    state_bytes: Annotated[int, _NUMBER]
    """Length of the state file."""
    state_sha256: str
    """SHA-256 (hex) of the state file."""


@dataclass(frozen=True)
class RecoveryPoint:
    """A recovery point in memory."""

    manifest: Manifest
    """Its description."""
    tensors: dict[str, torch.Tensor]
    """Every tensor by name, on the CPU."""


def pack_tensors(tensors: dict[str, torch.Tensor]) -> bytes:
    """Return `tensors` as the bytes of a safetensors file.

    Raises:
        RecoveryPointError: see `state_parts`.
    """
    return b"".join(state_parts(tensors))


def state_parts(tensors: dict[str, torch.Tensor]) -> list[memoryview]:
    """Return `tensors` as parts of a safetensors file that share their memory (`tensor_file.tensor_parts`).

    Raises:
        RecoveryPointError: an element type or memory layout that the format does not support.
    """
    try:
        return tensor_parts(tensors)
    except ValueError as error:
        raise RecoveryPointError(None, f"tensors cannot be stored: {error}") from error


def unpack_tensors(data: bytes, path: Path | None = None) -> dict[str, torch.Tensor]:
    """Read the bytes of a safetensors file.

    Raises:
        RecoveryPointError: not a safetensors file, truncated, or an unknown element type.
    """
    try:
        return safetensors.torch.load(data)
    except (KeyError, ValueError, TypeError, RuntimeError, safetensors.SafetensorError) as error:
        raise RecoveryPointError(path, f"not a safetensors file: {error}") from error


def read_recovery_point(directory: Path) -> RecoveryPoint:
    """Read and check a published recovery point.

    Raises:
        RecoveryPointError: no manifest (not published), a manifest that does not fit the format, a state file that is
            missing or not the one the manifest was written for.
    """
    path = directory / MANIFEST_FILE
    try:
        text = read_regular(path, MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RecoveryPointError(path, f"not a recovery point, its manifest cannot be read: {error}") from error
    manifest = decode_manifest(text, path)
    state_path = directory / STATE_FILE
    try:
        data = read_regular(state_path, manifest.state_bytes)
    except OSError as error:
        raise RecoveryPointError(state_path, f"the state file cannot be read: {error}") from error
    return join_state(manifest, data, path)


def decode_recovery_point(manifest_json: str, state: bytes, path: Path | None = None) -> RecoveryPoint:
    """Build a recovery point from its manifest and state file, and check that they match.

    Raises:
        RecoveryPointError: see `read_recovery_point`.
    """
    return join_state(decode_manifest(manifest_json, path), state, path)


def manifest_text(manifest: Manifest, indent: int | None = None) -> str:
    """Return a manifest in written form, with its checksum.

    Raises:
        RecoveryPointError: it is larger than readers accept.
    """
    text = manifest.model_copy(update={"schema_version": SCHEMA}).model_dump_json(indent=indent)
    try:
        return with_checksum(text)
    except ValueError as error:
        raise RecoveryPointError(None, f"the manifest {error}") from error


def decode_manifest(text: str, path: Path | None = None) -> Manifest:
    """Read a manifest from `manifest_text`, or one of the previous version.

    Raises:
        RecoveryPointError: it is damaged, too large, or does not fit the format.
    """
    try:
        bare, checked = without_checksum(text)
        manifest = Manifest.model_validate_json(bare)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = f"the manifest does not fit the format: {where + ': ' if where else ''}{first['msg']}"
        raise RecoveryPointError(path, message) from None
    except ValueError as error:
        raise RecoveryPointError(path, f"the manifest {error}") from error
    if manifest.schema_version not in (SCHEMA, UNCHECKED_SCHEMA):
        message = f"schema {manifest.schema_version}, but this program reads {UNCHECKED_SCHEMA} and {SCHEMA}"
        raise RecoveryPointError(path, message)
    if checked != (manifest.schema_version == SCHEMA):
        raise RecoveryPointError(path, f"the manifest is damaged: schema {manifest.schema_version} ends differently")
    return manifest


def join_state(manifest: Manifest, state: bytes, path: Path | None = None) -> RecoveryPoint:
    """Build a recovery point from its manifest and state file, and check that they match.

    Raises:
        RecoveryPointError: they do not match, or the state is not a safetensors file.
    """
    if len(state) != manifest.state_bytes or hashlib.sha256(state).hexdigest() != manifest.state_sha256:
        raise RecoveryPointError(path, "the state file is damaged: length or SHA-256 differ from the manifest")
    tensors = unpack_tensors(state, path)
    declared = {entry.name for entry in manifest.objects}
    undeclared = sorted(set(tensors) - declared)
    if undeclared:
        raise RecoveryPointError(path, f"tensors without an entry in the manifest: {undeclared[:5]}")
    if any(entry.step != manifest.step for entry in manifest.objects):
        raise RecoveryPointError(path, f"objects of different steps, expected all of step {manifest.step}")
    return RecoveryPoint(manifest, tensors)
