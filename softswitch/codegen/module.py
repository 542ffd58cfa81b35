"""Assembling the generated module."""

from __future__ import annotations

from softswitch.codegen.source import SourceWriter
from softswitch.codegen.stages import StageWriter
from softswitch.codegen.symbols import Constants, Symbols
from softswitch.program.ir import Program


def generate(program: Program, constants: Constants) -> str:
    """Return the source of a module with one function, `build(rt)`.

    `build` binds the state `rt` (a `Runtime`) and returns `process(frame, port, now) -> (packets, digests)`,
    where `frame` is bytes, `port` the ingress port, `now` microseconds; `packets` is a list of (port, bytes),
    `digests` a list of (name, values).

    Raises:
        UnsupportedProgram: for control flow that cannot be written (a loop in an action).
    """
    symbols = Symbols(program, constants)
    stages = StageWriter(symbols)
    functions = SourceWriter(1)
    stages.write(functions)
    _process(functions, stages)
    out = SourceWriter()
    out.comment(f"generated from {program.name}")
    out.blank()
    out.line("from struct import Struct")
    out.blank()
    out.line("from softswitch import hashes")
    out.blank()
    out.blank()
    with out.block("def build(rt):"):
        out.line("from_bytes = int.from_bytes")
        for name, expression in symbols.bindings.items():
            out.line(f"{name} = {expression}")
        if stages.features.bounded:
            out.line("passes = [0]")
        out.blank()
        out.insert(functions)
        out.line("return process")
    return out.text()


def _process(out: SourceWriter, stages: StageWriter) -> None:
    with out.block("def process(frame, port, now):"):
        out.line("packets = []")
        out.line("digests = []")
        if stages.features.bounded:
            out.line(f"passes[0] = {stages.symbols.constants.pass_limit}")
        if stages.features.reenters_ingress:
            out.line("again = [(frame, port, 0, now & 0xffffffffffff, None)]")
            with out.block("for job in again:", "grows while it runs"):
                out.line("ingress(*job, now, packets, digests, again)")
        else:
            out.line("ingress(frame, port, now, packets, digests)")
        out.line("return packets, digests")
    out.blank()
