"""Element types that NCCL reduces, as far as the bytes of a tensor care."""

from __future__ import annotations

from rocev2.errors import RoceError

_TYPES = {
    "float32": (4, "<f4"), "float16": (2, "<f2"), "bfloat16": (2, "<u2"), "float64": (8, "<f8"),
    "int8": (1, "<i1"), "uint8": (1, "<u1"), "int32": (4, "<i4"), "uint32": (4, "<u4"), "int64": (8, "<i8"),
    "uint64": (8, "<u8"),
}  # fmt: skip
_ALIASES = {
    "fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16",
    "fp64": "float64", "double": "float64",
}  # fmt: skip


def canonical(name: str | None) -> str | None:
    """Return the torch name of an element type (``fp32`` and ``torch.float32`` are ``float32``).

    Raises:
        RoceError: there is no such type.
    """
    if name is None:
        return None
    short = name.removeprefix("torch.")
    short = _ALIASES.get(short, short)
    if short not in _TYPES:
        raise RoceError("dtype", name, "is no element type that NCCL reduces", "use one of " + ", ".join(_TYPES))
    return short


def itemsize(name: str | None) -> int:
    """Return bytes per element of a canonical name; 4 where the type is not known (LL carries words of 4 bytes)."""
    return 4 if name is None else _TYPES[name][0]


def numpy_dtype(name: str | None) -> str:
    """Return the little-endian numpy type of a canonical name; bfloat16 is its bits; unknown is ``<u4``."""
    return "<u4" if name is None else _TYPES[name][1]
