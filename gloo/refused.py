"""Names for what cannot be rebuilt from the wire."""

from __future__ import annotations

from collections.abc import Sequence

from gloo.parameters import Parameter

_MOST_RANK = 64
_SHOWN = 6


def refusal(parameters: Sequence[Parameter], sizes: Sequence[int]) -> str:
    """Return what all-reduces of `sizes` bytes, which are no buckets, stand for.

    PowerSGD (``powerSGD_hook.py``) reduces two narrow matrices P and Q in place of each gradient of two dimensions or
    more; the gradient itself follows only from error feedback that each rank keeps to itself.
    """
    matrices = [parameter for parameter in parameters if len(parameter.shape) > 1]
    for rank in range(1, _MOST_RANK + 1):
        left = sum(min(m.shape[0], rank, m.elements // m.shape[0]) * m.shape[0] for m in matrices if m.shape[0])
        right = sum(
            min(m.shape[0], rank, m.elements // m.shape[0]) * (m.elements // m.shape[0]) for m in matrices if m.shape[0]
        )
        if left and {4 * left, 4 * right} <= set(sizes):
            return f"PowerSGD of rank {rank}: gradients cannot be rebuilt from what it sends"
    shown = ", ".join(str(size) for size in sizes[:_SHOWN]) + (", ..." if len(sizes) > _SHOWN else "")
    return f"all-reduces of {shown} bytes are no buckets of the model: a communication hook that is not known"
