"""Element types that gradients travel in: their codes in frame headers and their sizes."""

from __future__ import annotations

from enum import IntEnum


class DType(IntEnum):
    """Element type of a bucket; the value is the code in the frame header."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT64 = 4

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]

    @property
    def label(self) -> str:
        """The name that torch and numpy use (numpy has no ``bfloat16``)."""
        return self.name.lower()

    @classmethod
    def from_label(cls, label: str) -> DType:
        """Return the type named `label` (``float32`` or ``torch.float32``).

        Raises:
            ValueError: the type is not supported in a bucket.
        """
        name = label.removeprefix("torch.").upper()
        try:
            return cls[name]
        except KeyError:
            known = ", ".join(member.label for member in cls)
            raise ValueError(f"element type {label!r} is not supported in a bucket; expected one of {known}") from None


_ITEMSIZE = {DType.FLOAT32: 4, DType.FLOAT16: 2, DType.BFLOAT16: 2, DType.FLOAT64: 8}
