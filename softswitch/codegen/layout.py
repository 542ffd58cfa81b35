"""How a header's bytes map to variables: words of 1, 2, 4 or 8 bytes, and fields inside groups of words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from softswitch.program.ir import Field, HeaderType

_WORD_SIZES = (8, 4, 2, 1)
_FORMATS = {8: "Q", 4: "I", 2: "H", 1: "B"}


@dataclass(frozen=True)
class Word:
    """A big-endian word of a header: its variable, size in bytes, and left shift within its group's value."""

    name: str
    octets: int
    shift: int


@dataclass
class Group:
    """Consecutive whole bytes of a header.

    Attributes:
        offset: bytes from the start of the header (behind a varbit field: from the end of that field).
        octets: size in bytes.
        fields: its fields with their shifts within the group's value; empty for an opaque group.
        words: its words, first byte first.
        rebuilt: the program writes one of the fields, so the words are built from the fields when it is emitted;
            otherwise the words pass through unchanged.
    """

    offset: int
    octets: int
    fields: tuple[tuple[Field, int], ...]
    rebuilt: bool
    words: list[Word] = field(default_factory=list)

    @property
    def is_field(self) -> bool:
        """Whether the group is one unsigned field that fills exactly one word: the word is the field."""
        if len(self.fields) != 1 or self.octets not in _FORMATS:
            return False
        declared = self.fields[0][0]
        # A live field may share its bytes with dead ones; it is then a part of the word, not the word.
        return not declared.signed and declared.width == 8 * self.octets

    @property
    def word_format(self) -> str:
        """The group's part of a `struct` format."""
        return "".join(_FORMATS[word.octets] for word in self.words)


@dataclass
class Layout:
    """A header's groups before and after its varbit field (all of them before, if it has none)."""

    before: list[Group]
    after: list[Group]

    @property
    def groups(self) -> list[Group]:
        """All groups in order."""
        return [*self.before, *self.after]

    @staticmethod
    def octets(groups: list[Group]) -> int:
        """Size of consecutive groups in bytes."""
        return sum(group.octets for group in groups)


def make_layout(
    header_type: HeaderType,
    is_live: Callable[[Field], bool],
    is_written: Callable[[Field], bool],
    make_word_name: Callable[[Group, int], str],
) -> Layout:
    """Divide a header type into groups and words.

    `is_live` and `is_written` say how the program uses a field; `make_word_name` names a word by its group and its byte
    offset in it.
    """
    before: list[Group] = []
    after: list[Group] = []
    current, pending = before, []
    bits = 0
    for declared in header_type.fields:
        if declared.varbit:
            current = after
            continue
        pending.append(declared)
        bits += declared.width
        if bits % 8 == 0:
            _append(current, pending, bits // 8, is_live, is_written)
            pending, bits = [], 0
    for groups in (before, after):
        offset = 0
        for group in groups:
            group.offset = offset
            offset += group.octets
            _split(group, make_word_name)
    return Layout(before, after)


def _append(
    groups: list[Group],
    fields: list[Field],
    octets: int,
    is_live: Callable[[Field], bool],
    is_written: Callable[[Field], bool],
) -> None:
    if not any(is_live(item) for item in fields):
        if groups and not groups[-1].fields:
            groups[-1].octets += octets
        elif octets:
            groups.append(Group(0, octets, (), False))
        return
    rebuilt = any(is_written(item) for item in fields)
    shift, placed = 8 * octets, []
    for item in fields:
        shift -= item.width
        if rebuilt or is_live(item):
            placed.append((item, shift))
    groups.append(Group(0, octets, tuple(placed), rebuilt))


def _split(group: Group, make_word_name: Callable[[Group, int], str]) -> None:
    rest, position = group.octets, 0
    while rest:
        size = next(size for size in _WORD_SIZES if size <= rest)
        rest -= size
        group.words.append(Word(make_word_name(group, position), size, 8 * rest))
        position += size
