"""A recovery point in the forms that a training job reads: a PyTorch checkpoint, safetensors, or a DCP directory.

A PyTorch checkpoint holds tensors and plain values only, so that ``torch.load(..., weights_only=True)`` reads it. Its
parts go into the ordinary ``load_state_dict`` calls of model, optimizer and scheduler.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch

from checkmate_common.files.private_files import make_private_folder, private, replace_private
from checkmate_common.recovery.point import (
    MANIFEST_FILE,
    STATE_FILE,
    RankRecord,
    RecoveryPoint,
    manifest_text,
    pack_tensors,
)
from checkmate_common.recovery.state import SHARED_PREFIX
from shadow_rx.apply.model import Tensors
from shadow_rx.store.errors import StoreError, Trouble, missing
from shadow_rx.store.steplog import layout_of, options_of

_MODEL, _RNG = "model.", "rng."


def torch_checkpoint(point: RecoveryPoint, rank: int = 0) -> dict[str, Any]:
    """Return a checkpoint as a training script would have saved it after the step.

    Keys: ``model`` (model.state_dict(): parameters, constants, and the rank's buffers), ``optimizer``
    (optimizer.state_dict(), with the learning rates that the schedule has set for the next step), ``scheduler``,
    ``rng`` (states of random number generators by name, uint8), ``objects`` (the rank's other objects, such as its
    place in the data), ``step``, ``epoch``, ``job``, ``group``, ``rank`` and ``ranks``; ``others`` has scheduler, rng,
    objects and buffers of the other ranks by number.

    Args:
        point: the recovery point.
        rank: the rank whose buffers, schedule and RNG states are taken.

    Raises:
        StoreError: the point has no record of the rank.
    """
    manifest = point.manifest
    # Tensors of a replayed step share one block of memory, which torch.save does not take for several element types.
    point = RecoveryPoint(manifest, {name: tensor.clone() for name, tensor in point.tensors.items()})
    own = _rank_part(point, rank)
    return {
        "model": _model(point) | own.pop("buffers"),
        "optimizer": _optimizer(point, own["scheduler"], names=False),
        **own,
        "step": manifest.step,
        "epoch": manifest.epoch,
        "job": manifest.job,
        "group": manifest.group,
        "rank": rank,
        "ranks": manifest.ranks,
        "others": {other.rank: _rank_part(point, other.rank) for other in manifest.records if other.rank != rank},
    }


def write_torch(point: RecoveryPoint, path: Path, rank: int = 0) -> None:
    """Write `torch_checkpoint` as a file for its owner alone.

    Raises:
        StoreError: the point has no record of the rank.
        OSError: it cannot be written.
    """
    buffer = io.BytesIO()
    torch.save(torch_checkpoint(point, rank), buffer)
    _write(path, buffer.getbuffer())


def write_safetensors(point: RecoveryPoint, path: Path, rank: int = 0, model_only: bool = False) -> None:
    """Write a safetensors file for its owner alone.

    By default all tensors of the recovery point, by their names there, with the manifest as metadata; with `model_only`
    what ``model.load_state_dict`` takes. The metadata has the parameters' names in the trainer's order, too.

    Raises:
        StoreError: the point has no record of the rank.
        OSError: it cannot be written.
    """
    tensors = _model(point) | _rank_part(point, rank)["buffers"] if model_only else point.tensors
    # The format has an order of its own.
    names = json.dumps(parameter_names(point))
    metadata = {"format": "pt", "step": str(point.manifest.step), "param_names": names}
    if not model_only:
        metadata["manifest"] = manifest_text(point.manifest)
    data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
    _write(path, memoryview(data))


def write_point(point: RecoveryPoint, folder: Path) -> None:
    """Write the point as a directory that `read_recovery_point` reads; it replaces an old one.

    Raises:
        RecoveryPointError: a tensor that cannot be stored.
        OSError: it cannot be written.
    """
    make_private_folder(folder)
    _write(folder / STATE_FILE, memoryview(pack_tensors(point.tensors)))
    _write(folder / MANIFEST_FILE, memoryview(manifest_text(point.manifest, indent=1).encode()))


def write_dcp(point: RecoveryPoint, folder: Path, rank: int = 0) -> None:
    """Write a torch.distributed.checkpoint directory, which a job with any number of ranks can load.

    The names are those of ``torch.distributed.checkpoint.state_dict.get_state_dict``: ``model``, and ``optimizer`` with
    parameters by their full names; besides them ``scheduler``, ``rng``, ``objects`` and ``step``.

    Raises:
        StoreError: the point has no record of the rank, or `folder` exists.
        OSError: it cannot be written.
    """
    # Here, because it imports much that no other form needs.
    from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    class PrivateFiles(FileSystem):
        @contextmanager
        def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
            with open(path, mode, opener=private) as stream:
                yield cast(io.IOBase, stream)

    if folder.exists():
        raise StoreError(Trouble.STORAGE, str(folder), "", "exists already; name a new directory")
    own = _rank_part(point, rank)
    state = {
        "model": _model(point) | own.pop("buffers"),
        "optimizer": _optimizer(point, own["scheduler"], names=True),
        **own,
        "step": point.manifest.step,
    }
    make_private_folder(folder.parent)
    unfinished = Path(tempfile.mkdtemp(prefix=f".new-{folder.name}-", dir=folder.parent))
    try:
        writer = FileSystemWriter(unfinished)
        writer.fs = PrivateFiles()
        with warnings.catch_warnings():
            # That no process group is there is what we want: this is one process, whatever the job's size.
            warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")
            save(state, storage_writer=writer, no_dist=True)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished)
        raise


def _model(point: RecoveryPoint) -> Tensors:
    """Return parameters and constants under the names of the model's state_dict; parameters in the trainer's order."""
    names = [f"param/{name}" for name in parameter_names(point)]
    names += sorted(name for name in point.tensors if name not in set(names))
    found: Tensors = {}
    for name in names:
        for prefix in ("param/", SHARED_PREFIX + _MODEL):
            if name.startswith(prefix):
                found[name.removeprefix(prefix)] = point.tensors[name]
    return found


def parameter_names(point: RecoveryPoint) -> list[str]:
    """Return the names of the trained parameters in the trainer's order."""
    return [slot.param.name for slot in layout_of(point.manifest).slots]


def _rank_part(point: RecoveryPoint, rank: int) -> dict[str, Any]:
    record = _record(point, rank)
    prefix = f"rank/{rank}/"
    own = {name.removeprefix(prefix): point.tensors[name] for name in sorted(point.tensors) if name.startswith(prefix)}
    objects = dict(record.objects)
    buffers = {name.removeprefix(_MODEL): tensor for name, tensor in own.items() if name.startswith(_MODEL)}
    rng = {name.removeprefix(_RNG): tensor for name, tensor in own.items() if name.startswith(_RNG)}
    rest = {name: tensor for name, tensor in own.items() if not name.startswith((_MODEL, _RNG))}
    return {"scheduler": objects.pop("scheduler", None), "rng": rng, "objects": objects | rest, "buffers": buffers}


def _record(point: RecoveryPoint, rank: int) -> RankRecord:
    found = next((record for record in point.manifest.records if record.rank == rank), None)
    if found is None:
        raise missing("recovery point", "", f"of step {point.manifest.step} has no record of rank {rank}")
    return found


def _optimizer(point: RecoveryPoint, scheduler: Any, names: bool) -> dict[str, Any]:
    """Return optimizer.state_dict(), with parameters by number as the optimizer has them, or by name.

    Each group also has ``param_names``, torch's own key: numbers alone do not tell an optimizer that was built in
    another order. And ``initial_lr`` where there is a schedule, which torch needs to start one in the middle.
    """
    ordered = [name for group in point.manifest.optimizer.groups for name in group.params]
    key = {name: name if names else index for index, name in enumerate(ordered)}
    state: dict[int | str, Tensors] = {}
    for full, tensor in sorted(point.tensors.items()):
        kind, _, rest = full.partition("/")
        name, _, part = rest.rpartition("/")
        if kind == "optim" and name in key:
            state.setdefault(key[name], {})[part] = tensor
    groups = [
        {**options, "params": [key[name] for name in group.params], "param_names": list(group.params)}
        for group, options in zip(point.manifest.optimizer.groups, options_of(point.manifest), strict=True)
    ]
    rates, first = _rates(scheduler, "_last_lr"), _rates(scheduler, "base_lrs")
    if len(rates) == len(groups):
        # The options of a recovery point are those that its step used. Loading a schedule's state does not set the
        # optimizer's rates, because ordinary checkpoints have those of the step to come in the optimizer's part.
        groups = [{**group, "lr": rate} for group, rate in zip(groups, rates, strict=True)]
    if len(first) == len(groups):
        groups = [{"initial_lr": rate, **group} for group, rate in zip(groups, first, strict=True)]
    # In the optimizer's own order.
    return {"state": {key[name]: state[key[name]] for name in ordered if key[name] in state}, "param_groups": groups}


def _rates(scheduler: Any, key: str) -> list[float]:
    rates = scheduler.get(key) if isinstance(scheduler, Mapping) else None
    return list(rates) if isinstance(rates, list) else []


def _write(path: Path, data: memoryview) -> None:
    make_private_folder(path.parent)
    replace_private(path, data)
