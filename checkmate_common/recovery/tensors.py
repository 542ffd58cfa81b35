"""Tensors as element types and as bytes."""

from __future__ import annotations

import torch

from checkmate_common.stream.dtypes import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {dtype: getattr(torch, dtype.label) for dtype in DType}
"""The torch type of each supported element type."""


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, without a copy: writing to them writes to the tensor."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data
