"""Check that P4Info and the loaded program describe the same objects, before the pipeline is accepted.

Without it, a P4Info of another build would be accepted and fail later, in the middle of a write.
"""

from __future__ import annotations

from collections.abc import Iterator

from softswitch.core import SwitchCore
from softswitch.p4rt.errors import invalid
from softswitch.p4rt.p4data import leaf_widths
from softswitch.p4rt.schema import MatchKind, Schema, TableInfo
from softswitch.state import Table


def check_program(schema: Schema, core: SwitchCore) -> None:
    """Compare every object of P4Info with the program.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT, listing the differences.
    """
    problems = [*_tables(schema, core), *_arrays(schema, core), *_digests(schema, core)]
    if problems:
        raise invalid("P4Info does not fit p4_device_config: " + "; ".join(problems))


def _tables(schema: Schema, core: SwitchCore) -> Iterator[str]:
    for info in schema.tables.values():
        table = core.tables.get(info.name)
        if table is None:
            yield f"table {info.name} is not in the program"
        else:
            yield from (f"table {info.name}: {problem}" for problem in _table(schema, info, table))


def _table(schema: Schema, info: TableInfo, table: Table) -> Iterator[str]:
    described = [(_core_kind(field.kind), field.width) for field in info.fields]
    real = [(key.kind.value, key.width) for key in table.keys]
    if described != real:
        yield f"key {described} is {real} in the program"
    elif info.needs_priority != table.needs_priority:
        yield "the program has a different match type"
    if info.is_const != table.const:
        yield "the two differ in whether the entries are constant"
    if info.has_direct_counter != table.has_direct_counter:
        yield "the two differ in whether there is a direct counter"
    for action in (schema.actions[action_id] for action_id in info.scopes):
        widths = tuple(param.width for param in action.params)
        if table.param_widths.get(action.name, widths) != widths:
            yield f"action {action.name} has parameters of {table.param_widths[action.name]} bits, not {widths}"
    missing = [name for name in (schema.actions[a].name for a in info.scopes) if name not in table.actions]
    if missing:
        yield f"actions {', '.join(missing)} are not in the program"
    used = {entry.action.name for entry in table.entries()} | ({table.default.name} if table.default else set())
    unknown = sorted(used - schema.action_ids.keys())
    if unknown:
        yield f"actions {', '.join(unknown)} of the program are not in P4Info"


def _arrays(schema: Schema, core: SwitchCore) -> Iterator[str]:
    for info in schema.counters.values():
        counter = core.counters.get(info.name)
        if counter is None or counter.size != info.size:
            yield f"counter {info.name} with {info.size} cells is not in the program"
    for info in schema.registers.values():
        register = core.registers.get(info.name)
        widths = leaf_widths(info.type) if info.type is not None else ()
        if register is None or register.size != info.size or widths != (register.width,):
            cells = f"{info.size} cells of {'+'.join(map(str, widths))} bits"
            yield f"register {info.name} with {cells} is not in the program"


def _digests(schema: Schema, core: SwitchCore) -> Iterator[str]:
    for info in schema.digests.values():
        digest = core.digests.get(info.name)
        widths = leaf_widths(info.type)
        if digest is None or tuple(field.width for field in digest.fields) != widths:
            yield f"digest {info.name} with fields of {widths} bits is not in the program"


def _core_kind(kind: MatchKind) -> str:
    return MatchKind.TERNARY.value if kind is MatchKind.OPTIONAL else kind.value
