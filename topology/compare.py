"""Bit-for-bit comparison of the trainer's state with a recovery point, and of two final states."""

from __future__ import annotations

from collections.abc import Mapping

import torch

STATE_PREFIXES = ("param/", "optim/", "state/")
"""Prefixes of the tensors that both trainer and shadow node hold; a recovery point also has the ranks' objects."""


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of `tensor` in C order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def first_difference(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> str | None:
    """Describe the first difference between two states; None if they are equal bit for bit.

    Compares names, element types, shapes and bytes of all tensors below `STATE_PREFIXES`. Bytes, not values: a NaN
    equals itself, and -0.0 differs from 0.0.
    """
    left = {name: tensor for name, tensor in ours.items() if name.startswith(STATE_PREFIXES)}
    right = {name: tensor for name, tensor in theirs.items() if name.startswith(STATE_PREFIXES)}
    if not left:
        return "there is no parameter or optimizer tensor to compare"
    if left.keys() != right.keys():
        missing, extra = sorted(left.keys() - right.keys()), sorted(right.keys() - left.keys())
        return f"tensors differ: missing {missing[:3]}, unexpected {extra[:3]}"
    for name in sorted(left):
        a, b = left[name], right[name]
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{name}: {a.dtype} {tuple(a.shape)} against {b.dtype} {tuple(b.shape)}"
        first, second = tensor_bytes(a), tensor_bytes(b)
        if first != second:
            index = next(i for i, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1])
            return f"{name}: differs from byte {index} of {len(first)} on"
    return None
