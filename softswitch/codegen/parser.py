"""Code for the parser: its states become a flow inside one loop, which `break` leaves."""

from __future__ import annotations

from collections.abc import Sequence

from softswitch.codegen.expr import ExprWriter
from softswitch.codegen.flow import FlowWriter, Goto, is_cyclic, topological_order
from softswitch.codegen.headers import HeaderWriter
from softswitch.codegen.primitives import PrimitiveWriter
from softswitch.codegen.source import SourceWriter
from softswitch.codegen.symbols import Symbols
from softswitch.program.expressions import Expr, FieldRef, Lookahead, StackLast, walk
from softswitch.program.ir import (
    Advance,
    Extract,
    ParserOp,
    ParseState,
    SetField,
    Transition,
    Verify,
    expressions,
)
from softswitch.program.limits import MAX_PARSER_STEPS

CORE_ERRORS = {
    "NoError": 0,
    "PacketTooShort": 1,
    "NoMatch": 2,
    "StackOutOfBounds": 3,
    "HeaderTooShort": 4,
    "ParserTimeout": 5,
    "ParserInvalidArgument": 6,
}
"""Errors of the core library, with p4c's values for JSON files that do not list them."""


class ParserWriter:
    """Writes the parser; it is written once for ingress and once for clones, which are parsed again."""

    def __init__(self, symbols: Symbols) -> None:
        """Write with these variables."""
        self._symbols = symbols

    def write(self, out: SourceWriter) -> None:
        """Write code that parses `frame` (of `size` bytes) and sets `offset` and `parser_error`."""
        program = self._symbols.program
        out.line("offset = 0")
        out.line(f"parser_error = {self._error('NoError')}")
        if program.first_state is None:
            return
        states = {name: _StateNode(self, state) for name, state in program.parse_states.items()}
        if is_cyclic(states, program.first_state):
            self._loop(out, states, program.first_state)
            return
        with out.block("while True:", "left by break: accept, or an error"):
            FlowWriter(out, states, program.first_state, "break").write()
            out.line("break")

    def _loop(self, out: SourceWriter, states: dict[str, _StateNode], first: str) -> None:
        """Write a parser with loops (header stacks): each pass of the loop runs one or more states, up to a limit."""
        order = topological_order(states, first)
        number = {name: position for position, name in enumerate(order)}

        def goto(target: str | None) -> None:
            if target is None:
                out.line("break")
            else:
                out.line(f"state = {number[target]}", target)

        out.line("state = 0")
        with out.block(f"for _ in range({MAX_PARSER_STEPS}):", "left by break: accept, or an error"):
            for name in order:
                with out.block(f"if state == {number[name]}:"):
                    states[name].write(out, goto)
        with out.block("else:"):
            out.line(f"parser_error = {self._error('ParserTimeout')}", "ParserTimeout")

    def _error(self, name: str) -> int:
        return self._symbols.program.errors.get(name, CORE_ERRORS[name])

    def fail(self, out: SourceWriter, condition: str, error: str) -> None:
        """Write: if `condition`, stop with a core library error."""
        with out.block(f"if {condition}:"):
            out.line(f"parser_error = {self._error(error)}", error)
            out.line("break")

    # -- states ----------------------------------------------------------------------------------------------

    def state(self, out: SourceWriter, state: ParseState, goto: Goto) -> None:
        """Write a state: operations, then the select."""
        out.comment(f"state {state.name}", state.source)
        exprs = ExprWriter(self._symbols)
        for op in state.ops:
            for expr in expressions(op):
                self._require(out, expr)
            self._op(out, exprs, op)
        if not state.transitions:
            goto(state.default)
            return
        keys = [self._key(out, exprs, expr, position) for position, expr in enumerate(state.key)]
        for position, (target, cases) in enumerate(merged_cases(state)):
            tests = [self._test(keys, case) for case in cases]
            with out.block(f"{'elif' if position else 'if'} {' or '.join(tests)}:"):
                goto(target)
        with out.block("else:"):
            goto(state.default)

    def _test(self, keys: list[str], case: Transition) -> str:
        tests = [
            f"{key} == {value:#x}" if mask is None else f"{key} & {mask:#x} == {value:#x}"
            for key, (value, mask) in zip(keys, case.components, strict=True)
            if mask != 0
        ]
        return " and ".join(tests) or "True"

    def _key(self, out: SourceWriter, exprs: ExprWriter, expr: Expr, position: int) -> str:
        """Return a name for a component of the select key."""
        self._require(out, expr)
        code = exprs.code(expr)
        text = code.text if code.bits is not None else exprs.unsigned(expr, self._signed_width(expr))
        if text.isidentifier():
            return text
        name = f"_key_{position}"
        out.line(f"{name} = {text}")
        return name

    def _signed_width(self, expr: Expr) -> int:
        if isinstance(expr, FieldRef):
            return self._symbols.program.field(expr).width
        assert isinstance(expr, StackLast)
        first = self._symbols.program.stacks[expr.stack].headers[0]
        return self._symbols.program.headers[first].type.field(expr.field).width

    def _require(self, out: SourceWriter, expr: Expr) -> None:
        """Write: stop with an error if the packet ends before the bits that `expr` reads."""
        bits = max((part.offset + part.width for part in walk(expr) if isinstance(part, Lookahead)), default=0)
        if bits:
            self.fail(out, f"offset + {(bits + 7) // 8} > size", "PacketTooShort")

    def _op(self, out: SourceWriter, exprs: ExprWriter, op: ParserOp) -> None:
        if isinstance(op, Extract):
            self._extract(out, exprs, op)
        elif isinstance(op, SetField):
            declared = self._symbols.program.field(op.target)
            out.line(f"{self._symbols.field(op.target)} = {exprs.stored(exprs.code(op.value), declared)}")
        elif isinstance(op, Verify):
            with out.block(f"if not {exprs.condition(op.condition)}:"):
                out.line(f"parser_error = {exprs.code(op.error).text}")
                out.line("break")
        elif isinstance(op, Advance):
            self._advance(out, exprs, op)
        else:
            PrimitiveWriter(self._symbols, exprs).write(out, op)

    def _advance(self, out: SourceWriter, exprs: ExprWriter, op: Advance) -> None:
        out.line(f"bits = {exprs.code(op.bits).text}")
        self.fail(out, "bits & 7", "ParserInvalidArgument")
        self.fail(out, "offset + (bits >> 3) > size", "PacketTooShort")
        out.line("offset += bits >> 3")

    # -- extraction ------------------------------------------------------------------------------------------

    def _extract(self, out: SourceWriter, exprs: ExprWriter, op: Extract) -> None:
        if op.header is not None:
            self._extract_header(out, exprs, op.header, op.length)
            return
        assert op.stack is not None
        headers = self._symbols.program.stacks[op.stack].headers
        counter = self._symbols.next(op.stack)
        self.fail(out, f"{counter} >= {len(headers)}", "StackOutOfBounds")
        for position, header in enumerate(headers):
            with out.block(f"{'elif' if position else 'if'} {counter} == {position}:"):
                self._extract_header(out, exprs, header, op.length)
        out.line(f"{counter} += 1")

    def _extract_header(self, out: SourceWriter, exprs: ExprWriter, header: str, length: Expr | None) -> None:
        headers = HeaderWriter(self._symbols)
        fixed = headers.fixed_octets(header)
        if length is None:
            self.fail(out, f"offset + {fixed} > size", "PacketTooShort")
            headers.extract(out, header, None)
            return
        out.line(f"bits = {exprs.code(length).text}")
        self.fail(out, "bits & 7", "ParserInvalidArgument")
        out.line("octets = bits >> 3")
        self.fail(out, f"octets < 0 or offset + {fixed} + octets > size", "PacketTooShort")
        longest = self._symbols.program.headers[header].type.max_bytes
        if longest:
            self.fail(out, f"{fixed} + octets > {longest}", "HeaderTooShort")
        headers.extract(out, header, "octets")


def merged_cases(state: ParseState) -> list[tuple[str | None, list[Transition]]]:
    """Return the select cases with neighbours of the same target merged."""
    merged: list[tuple[str | None, list[Transition]]] = []
    for case in state.transitions:
        if merged and merged[-1][0] == case.target:
            merged[-1][1].append(case)
        else:
            merged.append((case.target, [case]))
    return merged


class _StateNode:
    """A parser state as a node of the flow."""

    def __init__(self, writer: ParserWriter, state: ParseState) -> None:
        self._writer = writer
        self._state = state

    @property
    def repeats(self) -> bool:
        targets = [target for target, _ in merged_cases(self._state)] + [self._state.default]
        named = [target for target in targets if target is not None]
        return len(named) != len(set(named))

    @property
    def successors(self) -> Sequence[str | None]:
        targets = [transition.target for transition in self._state.transitions]
        return tuple(dict.fromkeys([*targets, self._state.default]))

    def write(self, out: SourceWriter, goto: Goto) -> None:
        self._writer.state(out, self._state, goto)
