"""Code for the ingress and egress controls: conditions, tables, and the actions that tables run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from softswitch.codegen.actions import ActionWriter
from softswitch.codegen.expr import Code, ExprWriter
from softswitch.codegen.flow import FlowWriter, Goto, is_cyclic
from softswitch.codegen.primitives import PrimitiveWriter
from softswitch.codegen.source import Names, SourceWriter, literal
from softswitch.codegen.symbols import Symbols
from softswitch.errors import UnsupportedProgram
from softswitch.match import MatchKind, key_shifts
from softswitch.program.expressions import FieldRef, ParamRef, walk
from softswitch.program.ir import Action, ConditionNode, Pipeline, TableKey, TableNode, expressions
from softswitch.program.load_control import successors


class ControlWriter:
    """Writes one pipeline."""

    def __init__(self, symbols: Symbols) -> None:
        """Write with these variables."""
        self._symbols = symbols
        self._exprs = ExprWriter(symbols)

    def write(self, out: SourceWriter, pipeline: Pipeline) -> None:
        """Write the pipeline; an `exit` leaves it through `break` out of a loop that runs once."""
        if pipeline.first is None:
            return
        nodes = {
            name: _ConditionFlow(self._exprs, node)
            if isinstance(node, ConditionNode)
            else _TableFlow(self._symbols, self._exprs, node)
            for name, node in pipeline.nodes.items()
        }
        if is_cyclic(nodes, pipeline.first):
            raise UnsupportedProgram("control flow with a cycle is not supported by this switch", pipeline.name)
        exits = any(isinstance(node, _TableFlow) and node.exits for node in nodes.values())
        if not exits:
            FlowWriter(out, nodes, pipeline.first, None).write()
            return
        out.line("exiting = 0")
        with out.block("while True:", "left by break: exit, or the end"):
            FlowWriter(out, nodes, pipeline.first, "break").write()
            out.line("break")


class _ConditionFlow:
    repeats = False

    def __init__(self, exprs: ExprWriter, node: ConditionNode) -> None:
        self._exprs = exprs
        self._node = node
        self.successors: Sequence[str | None] = successors(node)

    def write(self, out: SourceWriter, goto: Goto) -> None:
        node = self._node
        out.comment(node.name, node.source)
        if len(self.successors) == 1:
            goto(node.next_true)
            return
        condition = self._exprs.condition(node.condition)
        out.branch(condition, partial(goto, node.next_true), partial(goto, node.next_false))


class _TableFlow:
    """A table: lookup, count, run the action, continue."""

    repeats = False

    def __init__(self, symbols: Symbols, exprs: ExprWriter, node: TableNode) -> None:
        self._symbols = symbols
        self._exprs = exprs
        self._node = node
        self._actions = [symbols.program.actions[action_id] for action_id in node.action_ids]
        self._writer = ActionWriter(PrimitiveWriter(symbols, exprs))
        self.successors: Sequence[str | None] = successors(node)
        self.exits = any(ActionWriter.exits(action) for action in self._actions)

    def write(self, out: SourceWriter, goto: Goto) -> None:
        node = self._node
        out.comment(f"table {node.name}", node.source)
        if not node.keys and node.spec.const_default and not node.spec.direct_counter:
            self._inline_default(out, goto)
            return
        self._lookup(out)
        if node.spec.direct_counter:
            out.line("value = entry[1]")
            out.line("value[0] += 1")
            out.line("value[1] += frame_bytes")
        branching = len(self.successors) > 1
        self._run_action(out, branching)
        if not branching:
            goto(self.successors[0])
        elif node.next_hit_miss is not None:
            out.branch("hit", partial(goto, node.next_hit_miss[0]), partial(goto, node.next_hit_miss[1]))
        else:
            self._branch(out, goto)

    # -- lookup ----------------------------------------------------------------------------------------------

    def _lookup(self, out: SourceWriter) -> None:
        node, symbols = self._node, self._symbols
        table = f"rt.tables[{literal(node.name)}]"
        default = symbols.bind("default", node.name, f"t_{node.name}_default", f"{table}.default_cell")
        needs_hit = node.next_hit_miss is not None and len(self.successors) > 1
        if not node.keys:
            out.line(f"entry = {default}[0]")
            if needs_hit:
                out.line("hit = False")
            return
        find = symbols.bind("find", node.name, f"t_{node.name}_find", f"{table}.lookup.find")
        out.line(f"entry = {find}({self._key()})")
        if needs_hit:
            out.line("hit = entry is not None")
        with out.block("if entry is None:"):
            out.line(f"entry = {default}[0]")

    def _key(self) -> str:
        node = self._node
        values = [self._key_value(key) for key in node.keys]
        if node.spec.match_type is MatchKind.RANGE:
            return f"({', '.join(values)},)"
        if len(values) == 1:
            return values[0]
        if node.spec.match_type is MatchKind.EXACT:
            return f"({', '.join(values)})"
        shifts = key_shifts(node.spec.keys)
        return " | ".join(
            f"({value}) << {shift}" if shift else f"({value})" for value, shift in zip(values, shifts, strict=True)
        )

    def _key_value(self, key: TableKey) -> str:
        """Return a key field's value; a field of an invalid header matches as 0."""
        text = self._exprs.unsigned(key.expr, key.width)
        if key.mask is not None:
            text = f"({text} & {key.mask:#x})"
        if isinstance(key.expr, FieldRef) and key.expr.header in self._symbols.usage.stale:
            text = f"({text} if {self._symbols.valid(key.expr.header)} else 0)"
        return text

    # -- actions ---------------------------------------------------------------------------------------------

    def _inline_default(self, out: SourceWriter, goto: Goto) -> None:
        """Run the constant default action of a table without key: p4c wraps plain statements in those."""
        call = self._node.spec.default
        if call is None:
            goto(self._node.next_none)
            return
        position = [action.name for action in self._actions].index(call.name)
        action = self._actions[position]
        codes = [Code(hex(value), param.width) for value, param in zip(call.args, action.params, strict=True)]
        self._body(out, action, codes)
        goto(self._after(position))

    def _after(self, position: int) -> str | None:
        node = self._node
        return node.next_hit_miss[1] if node.next_hit_miss is not None else node.next_by_action[position]

    def _run_action(self, out: SourceWriter, branching: bool) -> None:
        """Run the entry's action; `branching`: the action's number is needed afterwards."""
        bodies = [item for item in enumerate(self._actions) if not ActionWriter.is_empty(item[1])]
        if bodies or (branching and self._node.next_hit_miss is None):
            out.line("action = entry[0]")
        for number, (position, action) in enumerate(bodies):
            with out.block(f"{'elif' if number else 'if'} action == {position}:"):
                out.comment(f"action {action.name}", action.source)
                self._body(out, action, self._unpack(out, action))

    def _branch(self, out: SourceWriter, goto: Goto) -> None:
        """Continue according to the action that ran; the most frequent successor is the `else`."""
        groups: dict[str | None, list[int]] = {}
        for position, target in enumerate(self._node.next_by_action):
            groups.setdefault(target, []).append(position)
        if self._node.spec.default is None:
            groups.setdefault(self._node.next_none, []).append(-1)
        *named, (rest, _) = sorted(groups.items(), key=lambda item: len(item[1]))
        for number, (target, positions) in enumerate(named):
            test = f"== {positions[0]}" if len(positions) == 1 else f"in {tuple(positions)}"
            with out.block(f"{'elif' if number else 'if'} action {test}:"):
                goto(target)
        with out.block("else:"):
            goto(rest)

    def _unpack(self, out: SourceWriter, action: Action) -> list[Code]:
        """Read the action's arguments that the body uses from the entry."""
        used = _used_params(action)
        first = 2 if self._node.spec.direct_counter else 1
        fresh = Names(())
        # The program's variables do not begin with an underscore, so no parameter hides one.
        names = [f"_{fresh.make(param.name)}" if i in used else "_" for i, param in enumerate(action.params)]
        if len(used) == 1:
            out.line(f"{names[min(used)]} = entry[{first + min(used)}]")
        elif used:
            out.line(f"{', '.join(['_'] * first + names)} = entry")
        return [Code(name, param.width) for name, param in zip(names, action.params, strict=True)]

    def _body(self, out: SourceWriter, action: Action, params: list[Code]) -> None:
        writer = ActionWriter(PrimitiveWriter(self._symbols, self._exprs.with_params(params)))
        writer.write(out, action.primitives)
        if ActionWriter.exits(action):
            with out.block("if exiting:"):
                out.line("break")


def _used_params(action: Action) -> set[int]:
    used: set[int] = set()
    for primitive in action.primitives:
        for expr in expressions(primitive):
            used.update(part.index for part in walk(expr) if isinstance(part, ParamRef))
    return used
