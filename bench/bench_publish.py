"""Publishing a recovery point, encoded, hashed and written to memory-backed storage, over a copy of memory."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from bench.memory import Memcpy
from bench.ratios import Ratio, in_turns
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import ParamSpec, build_layout
from jobspec.store import Retention, StoreSpec
from shadow_rx.apply.model import tensor_bytes
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.store.writer import RecoveryStore
from shadow_rx.trainer.description import GroupPlan, OptimizerPlan
from shadow_rx.trainer.rank_step import RankStep

_WIDTH = 1024
_TMPFS = Path("/dev/shm")


def measure(quick: bool) -> dict[str, Ratio]:
    """Return the figures: bytes of state a second for a base, bytes of gradient a second for a step of the log."""
    snapshot = _snapshot(2 if quick else 24)
    rounds = 5 if quick else 11
    folder = Path(tempfile.mkdtemp(prefix="checkmate-bench-", dir=_TMPFS if _TMPFS.is_dir() else None))
    try:
        base, log = (
            _Publishing(
                snapshot, RecoveryStore(folder / name, policy=StoreSpec(base_every=every, retention=Retention(steps=3)))
            )
            for name, every in (("base", 1), ("log", 1_000_000))
        )
        return {
            "publish_over_memcpy": in_turns(base.state, Memcpy(), unit="GB/s", rounds=rounds, aim=0.1),
            "publish_log_over_memcpy": in_turns(log.gradient, Memcpy(), unit="GB/s", rounds=rounds),
        }
    finally:
        shutil.rmtree(folder)


class _Publishing:
    def __init__(self, snapshot: Snapshot, store: RecoveryStore) -> None:
        self._snapshot, self._store = snapshot, store
        self._steps = itertools.count(1)

    def _publish(self) -> float:
        snapshot = replace(self._snapshot, step=next(self._steps))
        began = time.perf_counter()
        result = self._store.publish(snapshot)
        assert result.error is None, result.error
        return time.perf_counter() - began

    def state(self) -> float:
        return tensor_bytes(self._snapshot.tensors) / self._publish() / 1e9

    def gradient(self) -> float:
        return self._snapshot.layout.nbytes / self._publish() / 1e9


def _snapshot(parameters: int) -> Snapshot:
    layout = build_layout([ParamSpec(f"w{i}", (_WIDTH, _WIDTH), DType.FLOAT32) for i in range(parameters)], 25 << 20)
    names = tuple(slot.param.name for slot in layout.slots)
    tensors = {f"param/{name}": torch.randn(_WIDTH, _WIDTH) for name in names}
    for name in names:
        tensors |= {f"optim/{name}/{key}": torch.randn(_WIDTH, _WIDTH) for key in ("exp_avg", "exp_avg_sq")}
    optimizer = OptimizerPlan("AdamW", (GroupPlan(names, {"lr": 0.1}),))
    record = RankStep(0, 1, ({"lr": 0.1},), 1.0, {}, {}, b"", {})
    return Snapshot(
        "bench", "dp0", 1, 1, layout, optimizer, (record,), tensors, torch.randn(layout.nbytes // 4).numpy().tobytes()
    )
