"""A recovery point as the shadow holds it in memory, and its encoding into the two published files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from checkmate_common.files.hashing import hashing, sha256_hex
from checkmate_common.recovery.point import (
    Confirmed,
    Manifest,
    OptimizerGroup,
    OptimizerState,
    Origin,
    RankRecord,
    RecoveryPoint,
    StateEntry,
    manifest_text,
    pack_tensors,
    state_parts,
)
from checkmate_common.stream.layout import Layout
from shadow_rx.apply.model import Tensors
from shadow_rx.trainer.description import OptimizerPlan, Options
from shadow_rx.trainer.rank_step import RankStep, reported_digest, reported_optimizer_digest


@dataclass(frozen=True)
class Snapshot:
    """State after one step that was verified, applied in full and joined with all ranks' records."""

    job: str
    """Job name."""
    group: str
    """DP group name."""
    epoch: int
    """Incarnation of the communicator that trained the step."""
    step: int
    """The training step."""
    layout: Layout
    """Layout of the step."""
    optimizer: OptimizerPlan
    """The optimizer; its groups' options are those of `records`."""
    records: tuple[RankStep, ...]
    """One a rank, in rank order."""
    tensors: Tensors
    """Parameters and optimizer state: copies that nothing changes."""
    gradient: bytes | None = None
    """The step's reduced gradient: buckets in layout order, without the padding between them.

    None where the state was not advanced by this gradient, but uploaded.
    """
    constants: Tensors = field(default_factory=dict)
    """Objects that are the same for the whole run: ``state/<object>``."""
    confirmed: tuple[Confirmed, ...] = ()
    """Parts of the state that the ranks' digests agreed with: "parameters", "optimizer"."""


def confirmed_parts(records: Iterable[RankStep]) -> tuple[Confirmed, ...]:
    """Return which parts of a state that was compared with the digests of `records` these confirm."""
    told = list(records)
    digests: dict[Confirmed, bytes] = {
        "parameters": reported_digest(told),
        "optimizer": reported_optimizer_digest(told),
    }
    return tuple(name for name, digest in digests.items() if digest)


@dataclass(frozen=True)
class EncodedPoint:
    """The contents of the two files of a recovery point."""

    manifest_json: str
    """``manifest.json``."""
    state: bytes
    """``state.safetensors``."""


def to_recovery_point(snapshot: Snapshot) -> RecoveryPoint:
    """Return `snapshot` in the form that a trainer restores from.

    Raises:
        RecoveryPointError: a tensor that safetensors cannot hold.
    """
    manifest, tensors = contents(snapshot)
    parts = state_parts(tensors)
    return RecoveryPoint(with_state(manifest, parts, sha256_hex(parts)), tensors)


def encode(snapshot: Snapshot) -> EncodedPoint:
    """Return the files of `snapshot`; equal snapshots give equal files.

    Raises:
        RecoveryPointError: a tensor that safetensors cannot hold.
    """
    point = to_recovery_point(snapshot)
    return EncodedPoint(manifest_text(point.manifest, indent=1), pack_tensors(point.tensors))


@contextmanager
def encoding(snapshot: Snapshot) -> Iterator[tuple[list[memoryview], Callable[[], bytes]]]:
    """Encode `snapshot` without a copy of its tensors.

    Within, the parts of its state file can be written while they are hashed; the manifest is called for after them.

    Raises:
        RecoveryPointError: a tensor that safetensors cannot hold.
    """
    manifest, tensors = contents(snapshot)
    parts = state_parts(tensors)
    with hashing(parts) as digest:
        yield parts, lambda: manifest_text(with_state(manifest, parts, digest.result()), indent=1).encode()


def with_state(manifest: Manifest, parts: Iterable[memoryview], sha256: str) -> Manifest:
    """Return `manifest` for a state file of `parts` with the digest `sha256` (hexadecimal)."""
    return manifest.model_copy(update={"state_bytes": sum(map(len, parts)), "state_sha256": sha256})


def contents(snapshot: Snapshot) -> tuple[Manifest, Tensors]:
    """Return the manifest of `snapshot`, which names no state file yet, and all of its tensors."""
    step = snapshot.step
    tensors = dict(snapshot.tensors)
    objects = [StateEntry(name=name, origin=Origin.REPLAY, step=step) for name in tensors]
    tensors.update(snapshot.constants)
    objects += [StateEntry(name=name, origin=Origin.CONSTANT, step=step) for name in snapshot.constants]
    for index, _ in enumerate(snapshot.optimizer.groups):
        objects.append(StateEntry(name=f"param_groups.{index}", origin=Origin.SIDE_CHANNEL, step=step))
    for record in snapshot.records:
        for name, raw in record.raw.items():
            # A copy, because torch wants writable memory and bytes are not.
            tensors[f"rank/{record.rank}/{name}"] = torch.from_numpy(np.frombuffer(raw, np.uint8).copy())
        tensors.update((f"rank/{record.rank}/{name}", tensor) for name, tensor in record.tensors.items())
        for name in (*record.raw, *record.tensors, *record.objects):
            full_name = f"rank/{record.rank}/{name}"
            origin = Origin.SNAPSHOT if name in record.captured else Origin.SIDE_CHANNEL
            objects.append(StateEntry(name=full_name, origin=origin, step=step, rank=record.rank))
    options = snapshot.records[0].options
    manifest = Manifest(
        job=snapshot.job,
        group=snapshot.group,
        epoch=snapshot.epoch,
        step=step,
        ranks=len(snapshot.records),
        layout=json.loads(snapshot.layout.to_json()),
        optimizer=OptimizerState(
            name=snapshot.optimizer.name,
            groups=[
                OptimizerGroup(params=list(group.params), options=_json_values(used))
                for group, used in zip(snapshot.optimizer.groups, options, strict=True)
            ],
        ),
        records=[RankRecord(rank=r.rank, loss=r.loss, objects=dict(r.objects)) for r in snapshot.records],
        objects=sorted(objects, key=lambda entry: entry.name),
        confirmed=list(snapshot.confirmed),
        state_bytes=0,
        state_sha256="",
    )
    return manifest, tensors


def _json_values(options: Options) -> dict[str, Any]:
    """Return `options` as they read back from a manifest: JSON knows no tuples."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
