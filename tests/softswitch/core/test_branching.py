"""Control flow: the program's own branches, and the writer of flow graphs on random graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.codegen.flow import FlowWriter, Goto, is_cyclic, topological_order
from softswitch.codegen.source import SourceWriter
from tests.softswitch.core_rig import load, only, pack, unpack

CORE = load("branching")


def bit(number: int, condition: bool = True) -> int:
    return condition << number


def model(data: int, mode: int) -> int:
    """Return the trace that branching.p4 leaves; a transcription of its source."""
    end = bit(12)
    trace = level = 0
    if mode == 0xF0:
        if data & 1:
            return 0x0101 | end
        trace |= bit(4)
    if mode == 0xF1:
        return trace | end
    action = {1: "mark", 2: "classify", 3: "leave", 4: "maybe_leave", 5: "mark"}.get(mode)
    if action == "mark":
        trace |= (0x0800 if mode == 1 else 0x0400) | bit(5)
    elif action == "classify":
        if data < 10:
            level = 2 if data == 3 else 1
            trace |= bit(0, level == 1)
        else:
            level = 3 if data > 200 else 4
            trace |= bit(1, level == 4)
        trace |= bit(2, level in (1, 4))
        if level == 2:
            return trace | end
        trace |= bit(6)
    elif action == "leave":
        return trace | bit(15) | end
    elif action == "maybe_leave":
        if data == 77:
            return trace | bit(14) | end
        trace |= bit(13)
    if data > 100:
        if mode > 100:
            trace |= bit(7)
        else:
            trace |= bit(8)
            if data == 150:
                return trace | end
    return trace | bit(9) | end


def test_every_path_through_the_program() -> None:
    for mode in (0, 1, 2, 3, 4, 5, 6, 101, 0xF0, 0xF1):
        for data in range(256):
            _, out = only(CORE, pack((data, 8), (mode, 8), (0, 16)))
            assert (mode, data, unpack(out, 8, 8, 16)[2]) == (mode, data, model(data, mode))


class Node:
    """Notes its name, then goes to the successor that the next of `choices` picks."""

    repeats = False

    def __init__(self, name: str, successors: Sequence[str | None]) -> None:
        self.name = name
        self.successors = successors

    def write(self, out: SourceWriter, goto: Goto) -> None:
        out.line(f"path.append({self.name!r})")
        if len(self.successors) == 1:
            goto(self.successors[0])
            return
        out.line("choice = choices.pop()")
        for number, target in enumerate(self.successors):
            with out.block(f"{'elif' if number else 'if'} choice % {len(self.successors)} == {number}:"):
                goto(target)


def walk(nodes: dict[str, Node], choices: list[int]) -> list[str]:
    path: list[str] = []
    name: str | None = "n0"
    while name is not None:
        path.append(name)
        node = nodes[name]
        many = len(node.successors) > 1
        name = node.successors[choices.pop() % len(node.successors) if many else 0]
    return path


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Node]:
    """Draw an acyclic graph: every node leads to later nodes or to the end."""
    count = draw(st.integers(1, 12))
    nodes: dict[str, Node] = {}
    for number in range(count):
        later: list[str | None] = [None, *(f"n{k}" for k in range(number + 1, count))]
        targets = draw(st.lists(st.sampled_from(later), min_size=1, max_size=3, unique=True))
        nodes[f"n{number}"] = Node(f"n{number}", targets)
    return nodes


@settings(max_examples=100, deadline=None)
@given(
    nodes=graphs(),
    seeds=st.lists(st.lists(st.integers(0, 5), min_size=12, max_size=12), min_size=5, max_size=5),
)
def test_written_flow_takes_the_same_path_and_no_node_is_written_twice(
    nodes: dict[str, Node], seeds: list[list[int]]
) -> None:
    out = SourceWriter()
    with out.block("def run(choices, path):"), out.block("while True:"):
        FlowWriter(out, nodes, "n0", "break").write()
        out.line("break")
    namespace: dict[str, Any] = {}
    exec(out.text(), namespace)
    for choices in seeds:
        path: list[str] = []
        namespace["run"](list(choices), path)
        assert path == walk(nodes, list(choices))
    for name in nodes:
        assert out.text().count(f"path.append({name!r})") == (name in topological_order(nodes, "n0"))


def test_a_long_chain_of_nested_branches_stays_within_pythons_limits() -> None:
    count = 150
    nodes = {f"n{k}": Node(f"n{k}", [f"n{k + 1}", None]) for k in range(count)}
    nodes[f"n{count}"] = Node(f"n{count}", [None])
    out = SourceWriter()
    with out.block("def run(choices, path):"):
        FlowWriter(out, nodes, "n0", None).write()
    namespace: dict[str, Any] = {}
    exec(out.text(), namespace)
    path: list[str] = []
    namespace["run"]([0] * count, path)
    assert len(path) == count + 1


def test_cycles_are_found() -> None:
    loop = {"n0": Node("n0", ["n1"]), "n1": Node("n1", ["n0", None])}
    assert is_cyclic(loop, "n0")
    assert not is_cyclic({"n0": Node("n0", ["n1"]), "n1": Node("n1", [None])}, "n0")
