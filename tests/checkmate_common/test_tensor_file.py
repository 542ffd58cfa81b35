"""The parts of a safetensors file are what the library itself writes."""

from __future__ import annotations

import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_common.recovery.tensor_file import _NAMES, tensor_parts

SHAPES = st.lists(st.integers(0, 4), max_size=3)
TENSORS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(list(_NAMES)), SHAPES, st.booleans(), st.integers(0, 255)),
    max_size=8,
)


@settings(max_examples=300)
@given(TENSORS)
def test_the_library_writes_the_same_bytes(specs: dict[str, tuple[torch.dtype, list[int], bool, int]]) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for name, (dtype, shape, turned, value) in specs.items():
        raw = torch.full((*shape, dtype.itemsize), value % 2 if dtype is torch.bool else value, dtype=torch.uint8)
        tensor = raw.view(dtype).reshape(shape)
        tensors[name] = tensor.mT if turned and tensor.ndim > 1 else tensor
    expected = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    assert b"".join(tensor_parts(tensors)) == expected


def test_tensors_are_not_copied() -> None:
    tensor = torch.zeros(4)
    parts = tensor_parts({"a": tensor})
    tensor[0] = 1
    assert bytes(parts[1]) == tensor.numpy().tobytes()
