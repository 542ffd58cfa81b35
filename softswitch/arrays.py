"""Counter arrays, register arrays and digests of a program."""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass

from softswitch.errors import ErrorKind, SwitchError

_CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}
_LARGE_INTEGER = 48
"""Bytes of a list slot with a Python integer, without the integer's digits."""


def counter_bytes(size: int) -> int:
    """Return the memory in bytes of a counter array of `size` cells."""
    return 16 * size


def register_bytes(size: int, width: int) -> int:
    """Return the maximum memory in bytes of a register array of `size` cells of `width` bits."""
    bits = _machine_width(width)
    return size * (bits // 8 if bits is not None else _LARGE_INTEGER + width // 7)


def _machine_width(width: int) -> int | None:
    return next((bits for bits in _CODES if width <= bits), None)


def _zeros(code: str, size: int) -> array[int]:
    return array(code, [0]) * size


class CounterArray:
    """An indirect counter: `size` cells of packets and bytes. BMv2 JSON does not say which of the two a program
    uses.

    Attributes:
        name: fully qualified P4 name.
        size: number of cells.
        kind: always "both".
        packets: packets per cell (used by the generated code).
        octets: bytes per cell (used by the generated code).
    """

    kind = "both"

    def __init__(self, name: str, size: int) -> None:
        """Make an array with all cells at 0."""
        self.name = name
        self.size = size
        self.packets = _zeros("Q", size)
        self.octets = _zeros("Q", size)

    def read(self, index: int) -> tuple[int, int]:
        """Return (packets, bytes) of a cell.

        Raises:
            SwitchError: INVALID_ARGUMENT for an index outside the array.
        """
        _check_index("counter", self.name, self.size, index)
        return self.packets[index], self.octets[index]

    def write(self, index: int, packets: int, octets: int) -> None:
        """Set a cell.

        Raises:
            SwitchError: INVALID_ARGUMENT for an index outside the array.
        """
        _check_index("counter", self.name, self.size, index)
        self.packets[index] = packets
        self.octets[index] = octets

    def reset(self) -> None:
        """Set all cells to 0."""
        self.packets[:] = _zeros("Q", self.size)
        self.octets[:] = _zeros("Q", self.size)


class RegisterArray:
    """A register: `size` cells of `width` bits.

    Attributes:
        name: fully qualified P4 name.
        size: number of cells.
        width: bits per cell.
        cells: the values (used by the generated code).
    """

    def __init__(self, name: str, size: int, width: int) -> None:
        """Make an array with all cells at 0."""
        self.name = name
        self.size = size
        self.width = width
        bits = _machine_width(width)
        self._code = None if bits is None else _CODES[bits]
        self.cells: MutableSequence[int] = self._empty()

    def read(self, index: int) -> int:
        """Return a cell.

        Raises:
            SwitchError: INVALID_ARGUMENT for an index outside the array.
        """
        _check_index("register", self.name, self.size, index)
        return self.cells[index]

    def write(self, index: int, value: int) -> None:
        """Set a cell.

        Raises:
            SwitchError: INVALID_ARGUMENT for an index outside the array or a value that does not fit a cell.
        """
        _check_index("register", self.name, self.size, index)
        if not 0 <= value < 1 << self.width:
            what = f"value {value:#x} does not fit {self.width} bits"
            raise SwitchError(ErrorKind.INVALID_ARGUMENT, what, f"register {self.name}")
        self.cells[index] = value

    def reset(self) -> None:
        """Set all cells to 0."""
        self.cells[:] = self._empty()

    def _empty(self) -> MutableSequence[int]:
        return [0] * self.size if self._code is None else _zeros(self._code, self.size)


def _check_index(what: str, name: str, size: int, index: int) -> None:
    if not 0 <= index < size:
        raise SwitchError(ErrorKind.INVALID_ARGUMENT, f"index {index} is not in 0..{size - 1}", f"{what} {name}")


@dataclass(frozen=True, slots=True)
class DigestField:
    """One member of a digest: name and width in bits."""

    name: str
    width: int


@dataclass(frozen=True)
class DigestSpec:
    """A digest that the program can send: its P4 name, its id in the BMv2 JSON, and its members in order."""

    name: str
    id: int
    fields: Sequence[DigestField]
