"""A position inside the BMv2 JSON: typed access to values, and errors with their place."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from pathlib import PurePosixPath

from softswitch.errors import ErrorKind, UnsupportedProgram
from softswitch.program.ir import Source
from softswitch.program.limits import MAX_SIZE, MAX_WIDTH

_HEXADECIMAL = re.compile(r"\s*([+-]?)(?:0[xX])?([0-9a-fA-F]+)\s*", re.ASCII)
_INTEGERS = range(-(2**63), 2**64)


class Cursor:
    """A JSON value with its path.

    Every accessor raises UnsupportedProgram with kind INVALID_ARGUMENT if the value is not of the expected kind.
    """

    def __init__(self, value: object, path: str = "", parent: Cursor | None = None) -> None:
        """Point to `value` at `path` from the top of the JSON."""
        self._value = value
        self._path = path
        self._parent = parent

    # -- access ----------------------------------------------------------------------------------------------

    def __getitem__(self, key: str | int) -> Cursor:
        """Go to a member of an object or an element of a list."""
        if isinstance(key, str):
            if not isinstance(self._value, dict) or key not in self._value:
                raise self.malformed(f"there is no {key!r}")
            return Cursor(self._value[key], f"{self._path}.{key}" if self._path else key, self)
        if not isinstance(self._value, list) or not 0 <= key < len(self._value):
            raise self.malformed(f"there is no element {key}")
        return Cursor(self._value[key], f"{self._path}[{key}]", self)

    def get(self, key: str) -> Cursor | None:
        """Return the member `key`, None if it is missing or null."""
        if isinstance(self._value, dict) and self._value.get(key) is not None:
            return self[key]
        return None

    def __iter__(self) -> Iterator[Cursor]:
        """Go through the elements of a list."""
        if not isinstance(self._value, list):
            raise self.malformed("expected a list")
        return iter([self[index] for index in range(len(self._value))])

    def __len__(self) -> int:
        """Return the number of elements or members."""
        if not isinstance(self._value, list | dict):
            raise self.malformed("expected a list or an object")
        return len(self._value)

    def each(self, key: str) -> list[Cursor]:
        """Return the elements of the list `key`, none if it is missing."""
        child = self.get(key)
        return [] if child is None else list(child)

    def keys(self) -> list[str]:
        """Return the keys of an object."""
        if not isinstance(self._value, dict):
            raise self.malformed("expected an object")
        return list(self._value)

    @property
    def is_object(self) -> bool:
        """Whether the value is an object."""
        return isinstance(self._value, dict)

    def text(self) -> str:
        """Return a string."""
        if not isinstance(self._value, str):
            raise self.malformed("expected a string")
        return self._value

    def integer(self) -> int:
        """Return a JSON integer of at most 64 bits."""
        if not isinstance(self._value, int) or isinstance(self._value, bool):
            raise self.malformed("expected an integer")
        if self._value not in _INTEGERS:
            raise self.malformed("expected an integer of at most 64 bits")
        return self._value

    def size(self) -> int:
        """Return a number of cells or bytes: not negative, and not more than memory can hold."""
        return self._bounded(0, MAX_SIZE)

    def width(self, lowest: int = 1) -> int:
        """Return a width in bits."""
        return self._bounded(lowest, MAX_WIDTH)

    def _bounded(self, lowest: int, highest: int) -> int:
        value = self.integer()
        if not lowest <= value <= highest:
            raise self.malformed(f"expected a number in {lowest}..{highest}, not {value}")
        return value

    def new_name(self, taken: Container[str]) -> str:
        """Return a string that is a new name, not one of `taken`."""
        name = self.text()
        if name in taken:
            raise self.malformed(f"duplicate name {name!r}")
        return name

    def new_id(self, taken: Container[int]) -> int:
        """Return an integer that is a new id, not one of `taken`."""
        number = self.integer()
        if number in taken:
            raise self.malformed(f"duplicate id {number}")
        return number

    def is_text(self, text: str) -> bool:
        """Whether the value is this string."""
        return self._value == text

    def flag(self) -> bool:
        """Return a boolean; p4c writes some as 0 or 1."""
        if not isinstance(self._value, bool | int):
            raise self.malformed("expected a boolean")
        return bool(self._value)

    def hexadecimal(self) -> int:
        """Return an integer written as a hexadecimal string, possibly negative."""
        found = _HEXADECIMAL.fullmatch(self.text())
        if found is None:
            raise self.malformed("expected a hexadecimal number")
        digits = found[2].lstrip("0")
        if 4 * len(digits) > MAX_WIDTH:
            raise self.unsupported(f"a number of more than {MAX_WIDTH} bits")
        value = int(digits or "0", 16)
        return -value if found[1] == "-" else value

    def name_or_null(self) -> str | None:
        """Return a string, or None for null."""
        return None if self._value is None else self.text()

    # -- places ----------------------------------------------------------------------------------------------

    @property
    def source(self) -> Source | None:
        """The P4 source position that p4c recorded at this object or the nearest enclosing one."""
        here: Cursor | None = self
        while here is not None:
            info = here._value.get("source_info") if isinstance(here._value, dict) else None
            if isinstance(info, dict):
                file, line, fragment = (info.get(key) for key in ("filename", "line", "source_fragment"))
                if isinstance(file, str) and isinstance(line, int) and line in _INTEGERS and isinstance(fragment, str):
                    return Source(PurePosixPath(file).name, line, fragment)
            here = here._parent
        return None

    @property
    def place(self) -> str:
        """The place for a message: path, name of the enclosing object, P4 source line."""
        name = ""
        here: Cursor | None = self
        while here is not None and not name:
            if isinstance(here._value, dict) and isinstance(here._value.get("name"), str):
                name = f" '{here._value['name']}'"
            here = here._parent
        source = self.source
        return f"{self._path or 'top level'}{name}" + (f" ({source})" if source else "")

    def malformed(self, what: str) -> UnsupportedProgram:
        """Return the error for input that is not a well-formed BMv2 JSON."""
        return UnsupportedProgram(f"not a valid BMv2 JSON: {what}", self.place, ErrorKind.INVALID_ARGUMENT)

    def unsupported(self, construct: str) -> UnsupportedProgram:
        """Return the error for a construct that this switch does not have."""
        return UnsupportedProgram(f"{construct} is not supported by this switch", self.place)
