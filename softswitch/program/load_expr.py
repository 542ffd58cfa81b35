"""Reading expressions and primitive calls from the BMv2 JSON."""

from __future__ import annotations

from collections.abc import Mapping
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
from softswitch.program.ir import Arg, Calculation, Header, HeaderArg, NamedArg, Primitive, Stack

VALID_FIELD = "$valid$"
"""Name of the hidden field that holds a header's validity."""

_UNARY = frozenset({"not", "~", "d2b", "b2d"})
_BOOLEAN_OPERANDS = frozenset({"and", "or", "not", "b2d"})

# Primitive -> kinds of its parameters. "value" is any expression, "target" something that can be assigned.
PRIMITIVES: Mapping[str, tuple[str, ...]] = {
    "assign": ("target", "value"),
    "assign_VL": ("target", "value"),
    "assign_header": ("header", "header"),
    "assign_header_stack": ("stack", "stack"),
    "add_header": ("header",),
    "remove_header": ("header",),
    "push": ("stack", "constant"),
    "pop": ("stack", "constant"),
    "count": ("counter", "value"),
    "register_read": ("target", "register", "value"),
    "register_write": ("register", "value", "value"),
    "mark_to_drop": ("header",),
    "drop": (),
    "no_op": (),
    "exit": (),
    "generate_digest": ("value", "constant"),
    "clone_ingress_pkt_to_egress": ("value", "constant"),
    "clone_egress_pkt_to_egress": ("value", "constant"),
    "resubmit": ("constant",),
    "recirculate": ("constant",),
    "truncate": ("value",),
    "modify_field_with_hash_based_offset": ("target", "value", "calculation", "value"),
    "modify_field_rng_uniform": ("target", "value", "value"),
    "log_msg": ("ignored", "ignored"),
    "_jump": ("constant",),
    "_jump_if_zero": ("value", "constant"),
}


@dataclass
class Scope:
    """The names that expressions may use; filled while the program is read."""

    headers: dict[str, Header] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)
    counters: set[str] = field(default_factory=set)
    registers: set[str] = field(default_factory=set)
    calculations: dict[str, Calculation] = field(default_factory=dict)

    def field_ref(self, node: Cursor) -> FieldRef | ValidRef:
        """Read a `[header, field]` pair."""
        header, name = node[0].text(), node[1].text()
        if header not in self.headers:
            raise node.malformed(f"there is no header {header!r}")
        if name == VALID_FIELD:
            return ValidRef(header)
        if all(declared.name != name for declared in self.headers[header].type.fields):
            raise node.malformed(f"header {header!r} has no field {name!r}")
        return FieldRef(header, name)

    def plain_field(self, node: Cursor) -> FieldRef:
        """Read a `[header, field]` pair that must not be a validity bit."""
        ref = self.field_ref(node)
        if isinstance(ref, ValidRef):
            raise node.malformed("a validity bit cannot be used here")
        return ref

    def stack(self, node: Cursor) -> Stack:
        """Read the name of a header stack."""
        name = node.text()
        if name not in self.stacks:
            raise node.malformed(f"there is no header stack {name!r}")
        return self.stacks[name]

    def element_type_field(self, stack: Stack, node: Cursor) -> str:
        """Check that the elements of a stack have the field that `node` names."""
        name = node.text()
        if all(declared.name != name for declared in self.headers[stack.headers[0]].type.fields):
            raise node.malformed(f"the elements of stack {stack.name!r} have no field {name!r}")
        return name

    # -- expressions -----------------------------------------------------------------------------------------

    def expression(self, node: Cursor) -> Expr:
        """Read an expression (a type-value object, or an operator object)."""
        if node.get("op") is not None:
            return self._operator(node)
        kind, value = node["type"].text(), node["value"]
        if kind == "expression":
            return self.expression(value)
        if kind == "hexstr":
            width = node.get("bitwidth")
            return Const(value.hexadecimal(), None if width is None else width.integer())
        if kind == "bool":
            return BoolConst(value.flag())
        if kind == "field":
            return self.field_ref(value)
        if kind in ("local", "runtime_data"):
            return ParamRef(value.integer())
        if kind == "stack_field":
            stack = self.stack(value[0])
            return StackLast(stack.name, self.element_type_field(stack, value[1]))
        if kind == "lookahead":
            return Lookahead(value[0].integer(), value[1].integer())
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
        args = [self.expression(node["right"])]
        if op not in _UNARY:
            args.insert(0, self.expression(node["left"]))
        wants_bool = op in _BOOLEAN_OPERANDS or (op in ("==", "!=") and is_bool(args[0]))
        if any(is_bool(arg) is not wants_bool for arg in args):
            raise node.malformed(f"the operands of '{op}' have the wrong types")
        return Op(op, tuple(args))

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
            raise node.unsupported(f"an object of type '{node['type'].text()}' in place of a header")
        name = node["value"].text()
        if name not in self.headers:
            raise node.malformed(f"there is no header {name!r}")
        return name

    def condition(self, node: Cursor) -> Expr:
        """Read an expression that must be boolean."""
        expr = self.expression(node)
        if not is_bool(expr):
            raise node.malformed("a boolean expression was expected")
        return expr

    # -- primitives ------------------------------------------------------------------------------------------

    def primitive(self, node: Cursor) -> Primitive:
        """Read a primitive call; its parameters are checked against the primitive's signature."""
        op = node["op"].text()
        kinds = PRIMITIVES.get(op)
        if kinds is None:
            raise node.unsupported(f"the primitive '{op}'")
        given = node.each("parameters")
        if len(given) != len(kinds):
            raise node.malformed(f"primitive '{op}' takes {len(kinds)} parameters, not {len(given)}")
        args = tuple(
            self._argument(kind, arg) for kind, arg in zip(kinds, given, strict=True) if kind != "ignored"
        )
        return Primitive(op, args, node.place, node.source)

    def _argument(self, kind: str, node: Cursor) -> Arg:
        if kind == "header":
            return self._header_argument(node)
        if kind == "stack":
            return NamedArg("stack", self.stack(node["value"]).name)
        if kind in ("counter", "register", "calculation"):
            known = {"counter": self.counters, "register": self.registers, "calculation": self.calculations}
            name = node["value"].text()
            if name not in known[kind]:
                raise node.malformed(f"there is no {kind} {name!r}")
            return NamedArg(kind, name)
        expr = self.expression(node)
        if kind == "constant" and not isinstance(expr, Const):
            raise node.unsupported("a value that is not constant, here,")
        if kind == "target" and not isinstance(expr, FieldRef | StackField | StackLast):
            raise node.unsupported("assigning to this kind of object")
        if is_bool(expr):
            return Op("b2d", (expr,))
        return expr

    def _header_argument(self, node: Cursor) -> HeaderArg:
        inner = node
        while inner.get("op") is None and inner["type"].text() == "expression":
            inner = inner["value"]
        if inner.get("op") is None:
            return HeaderArg(self.header_name(inner))
        if inner["op"].text() not in ("dereference_header_stack", "dereference_stack"):
            raise inner.unsupported(f"the operator '{inner['op'].text()}' in place of a header")
        stack = self.stack(inner["left"]["value"])
        return HeaderArg(None, stack.name, self.expression(inner["right"]))
