"""The compiled program as typed objects. Names are those of the BMv2 JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from softswitch.program.expressions import Expr, FieldRef
from softswitch.state import TableSpec


@dataclass(frozen=True, slots=True)
class Source:
    """A place in the P4 source: file name without directories, line from 1."""

    file: str
    line: int
    fragment: str

    def __str__(self) -> str:
        """Return `file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a header type. `width` is in bits, 0 for a field of variable length (`varbit`)."""

    name: str
    width: int
    signed: bool
    varbit: bool


@dataclass(frozen=True)
class HeaderType:
    """A header or metadata type. `max_bytes` is 0 unless it has a varbit field."""

    name: str
    fields: tuple[Field, ...]
    max_bytes: int

    def field(self, name: str) -> Field:
        """Return the field named `name`; KeyError if there is none."""
        return self.by_name[name]

    @cached_property
    def by_name(self) -> Mapping[str, Field]:
        """The fields by name."""
        return {field.name: field for field in self.fields}

    @cached_property
    def varbit(self) -> Field | None:
        """The field of variable length, if there is one."""
        return next((field for field in self.fields if field.varbit), None)

    @cached_property
    def fixed_bits(self) -> int:
        """Bits of all fields of fixed width."""
        return sum(field.width for field in self.fields)


@dataclass(frozen=True)
class Header:
    """A header or metadata instance."""

    name: str
    type: HeaderType
    metadata: bool


@dataclass(frozen=True)
class Stack:
    """A header stack: the names of its elements in order."""

    name: str
    headers: tuple[str, ...]


@dataclass(frozen=True)
class HeaderArg:
    """A header passed to a primitive: `name`, or element `index` of `stack` if it is only known at run time."""

    name: str | None
    stack: str | None = None
    index: Expr | None = None


@dataclass(frozen=True)
class NamedArg:
    """A reference to another object: `kind` is one of stack, counter, register, calculation, string."""

    kind: str
    name: str


Arg = Expr | HeaderArg | NamedArg


@dataclass(frozen=True)
class Primitive:
    """One primitive call of an action or a parser state."""

    op: str
    args: tuple[Arg, ...]
    place: str
    source: Source | None


@dataclass(frozen=True)
class Param:
    """A parameter of an action."""

    name: str
    width: int


@dataclass(frozen=True)
class Action:
    """An action. Several actions may share a name (p4c makes one NoAction per control), so tables use ids."""

    id: int
    name: str
    params: tuple[Param, ...]
    primitives: tuple[Primitive, ...]
    source: Source | None


@dataclass(frozen=True)
class Extract:
    """Extract into a header, or into the next element of a stack. `length` gives a varbit field's bits."""

    header: str | None
    stack: str | None
    length: Expr | None


@dataclass(frozen=True)
class SetField:
    """Assign to a field in the parser."""

    target: FieldRef
    value: Expr


@dataclass(frozen=True)
class Verify:
    """Stop with `error` unless `condition` holds."""

    condition: Expr
    error: Expr


@dataclass(frozen=True)
class Advance:
    """Skip `bits` bits of the packet."""

    bits: Expr


ParserOp = Extract | SetField | Verify | Advance | Primitive


def expressions(op: ParserOp) -> list[Expr]:
    """Return the expressions that an operation or primitive contains, its targets too."""
    if isinstance(op, Extract):
        return [] if op.length is None else [op.length]
    if isinstance(op, SetField):
        return [op.value]
    if isinstance(op, Verify):
        return [op.condition, op.error]
    if isinstance(op, Advance):
        return [op.bits]
    found: list[Expr] = []
    for arg in op.args:
        if isinstance(arg, Expr):
            found.append(arg)
        elif not isinstance(arg, NamedArg) and arg.index is not None:
            found.append(arg.index)
    return found


@dataclass(frozen=True)
class Transition:
    """One `select` case: per component of the key (value, mask), mask None meaning all bits."""

    components: tuple[tuple[int, int | None], ...]
    target: str | None


@dataclass(frozen=True)
class ParseState:
    """A parser state: operations, select key, cases in order, and the next state if none matches (None accepts)."""

    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[Expr, ...]
    transitions: tuple[Transition, ...]
    default: str | None
    source: Source | None


@dataclass(frozen=True)
class TableKey:
    """The expression that a key field reads, with the width that a match on it has."""

    expr: Expr
    width: int
    mask: int | None


@dataclass(frozen=True)
class TableNode:
    """A table in the control flow.

    Attributes:
        spec: the table for the control plane.
        keys: the expressions of its key.
        action_ids: ids of its actions, in the order of `spec.actions`.
        next_by_action: next node after each action (by position), unless hit/miss decides.
        next_hit_miss: next node after a hit and after a miss, if the program branches on that.
        next_none: next node if no action runs at all.
    """

    name: str
    spec: TableSpec
    keys: tuple[TableKey, ...]
    action_ids: tuple[int, ...]
    next_by_action: tuple[str | None, ...]
    next_hit_miss: tuple[str | None, str | None] | None
    next_none: str | None
    source: Source | None


@dataclass(frozen=True)
class ConditionNode:
    """An `if` in the control flow."""

    name: str
    condition: Expr
    next_true: str | None
    next_false: str | None
    source: Source | None


ControlNode = TableNode | ConditionNode


@dataclass(frozen=True)
class Pipeline:
    """Ingress or egress: its nodes by name, and the first (None for an empty control)."""

    name: str
    first: str | None
    nodes: Mapping[str, ControlNode]


@dataclass(frozen=True)
class CalcInput:
    """One input of a calculation: a field or constant, a whole header, or (both None) the payload."""

    expr: Expr | None
    header: str | None


@dataclass(frozen=True)
class Calculation:
    """A hash or checksum over a list of inputs."""

    name: str
    algorithm: str
    inputs: tuple[CalcInput, ...]
    place: str


@dataclass(frozen=True)
class Checksum:
    """A checksum that the parser verifies or the deparser updates, if `condition` (None: always) holds."""

    name: str
    target: FieldRef
    calculation: Calculation
    condition: Expr | None
    verify: bool
    update: bool
    place: str
    source: Source | None


@dataclass(frozen=True)
class FieldList:
    """Metadata fields that a clone, resubmit or recirculate keeps."""

    id: int
    fields: tuple[FieldRef, ...]


@dataclass(frozen=True)
class LearnList:
    """The values that a digest sends, with their names and widths."""

    id: int
    name: str
    values: tuple[tuple[str, Expr, int], ...]


@dataclass(frozen=True)
class CounterDef:
    """An indirect counter array."""

    name: str
    size: int


@dataclass(frozen=True)
class RegisterDef:
    """A register array."""

    name: str
    size: int
    width: int


@dataclass(frozen=True)
class Program:
    """Everything that the code generator needs."""

    name: str
    headers: Mapping[str, Header]
    stacks: Mapping[str, Stack]
    aliases: Mapping[str, FieldRef]
    errors: Mapping[str, int]
    actions: Mapping[int, Action]
    parse_states: Mapping[str, ParseState]
    first_state: str | None
    ingress: Pipeline
    egress: Pipeline
    deparser: tuple[str, ...]
    checksums: tuple[Checksum, ...]
    calculations: Mapping[str, Calculation]
    field_lists: Mapping[int, FieldList]
    learn_lists: Mapping[int, LearnList]
    counters: Mapping[str, CounterDef]
    registers: Mapping[str, RegisterDef]

    def field(self, ref: FieldRef) -> Field:
        """Return the declaration of a referenced field."""
        return self.headers[ref.header].type.field(ref.field)

    def target_field(self, name: str) -> FieldRef | None:
        """Return the target field `name` (e.g. intrinsic_metadata.mcast_grp), if any."""
        if name in self.aliases:
            return self.aliases[name]
        header, field = name.split(".", 1)
        instance = self.headers.get(header)
        if instance is None or field not in instance.type.by_name:
            return None
        return FieldRef(header, field)

    def tables(self) -> tuple[TableNode, ...]:
        """Return the tables of both pipelines, ingress first."""
        nodes = (*self.ingress.nodes.values(), *self.egress.nodes.values())
        return tuple(node for node in nodes if isinstance(node, TableNode))
