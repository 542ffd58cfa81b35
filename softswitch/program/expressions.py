"""Expressions of a compiled program, as typed trees.

Arithmetic is on unbounded integers, as in the BMv2 JSON: p4c writes every wrap-around as an explicit mask, and a value
is truncated to a field's width when it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Const:
    """An integer constant; `width` in bits if the JSON gives it (inputs of calculations), else None."""

    value: int
    width: int | None = None


@dataclass(frozen=True, slots=True)
class BoolConst:
    """`true` or `false`."""

    value: bool


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field of a header or metadata instance."""

    header: str
    field: str


@dataclass(frozen=True, slots=True)
class ValidRef:
    """Whether a header is valid, as 0 or 1."""

    header: str


@dataclass(frozen=True, slots=True)
class ParamRef:
    """The action's parameter number `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Lookahead:
    """`width` bits of the packet, `offset` bits after the parser's position."""

    offset: int
    width: int


@dataclass(frozen=True, slots=True)
class StackLast:
    """A field of the last header extracted into a stack."""

    stack: str
    field: str


@dataclass(frozen=True, slots=True)
class StackField:
    """A field of the stack's element number `index`, which is only known at run time."""

    stack: str
    index: Expr
    field: str


@dataclass(frozen=True, slots=True)
class StackCount:
    """Number of elements in use in a stack, plus `delta` (-1 for the index of the last)."""

    stack: str
    delta: int


@dataclass(frozen=True, slots=True)
class Op:
    """An operator with its operands: for `?` condition, then, else; for unary operators one operand."""

    op: str
    args: tuple[Expr, ...]


Expr = Const | BoolConst | FieldRef | ValidRef | ParamRef | Lookahead | StackLast | StackField | StackCount | Op

BOOL_OPS = frozenset({"==", "!=", "<", "<=", ">", ">=", "and", "or", "not", "d2b"})
"""Operators whose result is a boolean."""

INT_OPS = frozenset(
    {"+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "~"} | {"b2d", "two_comp_mod", "sat_cast", "usat_cast"}
)
"""Operators whose result is an integer. `?` has the type of its branches."""


def is_bool(expr: Expr) -> bool:
    """Return whether an expression is boolean (as opposed to integer)."""
    if isinstance(expr, Op):
        return expr.op in BOOL_OPS or (expr.op == "?" and is_bool(expr.args[1]))
    return isinstance(expr, BoolConst)


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and everything inside it."""
    yield expr
    if isinstance(expr, Op):
        for arg in expr.args:
            yield from walk(arg)
    elif isinstance(expr, StackField):
        yield from walk(expr.index)
