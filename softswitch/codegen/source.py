"""Building Python source text: indentation, and names that cannot clash."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from softswitch.program.ir import Source

LINE_LENGTH = 110
"""Columns that lists of names are broken at."""


class SourceWriter:
    """Collects lines at the current indentation."""

    def __init__(self, depth: int = 0) -> None:
        """Start empty at an indentation of `depth`."""
        self.lines: list[str] = []
        self.depth = depth

    def line(self, text: str, source: Source | None = None) -> None:
        """Add a line, with the P4 source line as a comment if known."""
        comment = f"  # {source}" if source is not None else ""
        self.lines.append(f"{'    ' * self.depth}{text}{comment}")

    def listed(self, before: str, items: Iterable[str], after: str) -> None:
        """Add `before`, the items with commas between them, and `after`, over as many lines as that needs."""
        room = LINE_LENGTH - 4 * self.depth
        current, separator = before, ""
        for item in items:
            if len(current) + len(separator) + len(item) + 2 > room:
                self.line(current + separator.rstrip())
                current, separator = f"    {item}", ", "
                continue
            current, separator = f"{current}{separator}{item}", ", "
        self.line(current + after)

    def comment(self, text: str, source: Source | None = None) -> None:
        """Add a comment line."""
        place = f" ({source})" if source is not None else ""
        self.line(f"# {text}{place}")

    def blank(self) -> None:
        """Add an empty line."""
        self.lines.append("")

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Indent what follows under `header`; an empty body becomes `pass`, an empty `else` is left out."""
        self.line(header)
        self.depth += 1
        start = len(self.lines)
        yield
        self.depth -= 1
        if all(not line.strip() or line.lstrip().startswith("#") for line in self.lines[start:]):
            if header == "else:":
                del self.lines[start - 1 :]
            else:
                self.line("    pass")

    def branch(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Write `if` and `else`, with the condition turned round if only the `else` part has code."""
        start = len(self.lines)
        with self.block(f"if {condition}:"):
            then()
        if [line.strip() for line in self.lines[start + 1 :]] != ["pass"]:
            with self.block("else:"):
                otherwise()
            return
        del self.lines[start:]
        with self.block(f"if not {condition}:"):
            otherwise()

    @contextmanager
    def function(self, name: str, params: Iterable[str]) -> Iterator[None]:
        """Indent what follows under the head of a function."""
        self.listed(f"def {name}(", params, "):")
        self.depth += 1
        yield
        self.depth -= 1

    def insert(self, other: SourceWriter) -> None:
        """Append the lines of another writer, which was started at the right depth."""
        self.lines.extend(other.lines)

    def text(self) -> str:
        """Return everything as one string."""
        return "\n".join(self.lines) + "\n"


class Names:
    """Hands out valid, distinct Python identifiers that resemble given names."""

    def __init__(self, reserved: Iterable[str]) -> None:
        """Start with the names that must not be used."""
        self._taken = set(reserved) | set(keyword.kwlist) | set(keyword.softkwlist)

    def make(self, wish: str) -> str:
        """Return an identifier made from `wish`, with a number appended if it is taken."""
        base = re.sub(r"\W", "_", wish, flags=re.ASCII).strip("_") or "x"
        if base[0].isdigit():
            base = f"x{base}"
        name, number = base, 1
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name


_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def identifiers(lines: Iterable[str]) -> set[str]:
    """Return the identifiers in lines of code; comments are left out."""
    found: set[str] = set()
    for line in lines:
        found.update(_IDENTIFIER.findall(line.split("#", 1)[0]))
    return found
