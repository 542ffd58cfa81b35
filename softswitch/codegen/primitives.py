"""Code for single primitives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from softswitch.codegen.checksums import CalculationWriter
from softswitch.codegen.expr import Code, ExprWriter, fit
from softswitch.codegen.headers import HeaderWriter
from softswitch.codegen.source import SourceWriter, literal
from softswitch.codegen.symbols import Symbols
from softswitch.program.expressions import Const, Expr, FieldRef, StackField, StackLast
from softswitch.program.ir import Arg, HeaderArg, NamedArg, Primitive

SESSION_MASK = 0x7FFF
"""Clone session ids have 15 bits in BMv2; bit 15 marks a requested clone, so that id 0 works too."""


class PrimitiveWriter:
    """Writes primitives of the parser and the controls."""

    def __init__(self, symbols: Symbols, exprs: ExprWriter) -> None:
        """Write with these variables and the parameters that `exprs` knows."""
        self.exprs = exprs
        self._symbols = symbols
        self._headers = HeaderWriter(symbols)
        self._track_length = symbols.target("standard_metadata.packet_length") is not None
        self._writers: dict[str, Callable[[SourceWriter, Primitive], None]] = {
            "assign": self._assign,
            "assign_VL": self._assign,
            "assign_header": self._assign_header,
            "assign_header_stack": self._assign_stack,
            "add_header": self._add_header,
            "remove_header": self._remove_header,
            "push": self._push,
            "pop": self._pop,
            "count": self._count,
            "register_read": self._register_read,
            "register_write": self._register_write,
            "mark_to_drop": self._drop,
            "drop": self._drop,
            "no_op": self._nothing,
            "log_msg": self._nothing,
            "exit": self._exit,
            "generate_digest": self._digest,
            "clone_ingress_pkt_to_egress": self._clone,
            "clone_egress_pkt_to_egress": self._clone,
            "resubmit": self._resubmit,
            "recirculate": self._recirculate,
            "truncate": self._truncate,
            "modify_field_with_hash_based_offset": self._hash,
            "modify_field_rng_uniform": self._random,
        }

    def with_params(self, params: list[Code]) -> PrimitiveWriter:
        """Return a writer for the body of an action with these parameters."""
        return PrimitiveWriter(self._symbols, self.exprs.with_params(params))

    def write(self, out: SourceWriter, primitive: Primitive) -> None:
        """Write one primitive other than a jump."""
        if primitive.source is not None and primitive.op not in ("no_op", "log_msg"):
            out.comment(" ".join(primitive.source.fragment[:1000].split())[:70], primitive.source)
        self._writers[primitive.op](out, primitive)

    # -- arguments -------------------------------------------------------------------------------------------

    def _value(self, arg: Arg) -> Code:
        assert isinstance(arg, Expr)
        return self.exprs.code(arg)

    def _constant(self, arg: Arg) -> int:
        assert isinstance(arg, Const)
        return arg.value

    def _named(self, arg: Arg) -> str:
        assert isinstance(arg, NamedArg)
        return arg.name

    def _store(self, out: SourceWriter, target: Arg, code: Code) -> None:
        """Assign to a field, or to a field of a stack element that is only known at run time."""
        program = self._symbols.program
        if isinstance(target, FieldRef):
            declared = program.field(target)
            text = code.text if declared.varbit else self.exprs.stored(code, declared)
            out.line(f"{self._symbols.field(target)} = {text}")
            return
        assert isinstance(target, StackField | StackLast)
        index = (
            self._symbols.next(target.stack) if isinstance(target, StackLast) else self.exprs.code(target.index).text
        )
        headers = program.stacks[target.stack].headers
        declared = program.headers[headers[0]].type.field(target.field)
        out.line(f"value = {self.exprs.stored(code, declared)}")
        out.line(f"index = {index}")
        for position, header in enumerate(headers, 1 if isinstance(target, StackLast) else 0):
            with out.block(f"{'if' if header == headers[0] else 'elif'} index == {position}:"):
                out.line(f"{self._symbols.field(FieldRef(header, target.field))} = value")

    def _each_header(self, out: SourceWriter, arg: Arg, write: Callable[[str], None]) -> None:
        """Call `write` for the header, or conditionally for each element that an index may select."""
        assert isinstance(arg, HeaderArg)
        if arg.name is not None:
            write(arg.name)
            return
        assert arg.stack is not None
        assert arg.index is not None
        out.line(f"index = {self.exprs.code(arg.index).text}")
        for position, header in enumerate(self._symbols.program.stacks[arg.stack].headers):
            with out.block(f"{'elif' if position else 'if'} index == {position}:"):
                write(header)

    # -- fields and headers ----------------------------------------------------------------------------------

    def _assign(self, out: SourceWriter, primitive: Primitive) -> None:
        target, value = primitive.args
        if isinstance(value, FieldRef) and self._symbols.program.field(value).varbit:
            self._store(out, target, Code(self._symbols.field(value), None))
            return
        self._store(out, target, self._value(value))

    def _assign_header(self, out: SourceWriter, primitive: Primitive) -> None:
        target, source = primitive.args
        self._each_header(
            out,
            target,
            lambda left: self._each_header(out, source, lambda right: self._headers.assign(out, left, right)),
        )

    def _assign_stack(self, out: SourceWriter, primitive: Primitive) -> None:
        target, source = (self._symbols.program.stacks[self._named(arg)] for arg in primitive.args)
        for left, right in zip(target.headers, source.headers, strict=True):
            self._headers.assign(out, left, right)
        out.line(f"{self._symbols.next(target.name)} = {self._symbols.next(source.name)}")

    def _add_header(self, out: SourceWriter, primitive: Primitive) -> None:
        track = self._track_length
        self._each_header(out, primitive.args[0], lambda name: self._headers.add(out, name, track_length=track))

    def _remove_header(self, out: SourceWriter, primitive: Primitive) -> None:
        track = self._track_length
        self._each_header(out, primitive.args[0], lambda name: self._headers.remove(out, name, track_length=track))

    def _move(self, out: SourceWriter, target: str, source: str) -> None:
        out.line(f"{self._symbols.valid(target)} = {self._symbols.valid(source)}")
        self._headers.copy_fields(out, target, source)

    def _push(self, out: SourceWriter, primitive: Primitive) -> None:
        headers, count, counter = self._shift(primitive)
        for position in range(len(headers) - 1, count - 1, -1):
            self._move(out, headers[position], headers[position - count])
        for header in headers[:count]:
            out.line(f"{self._symbols.valid(header)} = 0")
        out.line(f"{counter} = min({counter} + {count}, {len(headers)})")

    def _pop(self, out: SourceWriter, primitive: Primitive) -> None:
        headers, count, counter = self._shift(primitive)
        for position in range(len(headers) - count):
            self._move(out, headers[position], headers[position + count])
        for header in headers[max(0, len(headers) - count) :]:
            out.line(f"{self._symbols.valid(header)} = 0")
        out.line(f"{counter} = max({counter} - {count}, 0)")

    def _shift(self, primitive: Primitive) -> tuple[tuple[str, ...], int, str]:
        stack = self._symbols.program.stacks[self._named(primitive.args[0])]
        return stack.headers, self._constant(primitive.args[1]), self._symbols.next(stack.name)

    # -- state -----------------------------------------------------------------------------------------------

    @contextmanager
    def _cell(self, out: SourceWriter, arg: Arg, size: int) -> Iterator[str]:
        """Yield the text of an array index; with an index outside the array the primitive does nothing."""
        code = self._value(arg)
        text = code.text
        if not (text.isidentifier() or text.isalnum()):
            out.line(f"index = {text}")
            text = "index"
        if code.bits is not None and 1 << code.bits <= size:
            yield text
        else:
            with out.block(f"if {'0 <= ' if code.bits is None else ''}{text} < {size}:"):
                yield text

    def _count(self, out: SourceWriter, primitive: Primitive) -> None:
        name = self._named(primitive.args[0])
        packets = self._symbols.bind("packets", name, f"c_{name}_packets", f"rt.counters[{literal(name)}].packets")
        octets = self._symbols.bind("octets", name, f"c_{name}_bytes", f"rt.counters[{literal(name)}].octets")
        with self._cell(out, primitive.args[1], self._counter_size(name)) as index:
            out.line(f"{packets}[{index}] += 1")
            out.line(f"{octets}[{index}] += frame_bytes")

    def _counter_size(self, name: str) -> int:
        return self._symbols.program.counters[name].size

    def _register(self, name: str) -> tuple[str, int, int]:
        cells = self._symbols.bind("register", name, f"r_{name}", f"rt.registers[{literal(name)}].cells")
        declared = self._symbols.program.registers[name]
        return cells, declared.size, declared.width

    def _register_read(self, out: SourceWriter, primitive: Primitive) -> None:
        target, register, index = primitive.args
        cells, size, width = self._register(self._named(register))
        with self._cell(out, index, size) as cell:
            self._store(out, target, Code(f"{cells}[{cell}]", width))

    def _register_write(self, out: SourceWriter, primitive: Primitive) -> None:
        register, index, value = primitive.args
        cells, size, width = self._register(self._named(register))
        with self._cell(out, index, size) as cell:
            out.line(f"{cells}[{cell}] = {fit(self._value(value), width)}")

    # -- fate of the packet ----------------------------------------------------------------------------------

    def _drop(self, out: SourceWriter, _: Primitive) -> None:
        egress_spec = self._symbols.target("standard_metadata.egress_spec")
        width = self._symbols.target_width("standard_metadata.egress_spec")
        out.line(f"{egress_spec} = {self._symbols.constants.drop_port & ((1 << width) - 1)}")
        group = self._symbols.target("intrinsic_metadata.mcast_grp")
        if group is not None:
            out.line(f"{group} = 0")

    def _nothing(self, out: SourceWriter, _: Primitive) -> None:
        """Write nothing: logging does not affect packets, and the core has no log."""

    def _exit(self, out: SourceWriter, _: Primitive) -> None:
        out.line("exiting = 1")

    def _digest(self, out: SourceWriter, primitive: Primitive) -> None:
        out.line(f"digest_id = {self._constant(primitive.args[1])}")

    def _clone(self, out: SourceWriter, primitive: Primitive) -> None:
        session = fit(self._value(primitive.args[0]), 15)
        out.line(f"clone_session = {session} | {SESSION_MASK + 1:#x}")
        out.line(f"clone_list = {self._constant(primitive.args[1])}")

    def _resubmit(self, out: SourceWriter, primitive: Primitive) -> None:
        out.line(f"resubmit_id = {self._constant(primitive.args[0])}")

    def _recirculate(self, out: SourceWriter, primitive: Primitive) -> None:
        out.line(f"recirculate_id = {self._constant(primitive.args[0])}")

    def _truncate(self, out: SourceWriter, primitive: Primitive) -> None:
        out.line(f"truncate_to = min(truncate_to, {self._value(primitive.args[0]).text})")

    # -- hash and random -------------------------------------------------------------------------------------

    def _hash(self, out: SourceWriter, primitive: Primitive) -> None:
        target, base, calculation, size = primitive.args
        source = self._symbols.program.calculations[self._named(calculation)]
        result = CalculationWriter(self._symbols, self.exprs).value(out, source)
        out.line(f"value = {result.text}")
        text = f"({self._value(base).text} + value % ({self._value(size).text} or 1))"
        self._store(out, target, Code(text, None))

    def _random(self, out: SourceWriter, primitive: Primitive) -> None:
        target, low, high = primitive.args
        draw = self._symbols.bind("helper", "randint", "randint", "rt.random.randint")
        out.line(f"value = {self._value(low).text}")
        out.line(f"limit = {self._value(high).text}")
        with out.block("if value <= limit:"):
            self._store(out, target, Code(f"{draw}(value, limit)", None))
