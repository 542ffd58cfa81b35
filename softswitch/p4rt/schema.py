"""Lookup tables from P4Info: the meaning of each id, with widths and rules.

Built once per pipeline; later code uses these records and never walks the P4Info message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from finsy.proto import p4i

from softswitch.p4rt.errors import P4RuntimeError, invalid, unimplemented
from softswitch.p4rt.p4data import DataType, resolve_type
from softswitch.program.limits import MAX_WIDTH


class MatchKind(Enum):
    """How a match field is compared; values are the names of the FieldMatch members."""

    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"
    OPTIONAL = "optional"


class Scope(Enum):
    """Where an action of a table may be used."""

    ANYWHERE = "anywhere"
    ENTRY_ONLY = "entry"
    DEFAULT_ONLY = "default"


@dataclass(frozen=True, slots=True)
class Field:
    """A match field, an action parameter or a field of a controller header.

    Attributes:
        id: id within its owner.
        name: name in P4Info.
        width: bits.
        padding: marked `@padding` in the program; a packet-out may omit it.
    """

    id: int
    name: str
    width: int
    padding: bool = False


@dataclass(frozen=True, slots=True)
class MatchField(Field):
    """A match field of a table, with its kind."""

    kind: MatchKind = MatchKind.EXACT


@dataclass(frozen=True, slots=True)
class ActionInfo:
    """An action: its parameters are in declaration order."""

    id: int
    name: str
    params: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table and the rules of P4Runtime about its entries.

    Attributes:
        id: P4Info id.
        name: fully qualified name.
        fields: match fields in key order.
        scopes: action id -> where the table may use the action.
        const_default: the default action cannot be changed.
        is_const: the table was declared with `const entries`.
        has_direct_counter: entries carry a direct counter.
        needs_priority: a ternary, range or optional field makes a priority > 0 mandatory.
    """

    id: int
    name: str
    fields: tuple[MatchField, ...]
    scopes: Mapping[int, Scope]
    const_default: bool
    is_const: bool
    has_direct_counter: bool
    needs_priority: bool


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An indirect counter array, or (with a type) a register array."""

    id: int
    name: str
    size: int
    type: DataType | None = None


@dataclass(frozen=True, slots=True)
class DigestInfo:
    """A digest and the type of its messages."""

    id: int
    name: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Schema:
    """The content of one program's P4Info; `action_ids` maps names back to ids.

    Attributes:
        packet_in: fields of the packet-in header, None if the program has none.
        packet_out: fields of the packet-out header, None if the program has none.
    """

    tables: Mapping[int, TableInfo]
    actions: Mapping[int, ActionInfo]
    action_ids: Mapping[str, int]
    counters: Mapping[int, ArrayInfo]
    registers: Mapping[int, ArrayInfo]
    digests: Mapping[int, DigestInfo]
    packet_in: tuple[Field, ...] | None
    packet_out: tuple[Field, ...] | None

    @staticmethod
    def build(info: p4i.P4Info) -> Schema:
        """Return the schema of `info`.

        Raises:
            P4RuntimeError: INVALID_ARGUMENT for an inconsistent P4Info, or for unsupported objects (action profiles,
                meters, value sets, externs, string translation).
        """
        _refuse_unsupported(info)
        direct = {counter.preamble.id for counter in info.direct_counters}
        actions = {
            action.preamble.id: ActionInfo(
                action.preamble.id,
                action.preamble.name,
                tuple(_field(param, f"action {action.preamble.name}") for param in action.params),
            )
            for action in _unique(info.actions, "action")
        }
        headers = {
            header.preamble.name: tuple(_field(entry, f"header {header.preamble.name}") for entry in header.metadata)
            for header in info.controller_packet_metadata
        }
        try:
            registers = {
                register.preamble.id: ArrayInfo(
                    register.preamble.id,
                    register.preamble.name,
                    register.size,
                    resolve_type(register.type_spec, info.type_info, f"register {register.preamble.name}"),
                )
                for register in _unique(info.registers, "register")
            }
            digests = {
                digest.preamble.id: DigestInfo(
                    digest.preamble.id,
                    digest.preamble.name,
                    resolve_type(digest.type_spec, info.type_info, f"digest {digest.preamble.name}"),
                )
                for digest in _unique(info.digests, "digest")
            }
        except P4RuntimeError as error:
            raise invalid(f"P4Info: {error.message}") from error
        return Schema(
            tables={table.preamble.id: _table(table, actions, direct) for table in _unique(info.tables, "table")},
            actions=actions,
            action_ids={action.name: action.id for action in actions.values()},
            counters={
                counter.preamble.id: ArrayInfo(counter.preamble.id, counter.preamble.name, counter.size)
                for counter in _unique(info.counters, "counter")
            },
            registers=registers,
            digests=digests,
            packet_in=headers.get("packet_in"),
            packet_out=headers.get("packet_out"),
        )


class _HasPreamble(Protocol):
    @property
    def preamble(self) -> p4i.Preamble: ...


_Named = TypeVar("_Named", bound=_HasPreamble)


class _HasWidth(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def bitwidth(self) -> int: ...
    @property
    def annotations(self) -> Iterable[str]: ...


_MATCH_KINDS: Mapping[int, MatchKind] = {
    p4i.MatchField.EXACT: MatchKind.EXACT,
    p4i.MatchField.LPM: MatchKind.LPM,
    p4i.MatchField.TERNARY: MatchKind.TERNARY,
    p4i.MatchField.RANGE: MatchKind.RANGE,
    p4i.MatchField.OPTIONAL: MatchKind.OPTIONAL,
}
_SCOPES: Mapping[int, Scope] = {
    p4i.ActionRef.TABLE_AND_DEFAULT: Scope.ANYWHERE,
    p4i.ActionRef.TABLE_ONLY: Scope.ENTRY_ONLY,
    p4i.ActionRef.DEFAULT_ONLY: Scope.DEFAULT_ONLY,
}


def _unique(objects: Iterable[_Named], kind: str) -> list[_Named]:
    result = list(objects)
    seen: set[int] = set()
    for item in result:
        if item.preamble.id == 0 or item.preamble.id in seen:
            raise invalid(f"P4Info: {kind} {item.preamble.name!r} has no unique id ({item.preamble.id})")
        seen.add(item.preamble.id)
    return result


def _field(source: _HasWidth, owner: str) -> Field:
    if source.bitwidth <= 0:
        raise invalid(f"P4Info: {owner}: {source.name!r} has no width; string translation is not supported")
    if source.bitwidth > MAX_WIDTH:
        raise invalid(f"P4Info: {owner}: {source.name!r} has more than {MAX_WIDTH} bits")
    padding = any(annotation.startswith("@padding") for annotation in source.annotations)
    return Field(source.id, source.name, source.bitwidth, padding)


def _table(table: p4i.Table, actions: Mapping[int, ActionInfo], direct_counters: set[int]) -> TableInfo:
    name = table.preamble.name
    fields: list[MatchField] = []
    for source in table.match_fields:
        kind = _MATCH_KINDS.get(source.match_type)
        if kind is None:
            raise invalid(f"P4Info: table {name}: match field {source.name!r} has an unknown match kind")
        plain = _field(source, f"table {name}")
        fields.append(MatchField(plain.id, plain.name, plain.width, kind=kind))
    for ref in table.action_refs:
        if ref.id not in actions:
            raise invalid(f"P4Info: table {name} refers to action id {ref.id}, which is not described")
    return TableInfo(
        id=table.preamble.id,
        name=name,
        fields=tuple(fields),
        scopes={ref.id: _scope(ref, name) for ref in table.action_refs},
        const_default=table.const_default_action_id != 0,
        is_const=table.is_const_table,
        has_direct_counter=any(resource in direct_counters for resource in table.direct_resource_ids),
        needs_priority=any(field.kind in (MatchKind.TERNARY, MatchKind.RANGE, MatchKind.OPTIONAL) for field in fields),
    )


def _scope(ref: p4i.ActionRef, table: str) -> Scope:
    # P4Info of older compilers has the scope only in the annotations.
    if ref.scope == p4i.ActionRef.TABLE_AND_DEFAULT:
        if any(annotation.startswith("@defaultonly") for annotation in ref.annotations):
            return Scope.DEFAULT_ONLY
        if any(annotation.startswith("@tableonly") for annotation in ref.annotations):
            return Scope.ENTRY_ONLY
    scope = _SCOPES.get(ref.scope)
    if scope is None:
        raise invalid(f"P4Info: table {table}: action id {ref.id} has an unknown scope ({ref.scope})")
    return scope


def _refuse_unsupported(info: p4i.P4Info) -> None:
    groups: tuple[tuple[str, Iterable[_HasPreamble]], ...] = (
        ("action profile", info.action_profiles),
        ("meter", info.meters),
        ("direct meter", info.direct_meters),
        ("value set", info.value_sets),
    )
    problems = [f"{kind} {item.preamble.name}" for kind, items in groups for item in items]
    problems += [f"extern {extern.extern_type_name}" for extern in info.externs if extern.instances]
    if problems:
        raise invalid(f"P4Info: {unimplemented(', '.join(problems)).message}")
