"""Every operator of expressions against Python's integers, on random operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.softswitch.core_rig import load, only, pack, unpack

WIDTHS = (8, 32, 32, 8, 32, 8, 16, 16, 16, 3, 13, 48)
CORE = load("arithmetic")
M32 = 0xFFFFFFFF


@dataclass
class Operands:
    op: int
    a: int
    b: int
    shift: int
    result: int
    flag: int
    sa: int
    sb: int
    sresult: int
    x: int
    y: int
    wide: int


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def flags(*bits: bool) -> int:
    return sum(bit << position for position, bit in enumerate(reversed(bits)))


def result(compute: Callable[[Operands], int]) -> Callable[[Operands], None]:
    def apply(o: Operands) -> None:
        o.result = compute(o) & M32

    return apply


def signed_result(compute: Callable[[int, int, Operands], int]) -> Callable[[Operands], None]:
    def apply(o: Operands) -> None:
        o.sresult = compute(signed(o.sa, 16), signed(o.sb, 16), o) & 0xFFFF

    return apply


def set_flag(compute: Callable[[Operands], int]) -> Callable[[Operands], None]:
    def apply(o: Operands) -> None:
        o.flag = compute(o)

    return apply


def narrow_add(o: Operands) -> None:
    o.x = (o.x + o.y) & 7


def wide_multiply(o: Operands) -> None:
    o.wide = (o.a * o.b) & 0xFFFFFFFFFFFF


def byte_swap(o: Operands) -> None:
    o.wide = (o.wide & 0xFF) << 40 | o.wide >> 8


MODEL: dict[int, Callable[[Operands], None]] = {
    0: result(lambda o: o.a + o.b),
    1: result(lambda o: o.a - o.b),
    2: result(lambda o: o.a * o.b),
    3: result(lambda o: min(o.a + o.b, M32)),
    4: result(lambda o: max(o.a - o.b, 0)),
    5: result(lambda o: o.a & o.b),
    6: result(lambda o: o.a | o.b),
    7: result(lambda o: o.a ^ o.b),
    8: result(lambda o: ~o.a),
    9: result(lambda o: -o.a),
    10: result(lambda o: o.a << o.shift),
    11: result(lambda o: o.a >> o.shift),
    13: result(lambda o: o.a >> 8 & 0xFFFF),
    14: result(lambda o: o.a & ~0xFF00 | o.shift << 8),
    15: result(lambda o: o.x << 29 | o.y << 16 | o.a & 0xFFFF),
    16: result(lambda o: max(o.a, o.b)),
    17: set_flag(lambda o: flags(o.a == o.b, o.a != o.b, o.a < o.b, o.a <= o.b, o.a > o.b, o.a >= o.b)),
    18: set_flag(lambda o: int((o.a == 0 or o.b == 0) and o.shift != 0)),
    19: signed_result(lambda a, b, _: a + b),
    20: signed_result(lambda a, b, _: a - b),
    21: signed_result(lambda a, b, _: clamp(a + b, -32768, 32767)),
    22: signed_result(lambda a, b, _: clamp(a - b, -32768, 32767)),
    23: signed_result(lambda a, _, o: a >> o.shift),
    24: set_flag(lambda o: int(signed(o.sa, 16) < signed(o.sb, 16))),
    25: result(lambda o: signed(o.sa, 16)),
    26: narrow_add,
    27: wide_multiply,
    28: byte_swap,
    99: lambda o: None,
}


def edge(bits: int) -> st.SearchStrategy[int]:
    top = (1 << bits) - 1
    return st.one_of(st.sampled_from([0, 1, top, top >> 1, (top >> 1) + 1]), st.integers(0, top))


OPERANDS = st.builds(
    Operands,
    op=st.just(0),
    a=edge(32),
    b=edge(32),
    shift=st.one_of(st.integers(0, 33), edge(8)),
    result=edge(32),
    flag=edge(8),
    sa=edge(16),
    sb=edge(16),
    sresult=edge(16),
    x=edge(3),
    y=edge(13),
    wide=edge(48),
)


@pytest.mark.parametrize("op", sorted(MODEL))
@settings(max_examples=40, deadline=None)
@given(operands=OPERANDS)
@example(operands=Operands(0, M32, M32, 255, 0, 0, 0x8000, 0x8000, 0, 7, 8191, 1 << 47))
def test_operator_agrees_with_python(op: int, operands: Operands) -> None:
    operands.op = op
    values = list(vars(operands).values())
    port, frame = only(CORE, pack(*zip(values, WIDTHS, strict=True)))
    MODEL[op](operands)
    assert port == 1
    assert unpack(frame, *WIDTHS) == list(vars(operands).values())


def test_every_constant_entry_is_modelled() -> None:
    ops = {entry.match[0].value for entry in CORE.tables["TestIngress.operation"].entries()}
    assert ops == set(MODEL) - {99}
