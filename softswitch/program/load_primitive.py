"""Reading primitive calls from the BMv2 JSON."""

from __future__ import annotations

from collections.abc import Mapping

from softswitch.program.cursor import Cursor
from softswitch.program.expressions import Const, FieldRef, Op, StackField, StackLast, is_bool
from softswitch.program.ir import Arg, HeaderArg, NamedArg, Primitive
from softswitch.program.load_expr import Scope

# Primitive -> kinds of its parameters. "value" is any expression, "target" something that can be assigned.
# "header" is a header of the packet, "metadata" the standard metadata, "instance" either.
PRIMITIVES: Mapping[str, tuple[str, ...]] = {
    "assign": ("target", "value"),
    "assign_VL": ("varbit", "varbit"),
    "assign_header": ("instance", "instance"),
    "assign_header_stack": ("stack", "stack"),
    "add_header": ("header",),
    "remove_header": ("header",),
    "push": ("stack", "constant"),
    "pop": ("stack", "constant"),
    "count": ("counter", "value"),
    "register_read": ("target", "register", "value"),
    "register_write": ("register", "value", "value"),
    "mark_to_drop": ("metadata",),
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


class PrimitiveReader:
    """Reads primitive calls; their parameters are checked against the primitive's signature."""

    def __init__(self, scope: Scope) -> None:
        """Read with the names in `scope`."""
        self._scope = scope

    def read(self, node: Cursor) -> Primitive:
        """Read a primitive call."""
        op = node["op"].text()
        kinds = PRIMITIVES.get(op)
        if kinds is None:
            raise node.unsupported(f"the primitive '{op}'")
        given = node.each("parameters")
        if len(given) != len(kinds):
            raise node.malformed(f"primitive '{op}' takes {len(kinds)} parameters, not {len(given)}")
        args = tuple(self._argument(kind, arg) for kind, arg in zip(kinds, given, strict=True) if kind != "ignored")
        if op in ("assign_header", "assign_header_stack") and len(set(map(self._shape, args))) > 1:
            raise node.malformed(f"the parameters of '{op}' have different types")
        return Primitive(op, args, node.place, node.source)

    def _shape(self, arg: Arg) -> tuple[str, int]:
        """Return the type of a header or stack: header type and number of elements."""
        scope = self._scope
        if isinstance(arg, NamedArg):
            headers = scope.stacks[arg.name].headers
            return scope.headers[headers[0]].type.name, len(headers)
        assert isinstance(arg, HeaderArg)
        header = arg.name if arg.name is not None else scope.stacks[arg.stack or ""].headers[0]
        return scope.headers[header].type.name, 1

    def _argument(self, kind: str, node: Cursor) -> Arg:
        scope = self._scope
        if kind == "header":
            return self._header(node)
        if kind == "instance":
            return self._header(node, metadata=True)
        if kind == "metadata":
            return HeaderArg(scope.header_name(node))
        if kind == "stack":
            return NamedArg("stack", scope.stack(node["value"]).name)
        if kind == "varbit":
            return self._varbit(node)
        if kind in ("counter", "register", "calculation"):
            known = {
                "counter": scope.counters,
                "register": scope.registers,
                "calculation": scope.calculations,
            }
            name = node["value"].text()
            if name not in known[kind]:
                raise node.malformed(f"unknown {kind} {name!r}")
            return NamedArg(kind, name)
        expr = scope.expression(node)
        if kind == "constant" and not isinstance(expr, Const):
            raise node.unsupported("a value that is not constant, here,")
        if kind == "target" and not isinstance(expr, FieldRef | StackField | StackLast):
            raise node.unsupported("assigning to this kind of object")
        if is_bool(expr):
            return Op("b2d", (expr,))
        return expr

    def _varbit(self, node: Cursor) -> FieldRef:
        if node["type"].text() != "field":
            raise node.unsupported(f"an object of type '{node['type'].text()}' instead of a varbit field")
        ref = self._scope.plain_field(node["value"])
        if not self._scope.declared(ref).varbit:
            raise node.malformed(f"{ref.header}.{ref.field} is not a varbit field")
        return ref

    def _header(self, node: Cursor, *, metadata: bool = False) -> HeaderArg:
        scope, inner = self._scope, node
        while inner.get("op") is None and inner["type"].text() == "expression":
            inner = inner["value"]
        if inner.get("op") is None:
            name = scope.header_name(inner)
            return HeaderArg(name if metadata else scope.packet_header(inner["value"]))
        if inner["op"].text() not in ("dereference_header_stack", "dereference_stack"):
            raise inner.unsupported(f"the operator '{inner['op'].text()}' instead of a header")
        stack = scope.stack(inner["left"]["value"])
        return HeaderArg(None, stack.name, scope.expression(inner["right"]))
