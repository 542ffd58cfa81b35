"""The fields that a program reads and writes: only those become variables, the rest stays in opaque words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from softswitch.program.expressions import Expr, FieldRef, StackField, StackLast, walk
from softswitch.program.ir import (
    Advance,
    Arg,
    Calculation,
    ConditionNode,
    Extract,
    HeaderArg,
    NamedArg,
    ParserOp,
    Primitive,
    Program,
    SetField,
    TableNode,
    Verify,
)

_TARGET_ARGUMENT = frozenset(
    {
        "assign",
        "assign_VL",
        "register_read",
        "modify_field_with_hash_based_offset",
        "modify_field_rng_uniform",
    }
)
"""Primitives whose first argument is written."""


@dataclass
class Usage:
    """Result of the analysis.

    Attributes:
        read, written: fields by header and name; writes by extraction do not count.
        stale: headers whose field variables may be non-zero while the header is invalid.
        primitives: names of all primitives that occur.
        opaque_stacks: stacks that are shifted, copied, or indexed at run time.
    """

    read: set[FieldRef] = field(default_factory=set)
    written: set[FieldRef] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    primitives: set[str] = field(default_factory=set)

    def live(self, ref: FieldRef) -> bool:
        """Whether a field needs a variable."""
        return ref in self.read or ref in self.written


class _Analysis:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.usage = Usage()

    def run(self) -> Usage:
        program = self.program
        for state in program.parse_states.values():
            for op in state.ops:
                self._parser_op(op)
            self._reads(state.key)
        for action in program.actions.values():
            for primitive in action.primitives:
                self._primitive(primitive)
        for pipeline in (program.ingress, program.egress):
            for node in pipeline.nodes.values():
                if isinstance(node, ConditionNode):
                    self._reads([node.condition])
                else:
                    assert isinstance(node, TableNode)
                    self._reads(key.expr for key in node.keys)
        for checksum in program.checksums:
            self._calculation(checksum.calculation)
            if checksum.condition is not None:
                self._reads([checksum.condition])
            self.usage.read.add(checksum.target)
            if checksum.update:
                self._write(checksum.target)
        for field_list in program.field_lists.values():
            self._reads(field_list.fields)
            for ref in field_list.fields:
                self._write(ref)
        for learn_list in program.learn_lists.values():
            self._reads(value for _, value, _ in learn_list.values)
        return self.usage

    def _reads(self, exprs: Iterable[Expr]) -> None:
        for expr in exprs:
            for part in walk(expr):
                if isinstance(part, FieldRef):
                    self.usage.read.add(part)
                elif isinstance(part, StackLast | StackField):
                    self.usage.read.update(self._elements(part.stack, part.field))

    def _write(self, ref: FieldRef) -> None:
        self.usage.written.add(ref)
        if not self.program.headers[ref.header].metadata:
            self.usage.stale.add(ref.header)

    def _elements(self, stack: str, name: str) -> list[FieldRef]:
        return [FieldRef(header, name) for header in self.program.stacks[stack].headers]

    def _whole_header(self, header: str, *, read: bool, written: bool) -> None:
        for declared in self.program.headers[header].type.fields:
            ref = FieldRef(header, declared.name)
            if read:
                self.usage.read.add(ref)
            if written:
                self._write(ref)

    def _stack(self, stack: str) -> None:
        for header in self.program.stacks[stack].headers:
            self._whole_header(header, read=True, written=True)

    def _header_names(self, arg: HeaderArg) -> tuple[str, ...]:
        if arg.name is not None:
            return (arg.name,)
        assert arg.stack is not None
        assert arg.index is not None
        self._reads([arg.index])
        return self.program.stacks[arg.stack].headers

    def _calculation(self, calculation: Calculation) -> None:
        for item in calculation.inputs:
            if item.expr is not None:
                self._reads([item.expr])
            elif item.header is not None:
                self._whole_header(item.header, read=True, written=False)

    def _parser_op(self, op: ParserOp) -> None:
        if isinstance(op, Primitive):
            self._primitive(op)
        elif isinstance(op, SetField):
            self._write(op.target)
            self._reads([op.value])
        elif isinstance(op, Verify):
            self._reads([op.condition, op.error])
        elif isinstance(op, Advance):
            self._reads([op.bits])
        else:
            assert isinstance(op, Extract)
            if op.length is not None:
                self._reads([op.length])

    def _primitive(self, primitive: Primitive) -> None:
        self.usage.primitives.add(primitive.op)
        for position, arg in enumerate(primitive.args):
            if isinstance(arg, NamedArg):
                self._named(arg)
            elif isinstance(arg, HeaderArg):
                self._header(primitive, position, arg)
            elif position == 0 and primitive.op in _TARGET_ARGUMENT:
                self._target(arg)
            else:
                self._reads([arg])

    def _named(self, arg: NamedArg) -> None:
        if arg.kind == "calculation":
            self._calculation(self.program.calculations[arg.name])
        elif arg.kind == "stack":
            self._stack(arg.name)

    def _header(self, primitive: Primitive, position: int, arg: HeaderArg) -> None:
        names = self._header_names(arg)
        for name in names:
            if primitive.op == "assign_header":
                self._whole_header(name, read=position == 1, written=position == 0)
            elif primitive.op == "mark_to_drop":
                for wanted in ("egress_spec", "mcast_grp"):
                    if any(declared.name == wanted for declared in self.program.headers[name].type.fields):
                        self._write(FieldRef(name, wanted))
            else:
                self.usage.stale.add(name)

    def _target(self, arg: Arg) -> None:
        if isinstance(arg, FieldRef):
            self._write(arg)
            return
        assert isinstance(arg, StackField | StackLast)
        if isinstance(arg, StackField):
            self._reads([arg.index])
        for ref in self._elements(arg.stack, arg.field):
            self._write(ref)


def analyse(program: Program) -> Usage:
    """Return the fields that the program reads and writes."""
    return _Analysis(program).run()
