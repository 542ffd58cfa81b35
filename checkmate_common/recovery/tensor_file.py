"""The bytes of a safetensors file, without a copy of the tensors (huggingface/safetensors, README, "Format").

An 8-byte little-endian length, a JSON header padded with spaces to a multiple of 8, then the tensors' bytes in the
order of the header: by element type (the widest first), then by name. The library writes the same bytes, but only as
one block of memory or directly into a file, so they could not be hashed and written in parallel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch

from checkmate_common.recovery.tensors import bytes_of

# In the order in which the library writes them.
_NAMES = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64", torch.float32: "F32",
    torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16",
    torch.int16: "I16", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
_ORDER = {dtype: place for place, dtype in enumerate(_NAMES)}
_ALIGNMENT = 8


def tensor_parts(tensors: Mapping[str, torch.Tensor]) -> list[memoryview]:
    """Return the file for `tensors` (on the CPU) as consecutive parts that share the tensors' memory.

    Raises:
        ValueError: an element type or memory layout that the format does not support.
    """
    header: dict[str, object] = {}
    parts: list[memoryview] = []
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (_ORDER.get(item[1].dtype, -1), item[0])):
        if tensor.dtype not in _NAMES or tensor.layout is not torch.strided:
            raise ValueError(f"tensor {name!r} is {tensor.dtype} {tensor.layout}, which safetensors does not support")
        data = bytes_of(tensor.contiguous())
        start, end = end, end + len(data)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        parts.append(data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return [memoryview(len(text).to_bytes(8, "little") + text), *parts]
