"""State that the control plane reads and writes: tables with their entries, counter arrays, register arrays.

Not thread-safe: the driver serialises packets and control operations. The generated pipeline code holds references to
these lists and dicts, so they are changed in place, never replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from softswitch.arrays import CounterArray, DigestField, DigestSpec, RegisterArray
from softswitch.errors import ErrorKind, SwitchError
from softswitch.match import (
    Exact,
    KeySpec,
    Lookup,
    Lpm,
    MatchKey,
    MatchKind,
    Range,
    Row,
    Ternary,
    entry_rank,
    make_lookup,
)

__all__ = [
    "ActionCall",
    "ActionSpec",
    "CounterArray",
    "DigestField",
    "DigestSpec",
    "Exact",
    "KeySpec",
    "Lpm",
    "MatchKey",
    "MatchKind",
    "Range",
    "RegisterArray",
    "Table",
    "TableEntry",
    "TableSpec",
    "Ternary",
]


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action, by its fully qualified P4 name, with its arguments in declaration order."""

    name: str
    args: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One table entry.

    Attributes:
        match: one key per key field, in the table's order.
        priority: as in P4Runtime, the larger wins; positive in ternary and range tables, 0 in others.
        action: what a hit runs.
    """

    match: tuple[MatchKey, ...]
    priority: int
    action: ActionCall


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """An action that a table may run: name and the widths of its parameters in bits."""

    name: str
    param_widths: tuple[int, ...]


@dataclass(frozen=True)
class TableSpec:
    """A table as declared by a compiled program.

    Attributes:
        name: fully qualified P4 name.
        match_type: the table's overall match type; it selects the lookup structure.
        keys: key fields in order; empty for a table that always runs its default action.
        actions: allowed actions; their position is the action index of the rows.
        size: maximum number of entries.
        const: the entries are fixed by the program.
        const_default: the default action is fixed by the program.
        default: the program's default action, if it has one.
        direct_counter: every entry counts its packets and bytes.
        entries: the program's own entries, with priorities in P4Runtime's sense.
    """

    name: str
    match_type: MatchKind
    keys: tuple[KeySpec, ...]
    actions: tuple[ActionSpec, ...]
    size: int
    const: bool
    const_default: bool
    default: ActionCall | None
    direct_counter: bool
    entries: tuple[TableEntry, ...]


@dataclass(slots=True)
class _Slot:
    """An installed entry with its rank and its counter cell `[packets, bytes]`."""

    entry: TableEntry
    rank: int
    cell: list[int] = field(default_factory=lambda: [0, 0])


class Table:
    """A match-action table at run time.

    Attributes:
        name: fully qualified P4 name.
        keys: key fields in order.
        size: number of entries that fit.
        const: entries are fixed by the program.
        const_default: the default action is fixed by the program.
        actions: names of the allowed actions.
        param_widths: widths in bits of an action's parameters, by its name.
        has_direct_counter: entries count packets and bytes; so does the default action.
        needs_priority: entries carry a positive priority (ternary and range tables).
        lookup: finds the row of a packet's key (used by the generated code).
        default_cell: list with exactly one row, the default action's (used by the generated code).
    """

    def __init__(self, spec: TableSpec) -> None:
        """Start with the program's own entries and default action."""
        self.name = spec.name
        self.keys = spec.keys
        self.size = spec.size
        self.const = spec.const
        self.const_default = spec.const_default
        self.param_widths = {action.name: action.param_widths for action in spec.actions}
        self.actions: tuple[str, ...] = tuple(action.name for action in spec.actions)
        self.has_direct_counter = spec.direct_counter
        self.needs_priority = spec.match_type in (MatchKind.TERNARY, MatchKind.RANGE)
        self.lookup: Lookup = make_lookup(spec.match_type, spec.keys)
        self.default_cell: list[Row] = [()]
        self._spec = spec
        self._index = {action.name: index for index, action in enumerate(spec.actions)}
        self._slots: dict[tuple[tuple[MatchKey, ...], int], _Slot] = {}
        self._sequence = 0
        self._default: ActionCall | None = None
        self._default_counter = [0, 0]
        self.reset()

    # -- entries ---------------------------------------------------------------------------------------------

    def insert(self, entry: TableEntry) -> None:
        """Add an entry.

        Raises:
            SwitchError: PERMISSION_DENIED for a table with fixed entries, INVALID_ARGUMENT for a match or action that
                does not fit the table, ALREADY_EXISTS, or RESOURCE_EXHAUSTED if the table is full.
        """
        self._writable()
        self._check(entry)
        if (entry.match, entry.priority) in self._slots:
            raise self._error(
                ErrorKind.ALREADY_EXISTS, f"there is already an entry for {_show(entry.match, entry.priority)}"
            )
        if len(self._slots) >= self.size:
            raise self._error(ErrorKind.RESOURCE_EXHAUSTED, f"the table holds {self.size} entries and is full")
        self._add(entry)

    def modify(self, entry: TableEntry) -> None:
        """Change the action of an entry; its counter is kept.

        Raises:
            SwitchError: as `insert`, and NOT_FOUND.
        """
        self._writable()
        self._check(entry)
        slot = self._slot(entry.match, entry.priority)
        slot.entry = entry
        self.lookup.put(entry.match, slot.rank, self._row(entry.action, slot.cell))

    def delete(self, match: tuple[MatchKey, ...], priority: int) -> None:
        """Remove an entry.

        Raises:
            SwitchError: PERMISSION_DENIED for a table with fixed entries, NOT_FOUND.
        """
        self._writable()
        slot = self._slot(match, priority)
        self.lookup.remove(match, slot.rank)
        del self._slots[match, priority]

    def get(self, match: tuple[MatchKey, ...], priority: int) -> TableEntry:
        """Return the entry with exactly this match and priority.

        Raises:
            SwitchError: NOT_FOUND.
        """
        return self._slot(match, priority).entry

    def entries(self) -> list[TableEntry]:
        """Return all entries in the order of their insertion."""
        return [slot.entry for slot in self._slots.values()]

    # -- default action --------------------------------------------------------------------------------------

    @property
    def default(self) -> ActionCall | None:
        """The action that a miss runs."""
        return self._default

    def set_default(self, call: ActionCall) -> None:
        """Change the action that a miss runs.

        Raises:
            SwitchError: PERMISSION_DENIED for a constant default action, INVALID_ARGUMENT.
        """
        if self.const_default:
            raise self._error(ErrorKind.PERMISSION_DENIED, "the default action is constant")
        self._check_action(call)
        self._install_default(call)

    def reset_default(self) -> None:
        """Restore the program's default action.

        Raises:
            SwitchError: PERMISSION_DENIED for a constant default action.
        """
        if self.const_default:
            raise self._error(ErrorKind.PERMISSION_DENIED, "the default action is constant")
        self._install_default(self._spec.default)

    # -- direct counters -------------------------------------------------------------------------------------

    def counter(self, match: tuple[MatchKey, ...], priority: int) -> tuple[int, int]:
        """Return an entry's (packets, bytes).

        Raises:
            SwitchError: NOT_FOUND, or INVALID_ARGUMENT for a table without direct counter.
        """
        self._counts()
        packets, octets = self._slot(match, priority).cell
        return packets, octets

    def set_counter(self, match: tuple[MatchKey, ...], priority: int, packets: int, octets: int) -> None:
        """Set an entry's counter to `packets` and `octets` (bytes).

        Raises:
            SwitchError: NOT_FOUND, or INVALID_ARGUMENT for a table without direct counter.
        """
        self._counts()
        self._slot(match, priority).cell[:] = (packets, octets)

    def default_counter(self) -> tuple[int, int]:
        """Return (packets, bytes) of the packets that missed.

        Raises:
            SwitchError: INVALID_ARGUMENT for a table without direct counter.
        """
        self._counts()
        packets, octets = self._default_counter
        return packets, octets

    def set_default_counter(self, packets: int, octets: int) -> None:
        """Set the counter of the packets that missed.

        Raises:
            SwitchError: INVALID_ARGUMENT for a table without direct counter.
        """
        self._counts()
        self._default_counter[:] = (packets, octets)

    def reset(self) -> None:
        """Return to the state of a freshly loaded program: its own entries and default, counters at 0."""
        self.lookup.clear()
        self._slots.clear()
        self._sequence = 0
        self._default_counter[:] = (0, 0)
        self._install_default(self._spec.default)
        for entry in self._spec.entries:
            self._check(entry)
            self._add(entry)

    # -- internals -------------------------------------------------------------------------------------------

    def _error(self, kind: ErrorKind, what: str) -> SwitchError:
        return SwitchError(kind, what, f"table {self.name}")

    def _writable(self) -> None:
        if self.const:
            raise self._error(ErrorKind.PERMISSION_DENIED, "the entries are constant")

    def _counts(self) -> None:
        if not self.has_direct_counter:
            raise self._error(ErrorKind.INVALID_ARGUMENT, "the table has no direct counter")

    def _slot(self, match: tuple[MatchKey, ...], priority: int) -> _Slot:
        slot = self._slots.get((match, priority))
        if slot is None:
            raise self._error(ErrorKind.NOT_FOUND, f"no entry for {_show(match, priority)}")
        return slot

    def _check(self, entry: TableEntry) -> None:
        if not self.keys:
            raise self._error(ErrorKind.INVALID_ARGUMENT, "the table has no key, so it takes no entries")
        if len(entry.match) != len(self.keys):
            what = f"{len(entry.match)} match fields for a key of {len(self.keys)}"
            raise self._error(ErrorKind.INVALID_ARGUMENT, what)
        for spec, key in zip(self.keys, entry.match, strict=True):
            problem = spec.problem(key)
            if problem is not None:
                raise self._error(ErrorKind.INVALID_ARGUMENT, f"match field {spec.name}: {problem}")
        if self.needs_priority and entry.priority <= 0:
            raise self._error(ErrorKind.INVALID_ARGUMENT, f"priority {entry.priority}, but it must be positive here")
        if not self.needs_priority and entry.priority != 0:
            raise self._error(ErrorKind.INVALID_ARGUMENT, f"priority {entry.priority}, but the table has none: use 0")
        self._check_action(entry.action)

    def _check_action(self, call: ActionCall) -> None:
        if call.name not in self._index:
            allowed = ", ".join(self.actions) or "none"
            raise self._error(ErrorKind.INVALID_ARGUMENT, f"action {call.name} is not one of {allowed}")
        widths = self.param_widths[call.name]
        if len(call.args) != len(widths):
            what = f"action {call.name} takes {len(widths)} arguments, not {len(call.args)}"
            raise self._error(ErrorKind.INVALID_ARGUMENT, what)
        for position, (value, width) in enumerate(zip(call.args, widths, strict=True)):
            if not 0 <= value < 1 << width:
                what = f"argument {position} of action {call.name}: {value:#x} does not fit {width} bits"
                raise self._error(ErrorKind.INVALID_ARGUMENT, what)

    def _add(self, entry: TableEntry) -> None:
        slot = _Slot(entry, entry_rank(entry.match, entry.priority, self._sequence))
        self._sequence += 1
        self._slots[entry.match, entry.priority] = slot
        self.lookup.put(entry.match, slot.rank, self._row(entry.action, slot.cell))

    def _row(self, call: ActionCall | None, cell: list[int]) -> Row:
        index = -1 if call is None else self._index[call.name]
        args = () if call is None else call.args
        return (index, cell, *args) if self.has_direct_counter else (index, *args)

    def _install_default(self, call: ActionCall | None) -> None:
        if call is not None:
            self._check_action(call)
        self._default = call
        self.default_cell[0] = self._row(call, self._default_counter)


def _show(match: tuple[MatchKey, ...], priority: int) -> str:
    return f"{', '.join(map(str, match))} with priority {priority}"
