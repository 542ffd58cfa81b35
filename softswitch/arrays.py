"""Counter arrays, register arrays and digests of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softswitch.errors import ErrorKind, SwitchError


class CounterArray:
    """An indirect counter: `size` cells of packets and bytes. BMv2 JSON does not say which of the two a
    program uses.

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
        self.packets = [0] * size
        self.octets = [0] * size

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
        self.packets[:] = [0] * self.size
        self.octets[:] = [0] * self.size


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
        self.cells = [0] * size

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
        self.cells[:] = [0] * self.size


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
