"""Writing an acyclic flow graph as nested `if` statements.

Nodes are written in place, each branch up to the node where all branches meet again (the immediate postdominator). If
branches share nodes before that point, nesting would duplicate code; such a region is written flat instead: every node
under `if step == number`, in topological order, and each node sets the number of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from softswitch.codegen.source import SourceWriter

Goto = Callable[[str | None], None]
"""Writes the transfer to a node (None: the end) at the current indentation."""

_DEEPEST = 40
"""Indentation from which regions are written flat: Python allows 100 levels."""


class FlowNode(Protocol):
    """A node of the graph."""

    @property
    def successors(self) -> Sequence[str | None]:
        """The nodes that can follow, each once."""

    @property
    def repeats(self) -> bool:
        """Whether the node's code transfers to the same node in several places."""

    def write(self, out: SourceWriter, goto: Goto) -> None:
        """Write the node's code; on every path `goto` is called once, last."""


class FlowWriter:
    """Writes one graph. `end`, if given, is the statement that leaves it from inside a flat region."""

    def __init__(self, out: SourceWriter, nodes: Mapping[str, FlowNode], first: str, end: str | None) -> None:
        """Prepare to write the graph that begins at `first` to `out`."""
        self._out = out
        self._nodes = nodes
        self._first = first
        self._end = end
        self._order = topological_order(nodes, first)
        self._number = {name: number for number, name in enumerate(self._order, 1)}
        self._join = self._joins()

    def write(self) -> None:
        """Write the whole graph."""
        self._region(self._first, None)

    def _joins(self) -> dict[str, str | None]:
        """Return each node's immediate postdominator (None: the end)."""
        join: dict[str, str | None] = {}
        end_rank = len(self._order) + 1

        def rank(name: str | None) -> int:
            return end_rank if name is None else self._number[name]

        for name in reversed(self._order):
            meeting: str | None = self._nodes[name].successors[0]
            for other in self._nodes[name].successors[1:]:
                while meeting != other:
                    if rank(meeting) < rank(other):
                        assert meeting is not None
                        meeting = join[meeting]
                    else:
                        assert other is not None
                        other = join[other]
            join[name] = meeting
        return join

    def _region(self, first: str | None, stop: str | None) -> None:
        current = first
        while current != stop:
            assert current is not None
            node = self._nodes[current]
            join = self._join[current]
            if len(node.successors) == 1:
                node.write(self._out, _fall_through)
            elif self._shares(node, join) or self._out.depth > _DEEPEST:
                self._flat(current, join)
            else:
                node.write(self._out, partial(self._region, stop=join))
            current = join

    def _reachable(self, first: str | None, stop: str | None) -> set[str]:
        found: set[str] = set()
        open_nodes = [first]
        while open_nodes:
            name = open_nodes.pop()
            if name is None or name == stop or name in found:
                continue
            found.add(name)
            open_nodes.extend(self._nodes[name].successors)
        return found

    def _shares(self, node: FlowNode, join: str | None) -> bool:
        if node.repeats:
            return True
        seen: set[str] = set()
        for successor in node.successors:
            branch = self._reachable(successor, join)
            if seen & branch:
                return True
            seen |= branch
        return False

    def _flat(self, first: str, stop: str | None) -> None:
        inside = self._reachable(first, stop)

        def goto(target: str | None) -> None:
            if target is None and self._end is not None:
                self._out.line(self._end)
            elif target is None or target == stop:
                self._out.line("step = 0")
            else:
                self._out.line(f"step = {self._number[target]}", target)

        for name in [name for name in self._order if name in inside]:
            if name == first:
                self._nodes[name].write(self._out, goto)
            else:
                with self._out.block(f"if step == {self._number[name]}:"):
                    self._nodes[name].write(self._out, goto)


def _fall_through(_: str | None) -> None:
    """Write nothing: control arrives at the next node anyway."""


def topological_order(nodes: Mapping[str, FlowNode], first: str) -> list[str]:
    """Return the nodes reachable from `first` so that every edge leads forward.

    In a graph with cycles the order is still a reverse postorder, ignoring backward edges.
    """
    done: list[str] = []
    state: dict[str, bool] = {}  # False: being visited, True: done
    stack: list[tuple[str, list[str | None]]] = [(first, list(nodes[first].successors))]
    state[first] = False
    while stack:
        name, rest = stack[-1]
        while rest:
            target = rest.pop()
            if target is not None and target not in state:
                state[target] = False
                stack.append((target, list(nodes[target].successors)))
                break
        else:
            stack.pop()
            state[name] = True
            done.append(name)
    return done[::-1]


def is_cyclic(nodes: Mapping[str, FlowNode], first: str) -> bool:
    """Return whether a cycle can be reached from `first`."""
    number = {name: position for position, name in enumerate(topological_order(nodes, first))}
    return any(
        target is not None and number[target] <= number[name] for name in number for target in nodes[name].successors
    )
