"""A step as a record of the log: all of its recovery point but what the replay of its gradient gives.

That is the manifest, the tensors that are not replayed (RNG states, buffers; those that did not change since the
step before are left out), the reduced gradient, and the digest of the parameters after the step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from checkmate_common.files.hashing import sha256_hex
from checkmate_common.recovery.point import (
    Manifest,
    RecoveryPoint,
    RecoveryPointError,
    StateEntry,
    decode_recovery_point,
    manifest_text,
    state_parts,
)
from checkmate_common.recovery.state import Origin
from checkmate_common.recovery.tensors import bytes_of
from checkmate_common.sidechannel.digest import parameter_digest
from checkmate_common.stream.layout import Layout
from shadow_rx.apply.model import Tensors
from shadow_rx.publish.snapshot import Snapshot, contents, with_state
from shadow_rx.store.segment import Parts, Record, SegmentDamage, encode_record
from shadow_rx.trainer.description import GroupPlan, OptimizerPlan, Options, Update
from shadow_rx.trainer.rank_step import reported_digest


@dataclass(frozen=True)
class LoggedStep:
    """A step of the log, decoded."""

    manifest: Manifest
    """Of the recovery point; its objects are those that are not replayed, its state is not the point's."""
    changed: Tensors
    """Tensors that are not replayed and differ from those of the step before."""
    kept: tuple[str, ...]
    """Names of those that are as in the step before."""
    gradient: memoryview
    """The reduced gradient: buckets in layout order, without padding."""
    update: Update
    """What the optimizer step did besides using the gradient."""
    digest: bytes
    """SHA-256 of the parameters after the step (`checkmate_common.sidechannel.digest`)."""


def is_replayed(name: str, params: frozenset[str]) -> bool:
    """Tell whether the replay of gradients gives the tensor `name`; `params` are the layout's parameters."""
    kind, _, rest = name.partition("/")
    if kind == "param":
        return rest in params
    return kind == "optim" and rest.rpartition("/")[0] in params


def params_of(layout: Layout) -> frozenset[str]:
    """Return the names of the layout's parameters."""
    return frozenset(slot.param.name for slot in layout.slots)


def other_tensors(layout: Layout, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return the tensors that gradients do not determine."""
    params = params_of(layout)
    return {name: tensor for name, tensor in tensors.items() if not is_replayed(name, params)}


def digest_of(snapshot: Snapshot) -> bytes:
    """Return the digest of a snapshot's parameters."""
    told = reported_digest(snapshot.records)
    # A digest that the ranks told was compared with the parameters before the snapshot was taken.
    return told or parameter_digest(
        (slot.param.name, bytes_of(snapshot.tensors[f"param/{slot.param.name}"])) for slot in snapshot.layout.slots
    )


def encode_step(snapshot: Snapshot, before: Mapping[str, torch.Tensor]) -> tuple[Parts, Tensors]:
    """Return the parts of the record of a step, and the tensors that gradients do not determine, for the next call.

    Args:
        snapshot: the step, with its gradient.
        before: those tensors of the step before.

    Raises:
        RecoveryPointError: a tensor that cannot be stored.
        ValueError: the snapshot has no gradient or no records.
    """
    if snapshot.gradient is None or not snapshot.records:
        raise ValueError(f"the snapshot of step {snapshot.step} has no gradient or no records; only a base can hold it")
    bare = replace(snapshot, tensors=other_tensors(snapshot.layout, snapshot.tensors), gradient=None)
    manifest, tensors = contents(bare)
    kept = [name for name, tensor in tensors.items() if name in before and same(tensor, before[name])]
    state = state_parts({name: tensor for name, tensor in tensors.items() if name not in kept})
    manifest = with_state(manifest, state, sha256_hex(state))
    update = snapshot.records[0].update
    text = {
        "manifest": manifest_text(manifest),
        "kept": kept,
        "state_bytes": manifest.state_bytes,
        "scale": update.scale,
        "skipped": update.skipped,
        "digest": digest_of(snapshot).hex(),
    }
    return encode_record(text, (*state, snapshot.gradient)), tensors


def decode_step(record: Record) -> LoggedStep:
    """Read what `encode_step` wrote.

    Raises:
        SegmentDamage: a field is missing or wrong.
    """
    text = record.text()
    try:
        length, kept = int(text["state_bytes"]), tuple(str(name) for name in text["kept"])
        digest = bytes.fromhex(text["digest"])
        if not 0 <= length <= len(record.body):
            raise ValueError(f"{length} bytes of state in {len(record.body)}")
        point = decode_recovery_point(text["manifest"], bytes(record.body[:length]))
        scale = text["scale"]
        update = Update(options_of(point.manifest), None if scale is None else float(scale), bool(text["skipped"]))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise SegmentDamage(f"a record does not hold a step: {error!r}") from error
    return LoggedStep(point.manifest, point.tensors, kept, record.body[length:], update, digest)


def plan_of(manifest: Manifest) -> OptimizerPlan:
    """Return the optimizer of a recovery point, with the options of its step."""
    groups = tuple(GroupPlan(tuple(group.params), _tuples(group.options)) for group in manifest.optimizer.groups)
    return OptimizerPlan(manifest.optimizer.name, groups)


def options_of(manifest: Manifest) -> tuple[Options, ...]:
    """Return the options that a step used, one mapping a parameter group."""
    return tuple(_tuples(group.options) for group in manifest.optimizer.groups)


def _tuples(options: Mapping[str, object]) -> Options:
    """Return options as torch.optim keeps them: JSON knows no tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def join(manifest: Manifest, replayed: Tensors, others: Mapping[str, torch.Tensor]) -> RecoveryPoint:
    """Return the recovery point of a step from its record's manifest and all of its tensors.

    Raises:
        RecoveryPointError: a tensor that cannot be stored.
    """
    tensors = {**replayed, **others}
    state = state_parts(tensors)
    entries = [StateEntry(name=name, origin=Origin.REPLAY, step=manifest.step) for name in replayed]
    objects = sorted([*manifest.objects, *entries], key=lambda entry: entry.name)
    told = with_state(manifest.model_copy(update={"objects": objects}), state, sha256_hex(state))
    return RecoveryPoint(told, tensors)


def layout_of(manifest: Manifest) -> Layout:
    """Return the layout that a manifest holds.

    Raises:
        RecoveryPointError: it is none.
    """
    try:
        return Layout.from_json(json.dumps(manifest.layout))
    except ValueError as error:
        raise RecoveryPointError(None, f"the manifest of step {manifest.step} has no layout: {error}") from error


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors are equal bit for bit, a NaN to itself too."""
    if one is other:
        return True
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(bytes_of(one.contiguous()) == bytes_of(other.contiguous()))
