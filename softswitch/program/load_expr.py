"""Reading expressions from the BMv2 JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from softswitch.program.cursor import Cursor
from softswitch.program.expressions import (
    BOOL_OPS,
    INT_OPS,
    BoolConst,
    Const,
    Expr,
    FieldRef,
    Lookahead,
    Op,
    ParamRef,
    StackCount,
    StackField,
    StackLast,
    ValidRef,
    is_bool,
)
from softswitch.program.ir import Calculation, Field, Header, Stack
from softswitch.program.limits import MAX_EXPRESSION_DEPTH, MAX_EXPRESSIONS, MAX_WIDTH

VALID_FIELD = "$valid$"
"""Name of the hidden field that holds a header's validity."""

_UNARY = frozenset({"not", "~", "d2b", "b2d"})
_BOOLEAN_OPERANDS = frozenset({"and", "or", "not", "b2d"})
_CASTS = frozenset({"two_comp_mod", "sat_cast", "usat_cast"})


@dataclass
class Scope:
    """The names that expressions may use, the number of the current action's parameters, and whether it is a parser."""

    headers: dict[str, Header] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)
    counters: set[str] = field(default_factory=set)
    registers: set[str] = field(default_factory=set)
    calculations: dict[str, Calculation] = field(default_factory=dict)
    params: int = 0
    in_parser: bool = False
    _depth: int = 0
    _count: int = 0

    def field_ref(self, node: Cursor) -> FieldRef | ValidRef:
        """Read a `[header, field]` pair."""
        header, name = node[0].text(), node[1].text()
        if header not in self.headers:
            raise node.malformed(f"unknown header {header!r}")
        if name == VALID_FIELD:
            return ValidRef(header)
        if name not in self.headers[header].type.by_name:
            raise node.malformed(f"header {header!r} has no field {name!r}")
        return FieldRef(header, name)

    def declared(self, ref: FieldRef) -> Field:
        """Return the declaration of a field."""
        return self.headers[ref.header].type.field(ref.field)

    def plain_field(self, node: Cursor) -> FieldRef:
        """Read a `[header, field]` pair that must not be a validity bit."""
        ref = self.field_ref(node)
        if isinstance(ref, ValidRef):
            raise node.unsupported(f"'{ref.header}.{VALID_FIELD}' as a plain field (setValid() and isValid() are)")
        return ref

    def stack(self, node: Cursor) -> Stack:
        """Read the name of a header stack."""
        name = node.text()
        if name not in self.stacks:
            raise node.malformed(f"unknown header stack {name!r}")
        return self.stacks[name]

    def element_type_field(self, stack: Stack, node: Cursor) -> str:
        """Check that the elements of a stack have the field that `node` names."""
        name = node.text()
        if name not in self.headers[stack.headers[0]].type.by_name:
            raise node.malformed(f"the elements of stack {stack.name!r} have no field {name!r}")
        return name

    # -- expressions -----------------------------------------------------------------------------------------

    def expression(self, node: Cursor) -> Expr:
        """Read an expression (a type-value object, or an operator object)."""
        while node.get("op") is None and node["type"].is_text("expression"):
            node = node["value"]
        self._count += 1
        if self._count > MAX_EXPRESSIONS:
            raise node.unsupported(f"a program with more than {MAX_EXPRESSIONS} operators and operands")
        if node.get("op") is None:
            return self._operand(node)
        self._depth += 1
        if self._depth > MAX_EXPRESSION_DEPTH:
            raise node.unsupported(f"an expression with more than {MAX_EXPRESSION_DEPTH} nested operators")
        try:
            return self._operator(node)
        finally:
            self._depth -= 1

    def _operand(self, node: Cursor) -> Expr:
        kind, value = node["type"].text(), node["value"]
        if kind == "hexstr":
            width = node.get("bitwidth")
            return Const(value.hexadecimal(), None if width is None else width.width())
        if kind == "bool":
            return BoolConst(value.flag())
        if kind == "field":
            ref = self.field_ref(value)
            if isinstance(ref, FieldRef) and self.declared(ref).varbit:
                raise node.unsupported(f"the varbit field '{ref.header}.{ref.field}' in an expression")
            return ref
        if kind in ("local", "runtime_data"):
            if not 0 <= value.integer() < self.params:
                raise node.malformed(f"unknown action parameter {value.integer()}")
            return ParamRef(value.integer())
        if kind == "stack_field":
            stack = self.stack(value[0])
            return StackLast(stack.name, self.element_type_field(stack, value[1]))
        if kind == "lookahead":
            if not self.in_parser:
                raise node.malformed("a lookahead outside a parser")
            return Lookahead(value[0].size(), value[1].width())
        raise node.unsupported(f"an operand of type '{kind}'")

    def _operator(self, node: Cursor) -> Expr:
        op = node["op"].text()
        if op == "valid":
            return Op("d2b", (ValidRef(self.header_name(node["right"])),))
        if op == "access_field":
            return self._element_field(node)
        if op in ("last_stack_index", "size_stack"):
            stack = self.stack(node["right"]["value"])
            return StackCount(stack.name, -1 if op == "last_stack_index" else 0)
        if op == "?":
            parts = [self.expression(node[key]) for key in ("cond", "left", "right")]
            if not is_bool(parts[0]) or is_bool(parts[1]) != is_bool(parts[2]):
                raise node.malformed("the parts of '?' have the wrong types")
            return Op("?", tuple(parts))
        if op not in BOOL_OPS and op not in INT_OPS:
            raise node.unsupported(f"the operator '{op}'")
        if self._is_aggregate(node):
            raise node.unsupported("comparing whole headers")
        if op in ("==", "!=") and self._is_varbit(node["left"]) and self._is_varbit(node["right"]):
            return Op(op, tuple(self.plain_field(node[side]["value"]) for side in ("left", "right")))
        args = [self.expression(node["right"])]
        if op not in _UNARY:
            args.insert(0, self.expression(node["left"]))
        wants_bool = op in _BOOLEAN_OPERANDS or (op in ("==", "!=") and is_bool(args[0]))
        if any(is_bool(arg) is not wants_bool for arg in args):
            raise node.malformed(f"the operands of '{op}' have the wrong types")
        if op in _CASTS:
            self._check_cast(node, op, args[1])
        return Op(op, tuple(args))

    def _check_cast(self, node: Cursor, op: str, width: Expr) -> None:
        if not isinstance(width, Const):
            raise node.unsupported(f"'{op}' to a width that is not constant")
        if not 1 <= width.value <= MAX_WIDTH:
            raise node.unsupported(f"'{op}' to a width that is not in 1..{MAX_WIDTH}")

    def _is_varbit(self, node: Cursor) -> bool:
        kind = node.get("type")
        if kind is None or not kind.is_text("field"):
            return False
        ref = self.field_ref(node["value"])
        return isinstance(ref, FieldRef) and self.declared(ref).varbit

    def _is_aggregate(self, node: Cursor) -> bool:
        left = node.get("left")
        kind = None if left is None else left.get("type")
        return kind is not None and kind.text().startswith("header")

    def _element_field(self, node: Cursor) -> Expr:
        target = node["left"]
        while target.get("op") is None:
            target = target["value"]
        if target["op"].text() not in ("dereference_header_stack", "dereference_stack"):
            raise node.unsupported(f"'access_field' on '{target['op'].text()}'")
        stack = self.stack(target["left"]["value"])
        fields = self.headers[stack.headers[0]].type.fields
        position = node["right"].integer()
        if not 0 <= position < len(fields):
            raise node.malformed(f"the elements of stack {stack.name!r} have no field number {position}")
        return StackField(stack.name, self.expression(target["right"]), fields[position].name)

    def header_name(self, node: Cursor) -> str:
        """Read a reference to a header instance."""
        if node["type"].text() != "header":
            raise node.unsupported(f"an object of type '{node['type'].text()}' instead of a header")
        name = node["value"].text()
        if name not in self.headers:
            raise node.malformed(f"unknown header {name!r}")
        return name

    def packet_header(self, node: Cursor) -> str:
        """Read the name of a header of the packet (not of metadata)."""
        name = node.text()
        if name not in self.headers or self.headers[name].metadata:
            raise node.malformed(f"unknown packet header {name!r}")
        return name

    def condition(self, node: Cursor) -> Expr:
        """Read an expression that must be boolean."""
        expr = self.expression(node)
        if not is_bool(expr):
            raise node.malformed("expected a boolean expression")
        return expr
