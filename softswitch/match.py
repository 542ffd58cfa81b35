"""Match keys of table entries, and the lookup structures behind exact, LPM, ternary and range tables.

A lookup structure maps the key that the generated code builds per packet to the *row* of the best entry. Rows are plain
tuples, `(action index, [counter cell,] *action arguments)`, so that a hit needs no attribute access.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

Row = tuple[object, ...]
"""Result of a hit for the generated code: action index, counter cell (if any), action arguments."""

LookupKey = int | tuple[int, ...]
"""The per-packet key: one int; a tuple in key order for range tables and exact keys of several fields."""

_SEQUENCE_BITS = 48


class MatchKind(Enum):
    """How a key field is compared. P4's `optional` appears as TERNARY, as in the BMv2 JSON."""

    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class Exact:
    """The field equals `value`."""

    value: int


@dataclass(frozen=True, slots=True)
class Lpm:
    """The first `prefix_len` bits of the field equal those of `value`, whose other bits are 0."""

    value: int
    prefix_len: int


@dataclass(frozen=True, slots=True)
class Ternary:
    """`field & mask == value`; `value` has no bit outside `mask`. Mask 0 matches everything."""

    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class Range:
    """`low <= field <= high`."""

    low: int
    high: int


MatchKey = Exact | Lpm | Ternary | Range


@dataclass(frozen=True, slots=True)
class KeySpec:
    """One field of a table's key.

    Attributes:
        name: its name for the control plane.
        width: bits.
        kind: how it is compared.
        mask: static mask applied to the field and to every entry before comparison, or None.
    """

    name: str
    width: int
    kind: MatchKind
    mask: int | None = None

    def problem(self, key: MatchKey) -> str | None:
        """Return why `key` cannot match this field, None if it can."""
        full = (1 << self.width) - 1
        if isinstance(key, Exact) and self.kind is MatchKind.EXACT:
            return None if 0 <= key.value <= full else f"value {key.value:#x} does not fit {self.width} bits"
        if isinstance(key, Lpm) and self.kind is MatchKind.LPM:
            if not 0 <= key.prefix_len <= self.width:
                return f"prefix length {key.prefix_len} is not in 0..{self.width}"
            return _masked_problem(key.value, prefix_mask(key.prefix_len, self.width), full)
        if isinstance(key, Ternary) and self.kind is MatchKind.TERNARY:
            if not 0 <= key.mask <= full:
                return f"mask {key.mask:#x} does not fit {self.width} bits"
            return _masked_problem(key.value, key.mask, full)
        if isinstance(key, Range) and self.kind is MatchKind.RANGE:
            ok = 0 <= key.low <= key.high <= full
            return None if ok else f"range {key.low:#x}..{key.high:#x} is not an ascending range of {self.width} bits"
        return f"{type(key).__name__} key for a field that is matched {self.kind.value}"


def _masked_problem(value: int, mask: int, full: int) -> str | None:
    if not 0 <= value <= full:
        return f"value {value:#x} does not fit {full.bit_length()} bits"
    return f"value {value:#x} has bits outside its mask {mask:#x}" if value & ~mask else None


def prefix_mask(prefix_len: int, width: int) -> int:
    """Return the mask with the `prefix_len` most significant of `width` bits set."""
    return ((1 << prefix_len) - 1) << (width - prefix_len)


def key_shifts(keys: Sequence[KeySpec]) -> tuple[int, ...]:
    """Return each field's left shift in the integer key of LPM and ternary tables; the first is on top."""
    shifts: list[int] = []
    total = 0
    for spec in reversed(keys):
        shifts.append(total)
        total += spec.width
    return tuple(reversed(shifts))


class Lookup(Protocol):
    """Finds the best entry for a packet's key: of those that match, the one with the largest `rank`."""

    find: Callable[[LookupKey], Row | None]

    def put(self, match: tuple[MatchKey, ...], rank: int, row: Row, /) -> None:
        """Add an entry, or replace the row of the entry with this match and rank."""

    def remove(self, match: tuple[MatchKey, ...], rank: int, /) -> None:
        """Remove the entry with this match and rank."""

    def clear(self) -> None:
        """Remove all entries."""


def entry_rank(match: tuple[MatchKey, ...], priority: int, sequence: int) -> int:
    """Return an entry's rank: larger priority first, then longer prefix, then earlier insertion.

    A table has either priorities (ternary, range) or a deciding prefix length (LPM), never both.
    """
    prefix = 0 if priority else max((key.prefix_len for key in match if isinstance(key, Lpm)), default=0)
    return ((priority or prefix) << _SEQUENCE_BITS) - sequence


class ExactLookup:
    """One dict lookup, on an int for a single field or on a tuple of ints; `find` is the dict's own `get`."""

    def __init__(self, keys: Sequence[KeySpec]) -> None:
        """Start empty."""
        self._masks = tuple(spec.mask for spec in keys)
        self._rows: dict[LookupKey, Row] = {}
        self.find: Callable[[LookupKey], Row | None] = self._rows.get

    def _key(self, match: tuple[MatchKey, ...]) -> LookupKey:
        values: list[int] = []
        for key, mask in zip(match, self._masks, strict=True):
            assert isinstance(key, Exact)
            values.append(key.value if mask is None else key.value & mask)
        return values[0] if len(values) == 1 else tuple(values)

    def put(self, match: tuple[MatchKey, ...], _rank: int, row: Row, /) -> None:
        """Add or replace an entry; exact entries need no rank."""
        self._rows[self._key(match)] = row

    def remove(self, match: tuple[MatchKey, ...], _rank: int, /) -> None:
        """Remove an entry."""
        del self._rows[self._key(match)]

    def clear(self) -> None:
        """Remove all entries; the dict itself stays, because the generated code holds its `get`."""
        self._rows.clear()


@dataclass(slots=True)
class _MaskGroup:
    """Entries that share one mask. `bound` is an upper bound of the ranks in the group (not lowered by removals)."""

    mask: int
    bound: int
    rows: dict[int, list[tuple[int, Row]]]


class MaskedLookup:
    """LPM and ternary: one dict per distinct mask, tried in descending order of the best rank in it.

    This is tuple space search (Srinivasan, Suri, Varghese, SIGCOMM '99): the cost grows with the number of
    distinct masks, not of entries. The key is the concatenation of all fields (see `key_shifts`).
    """

    def __init__(self, keys: Sequence[KeySpec]) -> None:
        """Start empty."""
        self._keys = tuple(keys)
        self._shifts = key_shifts(keys)
        self._groups: list[_MaskGroup] = []
        self.find: Callable[[LookupKey], Row | None] = self._find

    def _find(self, key: LookupKey) -> Row | None:
        assert isinstance(key, int)
        found: Row | None = None
        best = -(1 << 62)
        for group in self._groups:
            if group.bound < best:
                break
            candidates = group.rows.get(key & group.mask)
            if candidates is not None and candidates[0][0] > best:
                best, found = candidates[0]
        return found

    def _value_and_mask(self, match: tuple[MatchKey, ...]) -> tuple[int, int]:
        value = mask = 0
        for key, spec, shift in zip(match, self._keys, self._shifts, strict=True):
            if isinstance(key, Exact):
                part_value, part_mask = key.value, (1 << spec.width) - 1
            elif isinstance(key, Lpm):
                part_value, part_mask = key.value, prefix_mask(key.prefix_len, spec.width)
            else:
                assert isinstance(key, Ternary)
                part_value, part_mask = key.value, key.mask
            if spec.mask is not None:
                part_value &= spec.mask
            value |= part_value << shift
            mask |= part_mask << shift
        return value, mask

    def put(self, match: tuple[MatchKey, ...], rank: int, row: Row, /) -> None:
        """Add an entry, or replace the row of the entry with this match and rank."""
        value, mask = self._value_and_mask(match)
        group = next((group for group in self._groups if group.mask == mask), None)
        if group is None:
            group = _MaskGroup(mask, rank, {})
            self._groups.append(group)
        group.bound = max(group.bound, rank)
        candidates = group.rows.setdefault(value, [])
        for index, (present, _) in enumerate(candidates):
            if present == rank:
                candidates[index] = (rank, row)
                return
        insort(candidates, (rank, row), key=_descending)
        self._groups.sort(key=lambda item: -item.bound)

    def remove(self, match: tuple[MatchKey, ...], rank: int, /) -> None:
        """Remove the entry with this match and rank, and its group if that was the last."""
        value, mask = self._value_and_mask(match)
        for group in self._groups:
            if group.mask != mask:
                continue
            candidates = group.rows[value]
            candidates[:] = [item for item in candidates if item[0] != rank]
            if not candidates:
                del group.rows[value]
            if not group.rows:
                self._groups.remove(group)
            return

    def clear(self) -> None:
        """Remove all entries."""
        self._groups.clear()


def _descending(item: tuple[int, Row]) -> int:
    return -item[0]


@dataclass(slots=True)
class _RangeRow:
    """One entry of a range table: per field (lowest, highest, mask); the field is masked, then compared."""

    rank: int
    tests: tuple[tuple[int, int, int], ...]
    row: Row


class RangeLookup:
    """Tables with a range field: a scan in descending rank. The key is a tuple of the fields."""

    def __init__(self, keys: Sequence[KeySpec]) -> None:
        """Start empty."""
        self._keys = tuple(keys)
        self._rows: list[_RangeRow] = []
        self.find: Callable[[LookupKey], Row | None] = self._find

    def _find(self, key: LookupKey) -> Row | None:
        assert isinstance(key, tuple)
        for candidate in self._rows:
            for field, (low, high, mask) in zip(key, candidate.tests, strict=True):
                if not low <= field & mask <= high:
                    break
            else:
                return candidate.row
        return None

    def _tests(self, match: tuple[MatchKey, ...]) -> tuple[tuple[int, int, int], ...]:
        tests: list[tuple[int, int, int]] = []
        for key, spec in zip(match, self._keys, strict=True):
            full = (1 << spec.width) - 1
            static = full if spec.mask is None else spec.mask
            if isinstance(key, Range):
                tests.append((key.low, key.high, full))
            elif isinstance(key, Exact):
                tests.append((key.value & static, key.value & static, full))
            elif isinstance(key, Lpm):
                tests.append((key.value & static, key.value & static, prefix_mask(key.prefix_len, spec.width)))
            else:
                tests.append((key.value & static, key.value & static, key.mask))
        return tuple(tests)

    def put(self, match: tuple[MatchKey, ...], rank: int, row: Row, /) -> None:
        """Add an entry, or replace the row of the entry with this match and rank."""
        for candidate in self._rows:
            if candidate.rank == rank:
                candidate.row = row
                return
        insort(self._rows, _RangeRow(rank, self._tests(match), row), key=lambda item: -item.rank)

    def remove(self, _match: tuple[MatchKey, ...], rank: int, /) -> None:
        """Remove the entry with this rank (ranks are unique in a table)."""
        self._rows[:] = [item for item in self._rows if item.rank != rank]

    def clear(self) -> None:
        """Remove all entries."""
        self._rows.clear()


def make_lookup(match_type: MatchKind, keys: Sequence[KeySpec]) -> Lookup:
    """Return the lookup structure for a table whose overall match type is `match_type`."""
    if match_type is MatchKind.EXACT:
        return ExactLookup(keys)
    if match_type is MatchKind.RANGE:
        return RangeLookup(keys)
    return MaskedLookup(keys)
