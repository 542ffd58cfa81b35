"""Reduced gradients as files: ``gradients/<group>/epoch-%04d/step-%08d/bucket-%04d.npy`` and ``step.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checkmate_common.files.private_files import make_private_folder, private, write_private
from checkmate_common.stream.dtypes import DType
from replay.errors import ReplayError
from replay.gradient import StepGradient
from replay.results import StepResult

_NUMPY = {DType.FLOAT32: "<f4", DType.FLOAT16: "<f2", DType.FLOAT64: "<f8", DType.BFLOAT16: "<u2"}
"""numpy has no bfloat16: its 16 bits are kept as they are, and ``step.json`` has the type's name."""


class GradientFiles:
    """Writes the gradients of complete steps."""

    def __init__(self, folder: Path) -> None:
        """Write below `folder`, which must be new or empty: no file of an earlier replay shall pass for this one's.

        Raises:
            ReplayError: it holds something, or cannot be made.
        """
        prepare(folder)
        self._folder = folder

    def write(self, gradient: StepGradient, result: StepResult) -> None:
        """Write a complete step; its ``step.json`` comes last, so that a folder with it is whole.

        Raises:
            ReplayError: the folder cannot be written.
        """
        epoch = f"epoch-{result.epoch:04d}"
        folder = self._folder / "gradients" / result.group / epoch / f"step-{result.step:08d}"
        layout = gradient.layout
        about = {
            "group": result.group,
            "epoch": result.epoch,
            "step": result.step,
            "sha256": result.sha256,
            "layout": json.loads(layout.to_json()),
            "layout_inferred": gradient.plan.inferred,
            "buckets": [
                {"file": _name(b.index), "dtype": b.dtype.label, "elements": b.elements} for b in layout.buckets
            ],
        }
        try:
            make_private_folder(folder)
            for bucket, data in zip(layout.buckets, gradient.buckets, strict=True):
                save_array(folder / _name(bucket.index), np.frombuffer(data, _NUMPY[bucket.dtype]))
            write_private(folder / "step.json", json.dumps(about, indent=1) + "\n")
        except OSError as error:
            problem = f"{folder} cannot be written: {error.strerror}"
            raise ReplayError("--out", problem, "free space, or choose another folder") from error


def prepare(folder: Path) -> None:
    """Make `folder` for its owner alone, or see that it is empty.

    Raises:
        ReplayError: it holds something, or cannot be made.
    """
    try:
        make_private_folder(folder)
        names: Sequence[Path] = list(folder.iterdir())
    except OSError as error:
        problem = f"{folder} cannot be made: {error.strerror}"
        raise ReplayError("--out", problem, "choose another folder") from error
    if names:
        raise ReplayError("--out", f"{folder} is not empty", "choose another folder, or remove what is in it")


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array for its owner alone, as a new file.

    Raises:
        OSError: it cannot be written, or is there already.
    """
    with open(path, "xb", opener=private) as file:
        np.save(file, array)


def _name(bucket: int) -> str:
    return f"bucket-{bucket:04d}.npy"
