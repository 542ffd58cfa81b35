"""The shadow's optimizer step over torch's own on equal tensors, and the copy of state that is published.

One thread, as a shadow node steps. Options are those of a trainer that asks for the fused AdamW: the shadow steps with
the trainer's own implementation, since others round differently.
"""

from __future__ import annotations

import time

import torch

from bench.memory import Memcpy
from bench.ratios import Ratio, in_turns
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import ParamSpec, build_layout
from placement.plan import bucket_offsets
from shadow_rx.apply.model import LiveModel, Tensors, tensor_bytes
from shadow_rx.trainer.description import GroupPlan, OptimizerPlan, Update

_WIDTH = 1024


def measure(quick: bool) -> dict[str, Ratio]:
    """Return the figures; `quick` takes a tenth of the parameters."""
    torch.set_num_threads(1)
    layout = build_layout(
        [ParamSpec(f"w{i}", (_WIDTH, _WIDTH), DType.FLOAT32) for i in range(2 if quick else 24)], 25 << 20
    )
    names = [slot.param.name for slot in layout.slots]
    start: Tensors = {f"param/{name}": torch.randn(_WIDTH, _WIDTH) for name in names}
    params = [torch.nn.Parameter(value.clone()) for value in start.values()]
    optimizer = torch.optim.AdamW(params, fused=True)
    options = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    replay = LiveModel(layout, OptimizerPlan("AdamW", (GroupPlan(tuple(names), options),)), start)
    offsets, size = bucket_offsets(layout)
    gradient = bytearray(torch.randn(size // 4).numpy().tobytes())
    update = Update((options,))
    for param in params:
        param.grad = torch.randn(_WIDTH, _WIDTH)

    def apply() -> float:
        began = time.perf_counter()
        replay.step(gradient, offsets, update)
        return time.perf_counter() - began

    def fused() -> float:
        began = time.perf_counter()
        optimizer.step()
        return time.perf_counter() - began

    def copy() -> float:
        began = time.perf_counter()
        copied = tensor_bytes(replay.snapshot())
        return copied / (time.perf_counter() - began) / 1e9

    rounds = 5 if quick else 15
    return {
        "apply_over_fused_step": in_turns(apply, fused, unit="s", rounds=rounds, aim=1.1, most=True),
        "copy_state_over_memcpy": in_turns(copy, Memcpy(), unit="GB/s", rounds=rounds),
    }
