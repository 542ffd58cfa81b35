"""Building Python source text: indentation, and names that cannot clash.

A program's strings (names, file names, source fragments) are untrusted. They reach generated source only through three
functions of this module: `Names.make` makes identifiers, `literal` makes string literals, and `comment_text` makes
comments. `SourceWriter.line` refuses code that these could not have produced.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from softswitch.errors import UnsupportedProgram
from softswitch.program.ir import Source
from softswitch.program.limits import MAX_SOURCE

LINE_LENGTH = 110
"""Column at which lists of names are wrapped."""

_CODE = re.compile(
    r"""(?:[ !$-&(-\[\]-~]|'(?:[ -&(-\[\]-~]|\\[ -~])*+'|"(?:[ !#-\[\]-~]|\\[ -~])*+")*+"""
)  # printable ASCII with every string closed; neither a comment nor a backslash outside a string
_NOT_IN_NOTES = re.compile(r"[^ -~]")
_LONGEST_NOTE = 120
_LONGEST_NAME = 80


def literal(text: str) -> str:
    """Return the Python string literal for any text."""
    return ascii(text)


def comment_text(text: str) -> str:
    """Return text that is safe in a comment: printable ASCII, one line, limited length."""
    return _NOT_IN_NOTES.sub("?", text[:_LONGEST_NOTE])


class SourceWriter:
    """Collects lines at the current indentation."""

    def __init__(self, depth: int = 0) -> None:
        """Start empty at an indentation of `depth`."""
        self.lines: list[str] = []
        self.depth = depth
        self._characters = 0

    def line(self, code: str, note: str | None = None) -> None:
        """Add a line of code, with a note as its comment.

        Raises:
            UnsupportedProgram: the source grows beyond the limit.
        """
        if _CODE.fullmatch(code) is None:
            raise AssertionError(f"not a line of code: {code[:200]!r}")
        self._append(code if note is None else f"{code}  # {comment_text(note)}")

    def _append(self, text: str) -> None:
        self._characters += len(text) + 4 * self.depth + 1
        if self._characters > MAX_SOURCE:
            what = f"a program that takes more than {MAX_SOURCE >> 20} MiB of generated code"
            raise UnsupportedProgram(f"{what} is not supported by this switch", "program")
        self.lines.append(f"{'    ' * self.depth}{text}")

    def listed(self, before: str, items: Iterable[str], after: str) -> None:
        """Add `before`, the items with commas between them, and `after`, over as many lines as needed."""
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
        """Add a comment line, with the P4 source line if known."""
        place = f" ({source})" if source is not None else ""
        self._append(f"# {comment_text(text)}{comment_text(place)}")

    def blank(self) -> None:
        """Add an empty line."""
        self.lines.append("")

    @contextmanager
    def block(self, header: str, note: str | None = None) -> Iterator[None]:
        """Indent what follows under `header`; an empty body becomes `pass`, an empty `else` is omitted."""
        self.line(header, note)
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
        """Write `if` and `else`, with the condition inverted if only the `else` part has code."""
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
        """Indent what follows under the header of a function."""
        self.listed(f"def {name}(", params, "):")
        self.depth += 1
        yield
        self.depth -= 1

    def insert(self, other: SourceWriter) -> None:
        """Append the lines of another writer, which was started at the right depth."""
        self._characters += other._characters
        self.lines.extend(other.lines)

    def text(self) -> str:
        """Return everything as one string."""
        return "\n".join(self.lines) + "\n"


class Names:
    """Creates valid, distinct Python identifiers that resemble given names."""

    def __init__(self, reserved: Iterable[str]) -> None:
        """Start with the names that must not be used."""
        self._taken = set(reserved) | set(keyword.kwlist) | set(keyword.softkwlist) | set(dir(builtins))
        self._number: dict[str, int] = {}

    def make(self, wish: str) -> str:
        """Return an identifier made from `wish`, with a number appended if it is taken; it never begins with `_`."""
        base = re.sub(r"\W", "_", wish[:_LONGEST_NAME], flags=re.ASCII).strip("_") or "x"
        if base[0].isdigit():
            base = f"x{base}"
        name, number = base, self._number.get(base, 1)
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._number[base] = number
        self._taken.add(name)
        return name


_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def identifiers(lines: Iterable[str]) -> set[str]:
    """Return the identifiers in lines of code, except comments."""
    found: set[str] = set()
    for line in lines:
        found.update(_IDENTIFIER.findall(line.split("#", 1)[0]))
    return found
