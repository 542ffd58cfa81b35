"""Reading a whole BMv2 JSON (v1model, as p4c writes it) into a `Program`."""

from __future__ import annotations

import json

from softswitch.arrays import counter_bytes, register_bytes
from softswitch.errors import ErrorKind, UnsupportedProgram
from softswitch.program.cursor import Cursor
from softswitch.program.expressions import Const, Expr, FieldRef
from softswitch.program.ir import (
    Action,
    CalcInput,
    Calculation,
    Checksum,
    CounterDef,
    Field,
    FieldList,
    Header,
    HeaderType,
    LearnList,
    Param,
    ParseState,
    Pipeline,
    Program,
    RegisterDef,
    Stack,
)
from softswitch.program.limits import MAX_FIELDS, MAX_HEADER_BYTES, MAX_STATE_BYTES, MAX_TEXT
from softswitch.program.load_control import PipelineReader
from softswitch.program.load_expr import Scope
from softswitch.program.load_parser import ParserReader
from softswitch.program.load_primitive import PrimitiveReader

ALGORITHMS = frozenset(
    {"csum16", "cksum16", "crc16", "crc16_custom", "crc32", "crc32_custom", "crcCCITT", "identity", "xor16"}
)
"""Supported hash algorithms; the custom ones with BMv2's initial configuration."""

TARGET_METADATA = frozenset({"standard_metadata", "intrinsic_metadata", "queueing_metadata"})
"""Metadata instances whose fields the target reads and writes."""

_REFUSED = {
    "header_unions": "a header union",
    "header_union_stacks": "a stack of header unions",
    "parse_vsets": "a parser value set",
    "meter_arrays": "a meter",
    "extern_instances": "an extern instance",
}


def load_program(config: bytes | str | dict[str, object]) -> Program:
    """Read a BMv2 JSON (its text, or the parsed object).

    Raises:
        UnsupportedProgram: the text is not a BMv2 JSON, or uses a feature that this switch lacks.
    """
    if isinstance(config, dict):
        return _Reader(Cursor(config)).read()
    if len(config) > MAX_TEXT:
        what = f"a BMv2 JSON of {len(config)} bytes is not supported by this switch, only up to {MAX_TEXT}"
        raise UnsupportedProgram(what, "top level")
    try:
        parsed = json.loads(config)
    except ValueError as error:
        raise UnsupportedProgram(f"not a JSON text: {error}", "top level", ErrorKind.INVALID_ARGUMENT) from None
    except RecursionError:
        what = "a JSON text that is nested so deeply is not supported by this switch"
        raise UnsupportedProgram(what, "top level") from None
    return _Reader(Cursor(parsed)).read()


class _Reader:
    """Reads the parts in the order of their references, collecting names in a scope."""

    def __init__(self, root: Cursor) -> None:
        self._root = root
        self._scope = Scope()

    def read(self) -> Program:
        root, scope = self._root, self._scope
        version = root["__meta__"]["version"]
        if version[0].integer() != 2:
            raise version.unsupported(f"version {version[0].integer()} of the BMv2 JSON")
        for key, construct in _REFUSED.items():
            for item in root.each(key):
                raise item.unsupported(construct)
        self._headers()
        counters, registers = self._arrays()
        scope.counters.update(counters)
        scope.registers.update(registers)
        for item in root.each("calculations"):
            scope.calculations[item["name"].new_name(scope.calculations)] = self._calculation(item)
        actions: dict[int, Action] = {}
        for item in root["actions"]:
            actions[item["id"].new_id(actions)] = self._action(item)
        states, first_state = self._parser()
        pipelines = PipelineReader(scope, actions)
        name = root.get("program")
        field_lists: dict[int, FieldList] = {}
        for item in root.each("field_lists"):
            field_lists[item["id"].new_id(field_lists)] = self._field_list(item)
        learn_lists: dict[int, LearnList] = {}
        for item in root.each("learn_lists"):
            learn_lists[item["id"].new_id(learn_lists)] = self._learn_list(item)
        program = Program(
            name="unnamed" if name is None else name.text().rsplit("/", 1)[-1],
            headers=scope.headers,
            stacks=scope.stacks,
            aliases={item[0].text(): self._target_field(item[1]) for item in root.each("field_aliases")},
            errors={item[0].text(): item[1].integer() for item in root.each("errors")},
            actions=actions,
            parse_states=states,
            first_state=first_state,
            ingress=self._pipeline("ingress", pipelines),
            egress=self._pipeline("egress", pipelines),
            deparser=self._deparser(),
            checksums=tuple(self._checksum(item) for item in root.each("checksums")),
            calculations=scope.calculations,
            field_lists=field_lists,
            learn_lists=learn_lists,
            counters=counters,
            registers=registers,
        )
        if program.target_field("standard_metadata.egress_spec") is None:
            raise root.unsupported("a program without standard_metadata.egress_spec")
        return program

    def _target_field(self, node: Cursor) -> FieldRef:
        """Read the field of an alias: the target writes and reads it."""
        ref = self._scope.plain_field(node)
        if not self._scope.headers[ref.header].metadata or self._scope.declared(ref).signed:
            raise node.malformed(f"{ref.header}.{ref.field} is not an unsigned field of metadata")
        return ref

    # -- headers ---------------------------------------------------------------------------------------------

    def _headers(self) -> None:
        types: dict[str, HeaderType] = {}
        for item in self._root["header_types"]:
            types[item["name"].new_name(types)] = self._header_type(item)
        by_id: dict[int, str] = {}
        fields = octets = 0
        for item in self._root["headers"]:
            name, type_name = item["name"].new_name(self._scope.headers), item["header_type"].text()
            if type_name not in types:
                raise item.malformed(f"unknown header type {type_name!r}")
            metadata = item["metadata"].flag()
            self._check_layout(item, types[type_name], metadata)
            self._scope.headers[name] = Header(name, types[type_name], metadata)
            by_id[item["id"].new_id(by_id)] = name
            fields += len(types[type_name].fields)
            octets += types[type_name].fixed_bits // 8
            if fields > MAX_FIELDS or octets > MAX_HEADER_BYTES:
                limits = f"{MAX_FIELDS} fields or {MAX_HEADER_BYTES} bytes"
                raise item.unsupported(f"a program whose headers have more than {limits} together")
        for item in self._root.each("header_stacks"):
            ids = [part.integer() for part in item["header_ids"]]
            if not ids or any(header_id not in by_id for header_id in ids):
                raise item.malformed("the stack refers to unknown headers")
            elements = [self._scope.headers[by_id[header_id]] for header_id in ids]
            if any(element.metadata or element.type is not elements[0].type for element in elements):
                raise item.malformed("the elements of the stack are not packet headers of one type")
            name = item["name"].new_name(self._scope.stacks)
            self._scope.stacks[name] = Stack(name, tuple(element.name for element in elements))

    def _header_type(self, node: Cursor) -> HeaderType:
        fields: list[Field] = []
        for item in node["fields"]:
            name = item[0].text()
            signed = len(item) > 2 and item[2].flag()
            if len(item) > 3 and item[3].flag():
                raise item.unsupported(f"the saturating field '{name}'")
            if item[1].is_text("*"):
                fields.append(Field(name, 0, False, True))
            else:
                fields.append(Field(name, item[1].width(2 if signed else 1), signed, False))
        if sum(item.varbit for item in fields) > 1:
            raise node.malformed("there are several varbit fields")
        if len({item.name for item in fields}) < len(fields):
            raise node.malformed("duplicate field name")
        if node.get("length_exp") is not None:
            raise node.unsupported("a header whose length is an expression of its own fields (P4_14)")
        longest = node.get("max_length")
        return HeaderType(node["name"].text(), tuple(fields), 0 if longest is None else longest.size())

    def _check_layout(self, node: Cursor, header_type: HeaderType, metadata: bool) -> None:
        """Check that a header consists of whole bytes and that its varbit field begins and ends at a byte."""
        if not metadata and node["name"].text() in TARGET_METADATA:
            raise node.malformed("it is not metadata")
        if metadata:
            if node["name"].text() in TARGET_METADATA and any(field.signed for field in header_type.fields):
                raise node.malformed("it has signed fields")
            if header_type.varbit is not None:
                raise node.unsupported(f"the varbit field '{header_type.varbit.name}' in metadata")
            return
        bits = 0
        for declared in header_type.fields:
            if declared.varbit and bits % 8:
                raise node.unsupported(f"the varbit field '{declared.name}', which begins inside a byte,")
            bits += declared.width
        if bits % 8:
            raise node.malformed(f"header type {header_type.name} has {bits} bits, not whole bytes")

    # -- parser, deparser, pipelines -------------------------------------------------------------------------

    def _parser(self) -> tuple[dict[str, ParseState], str | None]:
        parsers = self._root.each("parsers")
        if len(parsers) != 1:
            raise self._root.unsupported(f"a program with {len(parsers)} parsers")
        return ParserReader(self._scope).read(parsers[0])

    def _deparser(self) -> tuple[str, ...]:
        deparsers = self._root.each("deparsers")
        if len(deparsers) != 1:
            raise self._root.unsupported(f"a program with {len(deparsers)} deparsers")
        for primitive in deparsers[0].each("primitives"):
            raise primitive.unsupported("a statement other than emit in the deparser")
        return tuple(self._scope.packet_header(item) for item in deparsers[0]["order"])

    def _pipeline(self, name: str, reader: PipelineReader) -> Pipeline:
        for item in self._root["pipelines"]:
            if item["name"].text() == name:
                return reader.read(item)
        raise self._root["pipelines"].malformed(f"unknown pipeline {name!r}")

    def _action(self, node: Cursor) -> Action:
        params = tuple(Param(item["name"].text(), item["bitwidth"].width()) for item in node["runtime_data"])
        self._scope.params = len(params)
        primitives = tuple(PrimitiveReader(self._scope).read(item) for item in node["primitives"])
        self._scope.params = 0
        return Action(node["id"].integer(), node["name"].text(), params, primitives, node.source)

    # -- calculations, lists, counters -----------------------------------------------------------------------

    def _calculation(self, node: Cursor) -> Calculation:
        algorithm = node["algo"].text()
        if algorithm not in ALGORITHMS:
            raise node.unsupported(f"the hash algorithm '{algorithm}'")
        inputs: list[CalcInput] = []
        for item in node["input"]:
            kind = item["type"].text()
            if kind == "payload":
                inputs.append(CalcInput(None, None))
            elif kind == "header":
                inputs.append(CalcInput(None, self._scope.header_name(item)))
            elif kind == "field":
                inputs.append(CalcInput(self._scope.plain_field(item["value"]), None))
            elif kind == "hexstr":
                const = Const(item["value"].hexadecimal(), item["bitwidth"].width())
                inputs.append(CalcInput(const, None))
            else:
                raise item.unsupported(f"an input of type '{kind}' of a calculation")
        return Calculation(node["name"].text(), algorithm, tuple(inputs), node.place)

    def _checksum(self, node: Cursor) -> Checksum:
        name = node["calculation"].text()
        if name not in self._scope.calculations:
            raise node.malformed(f"unknown calculation {name!r}")
        if node["type"].text() != "generic":
            raise node.unsupported(f"a checksum of type '{node['type'].text()}'")
        condition_node = node.get("if_cond")
        verify, update = node.get("verify"), node.get("update")
        return Checksum(
            name=node["name"].text(),
            target=self._scope.plain_field(node["target"]),
            calculation=self._scope.calculations[name],
            condition=None if condition_node is None else self._scope.condition(condition_node),
            verify=verify is None or verify.flag(),
            update=update is None or update.flag(),
            place=node.place,
            source=node.source,
        )

    def _field_list(self, node: Cursor) -> FieldList:
        fields: list[FieldRef] = []
        for item in node["elements"]:
            ref = self._scope.plain_field(item["value"]) if item["type"].text() == "field" else None
            if ref is None or not self._scope.headers[ref.header].metadata:
                raise item.unsupported("a field list with anything other than metadata fields")
            fields.append(ref)
        return FieldList(node["id"].integer(), tuple(fields))

    def _learn_list(self, node: Cursor) -> LearnList:
        values: list[tuple[str, Expr, int]] = []
        for item in node["elements"]:
            expr = self._scope.expression(item)
            if isinstance(expr, FieldRef):
                width = self._scope.headers[expr.header].type.field(expr.field).width
                values.append((expr.field, expr, width))
            elif isinstance(expr, Const):
                values.append((f"constant {len(values)}", expr, max(8, expr.value.bit_length())))
            else:
                raise item.unsupported("this kind of digest member")
        return LearnList(node["id"].integer(), node["name"].text(), tuple(values))

    def _arrays(self) -> tuple[dict[str, CounterDef], dict[str, RegisterDef]]:
        counters: dict[str, CounterDef] = {}
        registers: dict[str, RegisterDef] = {}
        octets = 0
        for item in self._root.each("counter_arrays"):
            direct = item.get("is_direct")
            if direct is not None and direct.flag():
                continue
            counter = CounterDef(item["name"].new_name(counters), item["size"].size())
            counters[counter.name] = counter
            octets += counter_bytes(counter.size)
            self._check_state(item, octets)
        for item in self._root.each("register_arrays"):
            name = item["name"].new_name(registers)
            register = RegisterDef(name, item["size"].size(), item["bitwidth"].width())
            registers[name] = register
            octets += register_bytes(register.size, register.width)
            self._check_state(item, octets)
        return counters, registers

    def _check_state(self, node: Cursor, octets: int) -> None:
        if octets > MAX_STATE_BYTES:
            limit = MAX_STATE_BYTES >> 20
            raise node.unsupported(f"a program whose counter and register arrays take more than {limit} MiB together")
