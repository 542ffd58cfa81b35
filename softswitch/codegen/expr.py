"""Expressions as Python source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softswitch.codegen.symbols import Symbols
from softswitch.errors import UnsupportedProgram
from softswitch.program.expressions import (
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
from softswitch.program.ir import Field
from softswitch.program.limits import MAX_EXPRESSION_TEXT

MAX_SHIFT = 4096
"""A left shift by this much or more gives 0: no P4 value is that wide, and the mask that p4c adds would clear all bits.
It keeps a packet from making the switch compute with gigantic numbers."""


@dataclass(frozen=True)
class Code:
    """An integer expression. If `bits` is given the value is known to be in 0 .. 2**bits - 1."""

    text: str
    bits: int | None

    def __post_init__(self) -> None:
        """Refuse text that grows without limit: some operators write an operand twice."""
        check_text(self.text)


def check_text(text: str) -> str:
    """Return the code of an expression, unless it is too long."""
    if len(text) > MAX_EXPRESSION_TEXT:
        what = f"an expression that takes more than {MAX_EXPRESSION_TEXT} characters of generated code"
        raise UnsupportedProgram(f"{what} is not supported by this switch", "program")
    return text


class ExprWriter:
    """Writes expressions; `params` are the codes of the current action's parameters."""

    def __init__(self, symbols: Symbols, params: Sequence[Code] = ()) -> None:
        """Write with these variables and parameters."""
        self._symbols = symbols
        self._params = params

    def with_params(self, params: Sequence[Code]) -> ExprWriter:
        """Return a writer for the body of an action with these parameters."""
        return ExprWriter(self._symbols, params)

    # -- integers --------------------------------------------------------------------------------------------

    def code(self, expr: Expr) -> Code:
        """Return an integer expression."""
        if isinstance(expr, Const):
            return _const(expr.value)
        if isinstance(expr, FieldRef):
            declared = self._symbols.program.field(expr)
            return Code(self._symbols.field(expr), None if declared.signed else declared.width)
        if isinstance(expr, ValidRef):
            return Code(self._symbols.valid(expr.header), 1)
        if isinstance(expr, ParamRef):
            return self._params[expr.index]
        if isinstance(expr, Lookahead):
            return self._lookahead(expr)
        if isinstance(expr, StackCount):
            text = self._symbols.next(expr.stack)
            return Code(text, 32) if expr.delta == 0 else Code(f"({text} - 1)", None)
        if isinstance(expr, StackLast):
            return self._choice(expr.stack, expr.field, self._symbols.next(expr.stack), first=1)
        if isinstance(expr, StackField):
            return self._choice(expr.stack, expr.field, self.code(expr.index).text, first=0)
        if isinstance(expr, BoolConst):
            return Code(str(int(expr.value)), 1)
        if is_bool(expr):
            return Code(f"(1 if {self.condition(expr)} else 0)", 1)
        assert isinstance(expr, Op)
        return self._operation(expr)

    def _lookahead(self, expr: Lookahead) -> Code:
        first, last = expr.offset // 8, (expr.offset + expr.width + 7) // 8
        shift = 8 * last - expr.offset - expr.width
        if last - first == 1:
            text = f"frame[offset + {first}]"
        else:
            text = f'from_bytes(frame[offset + {first} : offset + {last}], "big")'
        if shift:
            text = f"({text} >> {shift})"
        if 8 * (last - first) - shift > expr.width:
            text = f"({text} & {_mask(expr.width)})"
        return Code(text, expr.width)

    def _choice(self, stack: str, name: str, index: str, first: int) -> Code:
        """Pick a field of a stack's element by a number known at run time; outside the stack it reads 0."""
        text = "0"
        headers = self._symbols.program.stacks[stack].headers
        for position, header in reversed(list(enumerate(headers, first))):
            text = f"{self._symbols.field(FieldRef(header, name))} if {index} == {position} else {text}"
        declared = self._symbols.program.headers[headers[0]].type.field(name)
        return Code(f"({text})", None if declared.signed else declared.width)

    def _operation(self, expr: Op) -> Code:
        op = expr.op
        if op == "?":
            left, right = self.code(expr.args[1]), self.code(expr.args[2])
            text = f"({left.text} if {self.condition(expr.args[0])} else {right.text})"
            return Code(text, _largest(left.bits, right.bits))
        if op == "b2d":
            inner = expr.args[0]
            return self.code(inner) if is_bool(inner) else self.code(Op("b2d", (inner,)))
        if op == "~":
            return Code(f"(~{self.code(expr.args[0]).text})", None)
        left, right = self.code(expr.args[0]), self.code(expr.args[1])
        if op in ("two_comp_mod", "sat_cast", "usat_cast"):
            return self._cast(op, left, expr.args[1])
        if op == "<<":
            return self._shift_left(left, right, expr.args[1])
        if op == "&" and isinstance(expr.args[1], Const):
            mask = expr.args[1].value
            if left.bits is not None and mask == (1 << mask.bit_length()) - 1:
                return Code(fit(left, mask.bit_length()), min(left.bits, mask.bit_length()))
        if op in ("/", "%"):
            python_op = "//" if op == "/" else "%"
            bits = None if right.bits is None else left.bits
            if isinstance(expr.args[1], Const) and expr.args[1].value > 0:
                return Code(f"({left.text} {python_op} {right.text})", bits)
            return Code(f"({left.text} {python_op} {right.text} if {right.text} else 0)", bits)
        if op == ">>" and right.bits is None:
            return Code(f"({left.text} >> {right.text} if {right.text} >= 0 else 0)", left.bits)
        return Code(f"({left.text} {op} {right.text})", _result_bits(op, left.bits, right.bits))

    def _shift_left(self, left: Code, right: Code, amount: Expr) -> Code:
        if isinstance(amount, Const) and 0 <= amount.value < MAX_SHIFT:
            return Code(f"({left.text} << {right.text})", None if left.bits is None else left.bits + amount.value)
        if right.bits is not None and 1 << right.bits <= MAX_SHIFT:
            return Code(f"({left.text} << {right.text})", None)
        return Code(f"({left.text} << {right.text} if 0 <= {right.text} < {MAX_SHIFT} else 0)", None)

    def _cast(self, op: str, operand: Code, width: Expr) -> Code:
        assert isinstance(width, Const)
        bits = width.value
        low, high = (0, (1 << bits) - 1) if op == "usat_cast" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        if op == "two_comp_mod":
            return Code(wrap_signed(operand.text, bits), None)
        return Code(f"min(max({operand.text}, {low:#x}), {high:#x})", bits if op == "usat_cast" else None)

    # -- booleans --------------------------------------------------------------------------------------------

    def condition(self, expr: Expr) -> str:
        """Return an expression to be tested for truth (not necessarily a `bool`)."""
        return check_text(self._condition(expr))

    def _condition(self, expr: Expr) -> str:
        if isinstance(expr, BoolConst):
            return str(expr.value)
        if not is_bool(expr):
            inner = expr.args[0] if isinstance(expr, Op) and expr.op == "b2d" else expr
            return self.condition(inner) if inner is not expr else self.code(expr).text
        assert isinstance(expr, Op)
        if expr.op == "d2b":
            return self.code(expr.args[0]).text
        if expr.op == "not":
            return f"(not {self.condition(expr.args[0])})"
        if expr.op == "?":
            cond, left, right = (self.condition(arg) for arg in expr.args)
            return f"({left} if {cond} else {right})"
        if expr.op in ("and", "or"):
            return f"({self.condition(expr.args[0])} {expr.op} {self.condition(expr.args[1])})"
        left, right = (f"bool({self.condition(arg)})" if is_bool(arg) else self.code(arg).text for arg in expr.args)
        return f"({left} {expr.op} {right})"

    # -- values in a given width -----------------------------------------------------------------------------

    def unsigned(self, expr: Expr, width: int) -> str:
        """Return the expression's bits as an unsigned number of `width` bits."""
        return fit(self.code(expr), width)

    def stored(self, code: Code, declared: Field) -> str:
        """Return the value of a field's variable after `code` is assigned to it."""
        return wrap_signed(code.text, declared.width) if declared.signed else fit(code, declared.width)


def fit(code: Code, width: int) -> str:
    """Return `code` truncated to `width` bits; the mask is omitted if it would change nothing."""
    if code.bits is not None and code.bits <= width:
        return code.text
    return f"({code.text} & {_mask(width)})"


def wrap_signed(text: str, width: int) -> str:
    """Return an integer expression taken modulo 2**width into the two's complement range."""
    half = 1 << (width - 1)
    return f"((({text} + {half:#x}) & {_mask(width)}) - {half:#x})"


def _mask(width: int) -> str:
    return f"{(1 << width) - 1:#x}"


def _const(value: int) -> Code:
    text = str(value) if -10 < value < 10 else hex(value)
    return Code(text, max(1, value.bit_length())) if value >= 0 else Code(f"({text})", None)


def _largest(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else max(left, right)


def _result_bits(op: str, left: int | None, right: int | None) -> int | None:
    if op == "&":  # a non-negative operand bounds the result, whatever the other one is
        known = [bits for bits in (left, right) if bits is not None]
        return min(known, default=None)
    if op == ">>":
        return left
    largest = _largest(left, right)
    if largest is None or op == "-":
        return None
    if op == "+":
        return largest + 1
    if op == "*":
        assert left is not None
        assert right is not None
        return left + right
    return largest
