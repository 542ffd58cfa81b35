"""Pooled memory is lent again only when nothing can read it any more."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shadow_rx.apply.buffer_pool import BufferPool

VIEWS: dict[str, Callable[[Any], object]] = {
    "slice": lambda a: a[5:9],
    "slice of a slice": lambda a: a[5:90][2:4],
    "asarray": lambda a: np.asarray(a)[3:8],
    "other type": lambda a: a.view(np.uint32)[1:],
    "reshaped": lambda a: a.reshape(10, 100)[2],
    "memoryview": lambda a: memoryview(a)[4:9],
    "memoryview of a slice": lambda a: memoryview(a[4:9]),
    "frombuffer": lambda a: np.frombuffer(memoryview(a), np.uint8)[4:],
    "tensor": lambda a: torch.from_numpy(a)[3:8],
    "tensor of a slice": lambda a: torch.from_numpy(a[8:16]).view(torch.float32),
    "array of a tensor": lambda a: torch.from_numpy(a)[3:8].numpy()[1:3],
    "memoryview of a tensor": lambda a: torch.from_numpy(a).detach().reshape(-1).numpy().data[3:],
    "tensor from a buffer": lambda a: torch.frombuffer(memoryview(a)[8:16], dtype=torch.float32),
}


@pytest.mark.parametrize("name", VIEWS)
def test_any_view_keeps_the_memory_in_use(name: str) -> None:
    pool = BufferPool(1000)
    lent = pool.take()
    lent[:] = 1
    view = VIEWS[name](lent)
    del lent
    gc.collect()
    other = pool.take()
    other[:] = 2
    assert not np.shares_memory(np.asarray(view).view(np.uint8), np.asarray(other)), "the view's memory was lent again"
    del view
    gc.collect()
    other = pool.take()
    assert (np.asarray(other) == 1).all(), "memory that nothing refers to is lent again"


def test_buffers_may_be_empty() -> None:
    pool = BufferPool(0)
    assert len(pool.take()) <= 1
