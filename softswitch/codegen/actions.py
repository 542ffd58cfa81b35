"""Code for the bodies of actions: primitives, and jumps between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from softswitch.codegen.primitives import PrimitiveWriter
from softswitch.codegen.source import SourceWriter
from softswitch.errors import UnsupportedProgram
from softswitch.program.expressions import Const, Expr
from softswitch.program.ir import Action, Primitive

_NO_CODE = frozenset({"no_op", "log_msg"})


class ActionWriter:
    """Writes action bodies in place. p4c turns `if` and `return` inside actions into forward jumps."""

    def __init__(self, primitives: PrimitiveWriter) -> None:
        """Write with the parameters that `primitives` knows."""
        self._primitives = primitives

    @staticmethod
    def is_empty(action: Action) -> bool:
        """Whether an action does nothing."""
        return all(primitive.op in _NO_CODE for primitive in action.primitives)

    @staticmethod
    def exits(action: Action) -> bool:
        """Whether an action may end the pipeline."""
        return any(primitive.op == "exit" for primitive in action.primitives)

    def write(self, out: SourceWriter, primitives: Sequence[Primitive]) -> None:
        """Write the primitives of an action."""
        for position, primitive in enumerate(primitives):
            target = jump_target(primitive)
            if target is not None and target <= position:
                raise UnsupportedProgram("a loop in an action is not supported by this switch", primitive.place)
        if _is_nested(primitives, 0, len(primitives)):
            self._nested(out, primitives, 0, len(primitives))
        else:
            self._flat(out, primitives)

    def _nested(self, out: SourceWriter, primitives: Sequence[Primitive], start: int, stop: int) -> None:
        """Write primitives start..stop-1, which contain jumps only in the pattern of if and else."""
        position = start
        while position < stop:
            primitive = primitives[position]
            if primitive.op != "_jump_if_zero":
                if primitive.op != "_jump":
                    self._primitives.write(out, primitive)
                position += 1
                continue
            split = _split(primitives, position, stop)
            out.branch(
                self._condition(primitive),
                partial(self._nested, out, primitives, position + 1, split.then_end),
                partial(self._nested, out, primitives, split.else_start, split.end),
            )
            position = split.end

    def _flat(self, out: SourceWriter, primitives: Sequence[Primitive]) -> None:
        """Write straight-line blocks, each under `if step == its first primitive`; all jumps lead forward."""
        starts = {0}
        for position, primitive in enumerate(primitives):
            target = jump_target(primitive)
            if target is not None:
                starts.update((target, position + 1))
        ordered = sorted(start for start in starts if start < len(primitives))
        out.line("step = 0")
        for start, stop in zip(ordered, [*ordered[1:], len(primitives)], strict=True):
            with out.block(f"if step == {start}:"):
                self._block(out, primitives, start, stop)

    def _block(self, out: SourceWriter, primitives: Sequence[Primitive], start: int, stop: int) -> None:
        for primitive in primitives[start:stop]:
            target = jump_target(primitive)
            if target is None:
                self._primitives.write(out, primitive)
            elif primitive.op == "_jump":
                out.line(f"step = {target}")
                return
            else:
                out.line(f"step = {stop} if {self._condition(primitive)} else {target}")
                return
        out.line(f"step = {stop}")

    def _condition(self, jump: Primitive) -> str:
        condition = jump.args[0]
        assert isinstance(condition, Expr)
        return self._primitives.exprs.condition(condition)


class _Split:
    """An `if` in the primitives: the then part ends before `then_end`, the else part is else_start..end-1."""

    def __init__(self, then_end: int, else_start: int, end: int) -> None:
        self.then_end = then_end
        self.else_start = else_start
        self.end = end


def _split(primitives: Sequence[Primitive], position: int, stop: int) -> _Split:
    target = jump_target(primitives[position])
    assert target is not None
    last = primitives[target - 1]
    over = jump_target(last) if last.op == "_jump" and target - 1 > position else None
    if over is not None and target < over <= stop:
        return _Split(target - 1, target, over)
    return _Split(target, target, target)


def _is_nested(primitives: Sequence[Primitive], start: int, stop: int) -> bool:
    """Return whether all jumps in start..stop-1 form the if-else pattern."""
    position = start
    while position < stop:
        primitive = primitives[position]
        if primitive.op == "_jump":
            # A jump to the next primitive is none; every other one needs the flat form.
            if jump_target(primitive) != stop or position + 1 != stop:
                return False
            position += 1
        elif primitive.op == "_jump_if_zero":
            target = jump_target(primitive)
            if target is None or target > stop:
                return False
            split = _split(primitives, position, stop)
            if not _is_nested(primitives, position + 1, split.then_end):
                return False
            if not _is_nested(primitives, split.else_start, split.end):
                return False
            position = split.end
        else:
            position += 1
    return True


def jump_target(primitive: Primitive) -> int | None:
    """Return the position that a jump leads to, or None for other primitives."""
    if primitive.op not in ("_jump", "_jump_if_zero"):
        return None
    target = primitive.args[-1]
    assert isinstance(target, Const)
    return target.value
