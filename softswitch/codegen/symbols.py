"""The variables of the generated code: one per live field, validity bit, opaque word and stack counter."""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.codegen.layout import Group, Layout, make_layout
from softswitch.codegen.source import Names
from softswitch.codegen.usage import Usage, analyse
from softswitch.program.expressions import FieldRef
from softswitch.program.ir import Field, Header, Program

TARGET_VARIABLES = (
    "payload",
    "frame_bytes",
    "packet_bytes",
    "now",
    "truncate_to",
    "recirculate_id",
    "packets",
    "again",
)
"""Variables of the target that egress may need besides the program's own."""

_RESERVED = (
    *TARGET_VARIABLES,
    *(
        "rt",
        "frame",
        "port",
        "instance_type",
        "keep",
        "digests",
        "offset",
        "size",
        "parser_error",
        "checksum",
    ),
    *(
        "stamp",
        "copies",
        "copy_port",
        "clone_session",
        "clone_list",
        "digest_id",
        "resubmit_id",
        "exiting",
        "entry",
        "action",
        "hit",
        "state",
    ),
    *("step", "index", "value", "limit", "bits", "octets", "session", "rid", "out", "clone", "acc", "total"),
    *(
        "egress",
        "ingress",
        "process",
        "clone_to_egress",
        "build",
        "work",
        "job",
        "passes",
        "from_bytes",
        "len",
    ),
    *("Struct", "hashes", "min", "max", "int", "range"),
)


@dataclass(frozen=True)
class Constants:
    """Numbers that the target builds into the code: drop port, number of passes per packet."""

    drop_port: int
    pass_limit: int


class Symbols:
    """Names of everything that the generated code refers to.

    Attributes:
        program, usage, constants: input of the code generation.
        layouts: word layout of each packet header.
        state: all per-packet variables of the program, in a fixed order.
        bindings: variables bound once when the module is built, with their initial expressions.
    """

    def __init__(self, program: Program, constants: Constants) -> None:
        """Analyse the program and name its variables."""
        self.program = program
        self.usage: Usage = analyse(program)
        self.constants = constants
        self.layouts: dict[str, Layout] = {}
        self.state: list[str] = []
        self.metadata_state: set[str] = set()
        self.bindings: dict[str, str] = {}
        self._names = Names(_RESERVED)
        self._fields: dict[FieldRef, str] = {}
        self._valid: dict[str, str] = {}
        self._next: dict[str, str] = {}
        self._bound: dict[tuple[str, str], str] = {}
        self._varbits: set[str] = set()
        egress_spec = program.target_field("standard_metadata.egress_spec")
        self._always_live = {egress_spec} if egress_spec is not None else set()
        for header in program.headers.values():
            self._declare(header)
        for stack in program.stacks.values():
            self._next[stack.name] = self._variable(f"{stack.name}_next")

    # -- declaration -----------------------------------------------------------------------------------------

    def _variable(self, wish: str) -> str:
        name = self._names.make(wish)
        self.state.append(name)
        return name

    def _declare(self, header: Header) -> None:
        if not header.metadata:
            self._valid[header.name] = self._variable(f"{header.name}_valid")
        before = len(self.state)
        for declared in header.type.fields:
            ref = FieldRef(header.name, declared.name)
            if self.is_live(ref) or declared.varbit:
                self._field_variable(header, declared)
        if header.metadata:
            self.metadata_state.update(self.state[before:])
            return
        self.layouts[header.name] = make_layout(
            header.type,
            lambda declared: self.is_live(FieldRef(header.name, declared.name)),
            lambda declared: FieldRef(header.name, declared.name) in self.usage.written,
            lambda group, position: self._word_name(header, group, position),
        )

    def is_live(self, ref: FieldRef) -> bool:
        """Whether the field has a variable."""
        return self.usage.live(ref) or ref in self._always_live

    def _field_variable(self, header: Header, declared: Field) -> None:
        ref = FieldRef(header.name, declared.name)
        if ref in self._fields:
            return
        wish = declared.name if header.name == "scalars" else f"{header.name}_{declared.name}"
        self._fields[ref] = self._variable(wish)
        if declared.varbit:
            self._varbits.add(self._fields[ref])

    def _word_name(self, header: Header, group: Group, position: int) -> str:
        for declared, _ in group.fields:
            self._field_variable(header, declared)
        if group.is_field:
            return self._fields[FieldRef(header.name, group.fields[0][0].name)]
        name = self._names.make(f"{header.name}_word{group.offset + position}")
        if not group.rebuilt:
            self.state.append(name)
        return name

    # -- look-up ---------------------------------------------------------------------------------------------

    def field(self, ref: FieldRef) -> str:
        """Return a field's variable."""
        return self._fields[ref]

    def valid(self, header: str) -> str:
        """Return the variable of a header's validity; metadata is always valid."""
        return self._valid.get(header, "1")

    def is_metadata(self, header: str) -> bool:
        """Whether the instance is metadata."""
        return self.program.headers[header].metadata

    def next(self, stack: str) -> str:
        """Return the variable that counts a stack's elements in use."""
        return self._next[stack]

    def initial(self, variable: str) -> str:
        """Return the initial value of a state variable."""
        return 'b""' if variable in self._varbits else "0"

    def target(self, name: str) -> str | None:
        """Return the variable of a target field by name, None if it is not used."""
        ref = self.program.target_field(name)
        return None if ref is None else self._fields.get(ref)

    def target_width(self, name: str) -> int:
        """Return the width of a target field by name."""
        ref = self.program.target_field(name)
        assert ref is not None
        return self.program.field(ref).width

    # -- bindings --------------------------------------------------------------------------------------------

    def bind(self, kind: str, name: str, wish: str, expression: str) -> str:
        """Return the variable bound to `expression` at build time; one per (kind, name)."""
        key = (kind, name)
        if key not in self._bound:
            self._bound[key] = self._names.make(wish)
            self.bindings[self._bound[key]] = expression
        return self._bound[key]

    def local(self, wish: str) -> str:
        """Return a fresh name for a local variable."""
        return self._names.make(wish)
