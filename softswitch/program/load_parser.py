"""Reading the parser from the BMv2 JSON."""

from __future__ import annotations

from softswitch.program.cursor import Cursor
from softswitch.program.expressions import Expr, FieldRef, Lookahead, Op, StackLast, ValidRef, is_bool
from softswitch.program.ir import (
    Advance,
    Extract,
    HeaderType,
    ParserOp,
    ParseState,
    Primitive,
    SetField,
    Transition,
    Verify,
)
from softswitch.program.limits import MAX_NODES
from softswitch.program.load_expr import Scope
from softswitch.program.load_primitive import PrimitiveReader


class ParserReader:
    """Reads one parser's states."""

    def __init__(self, scope: Scope) -> None:
        """Read with the names in `scope`."""
        self._scope = scope

    def read(self, node: Cursor) -> tuple[dict[str, ParseState], str | None]:
        """Return the states by name, and the name of the first one."""
        if len(node["parse_states"]) > MAX_NODES:
            raise node.unsupported(f"a parser with more than {MAX_NODES} states")
        states: dict[str, ParseState] = {}
        self._scope.in_parser = True
        for state in node["parse_states"]:
            states[state["name"].new_name(states)] = self._state(state)
        self._scope.in_parser = False
        first = node["init_state"].name_or_null()
        for reached in states.values():
            for target in (reached.default, *(transition.target for transition in reached.transitions)):
                if target is not None and target not in states:
                    raise node.malformed(f"state {reached.name!r} leads to {target!r}, which does not exist")
        if first is not None and first not in states:
            raise node.malformed(f"the first state {first!r} does not exist")
        return states, first

    def _state(self, node: Cursor) -> ParseState:
        key = tuple(self._key_component(part) for part in node.each("transition_key"))
        widths = [self._width(expr) for expr in key]
        cases: list[Transition] = []
        default: str | None = None
        for transition in node["transitions"]:
            kind = "hexstr" if transition.get("type") is None else transition["type"].text()
            target = transition["next_state"].name_or_null()
            if kind == "parse_vset":
                raise transition.unsupported(f"the value set '{transition['value'].text()}'")
            if kind == "default" or transition["value"].name_or_null() == "default":
                default = target
            elif kind == "hexstr":
                cases.append(Transition(self._components(transition, widths), target))
            else:
                raise transition.unsupported(f"a transition of type '{kind}'")
        ops = tuple(self._op(op) for op in node["parser_ops"])
        return ParseState(node["name"].text(), ops, key, tuple(cases), default, node.source)

    def _key_component(self, node: Cursor) -> Expr:
        expr = self._scope.expression(node)
        if not isinstance(expr, FieldRef | StackLast | Lookahead | ValidRef):
            raise node.unsupported("this kind of select key")
        return expr

    def _width(self, expr: Expr) -> int:
        if isinstance(expr, Lookahead):
            return expr.width
        if isinstance(expr, FieldRef):
            return self._scope.headers[expr.header].type.field(expr.field).width
        if isinstance(expr, StackLast):
            first = self._scope.stacks[expr.stack].headers[0]
            return self._scope.headers[first].type.field(expr.field).width
        return 1

    def _components(self, node: Cursor, widths: list[int]) -> tuple[tuple[int, int | None], ...]:
        """Split a case's value and mask, which are the concatenated byte-padded key components."""
        value = node["value"].hexadecimal()
        mask_node = node.get("mask")
        mask = None if mask_node is None else mask_node.hexadecimal()
        parts: list[tuple[int, int | None]] = []
        for width in reversed(widths):
            octets = 8 * ((width + 7) // 8)
            part = value & ((1 << octets) - 1)
            part_mask = None if mask is None else mask & ((1 << width) - 1)
            if part_mask == (1 << width) - 1:
                part_mask = None
            parts.append((part if part_mask is None else part & part_mask, part_mask))
            value >>= octets
            mask = None if mask is None else mask >> octets
        return tuple(reversed(parts))

    def _op(self, node: Cursor) -> ParserOp:
        op, parameters = node["op"].text(), node["parameters"]
        if op in ("extract", "extract_VL"):
            return self._extract(node)
        if op == "set":
            target = parameters[0]
            if target["type"].text() != "field":
                raise target.unsupported(f"setting an object of type '{target['type'].text()}' in a parser")
            return self._set(node)
        if op == "verify":
            error = parameters[1]
            if not error.is_object:
                raise error.unsupported("a 'verify' with the error as a bare number")
            return Verify(self._scope.condition(parameters[0]), self._scope.expression(error))
        if op == "advance":
            return Advance(self._scope.expression(parameters[0]))
        if op == "primitive":
            return PrimitiveReader(self._scope).read(parameters[0])
        raise node.unsupported(f"the parser operation '{op}'")

    def _set(self, node: Cursor) -> ParserOp:
        target, value = node["parameters"][0], node["parameters"][1]
        ref = self._scope.plain_field(target["value"])
        if self._scope.declared(ref).varbit:
            source = self._scope.plain_field(value["value"])
            if not self._scope.declared(source).varbit:
                raise value.malformed(f"{source.header}.{source.field} is not a varbit field")
            return Primitive("assign_VL", (ref, source), node.place, node.source)
        expr = self._scope.expression(value)
        return SetField(ref, Op("b2d", (expr,)) if is_bool(expr) else expr)

    def _extract(self, node: Cursor) -> Extract:
        what = node["parameters"][0]
        variable = node["op"].text() == "extract_VL"
        length = self._scope.expression(node["parameters"][1]) if variable else None
        kind = what["type"].text()
        if kind == "regular":
            header = self._scope.packet_header(what["value"])
            self._check_varbit(node, self._scope.headers[header].type, variable)
            return Extract(header, None, length)
        if kind == "stack":
            stack = self._scope.stack(what["value"])
            self._check_varbit(node, self._scope.headers[stack.headers[0]].type, variable)
            return Extract(None, stack.name, length)
        raise what.unsupported(f"extracting into a '{kind}'")

    def _check_varbit(self, node: Cursor, header_type: HeaderType, variable: bool) -> None:
        if variable != (header_type.varbit is not None):
            raise node.malformed("'extract_VL' requires a header with a varbit field, and vice versa")
