"""Conversion between P4Data messages and the flat integers of the data plane, according to a P4Info type.

The data plane stores a digest or a register cell as one unsigned integer per leaf field, in declaration order.
P4Runtime specification, section "Representation of Arbitrary P4 Types".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from finsy.proto import p4d, p4t

from softswitch.p4rt.bytestrings import decode_signed, decode_unsigned, encode_signed, encode_unsigned
from softswitch.p4rt.errors import Code, invalid, unimplemented

_MAX_DEPTH = 16
_MAX_PARTS = 4096
_Scalar = Literal["bit", "int", "bool", "enum_value"]


@dataclass(frozen=True, slots=True)
class ScalarType:
    """One leaf: bit<W>, int<W>, bool or a serializable enum over bit<W>."""

    form: _Scalar
    width: int


@dataclass(frozen=True, slots=True)
class GroupType:
    """A struct or a tuple of further types."""

    form: Literal["struct", "tuple"]
    members: tuple[DataType, ...]


DataType = ScalarType | GroupType


def resolve_type(spec: p4t.P4DataTypeSpec, info: p4t.P4TypeInfo, what: str) -> DataType:
    """Return the type that `spec` describes, with every name looked up in `info`.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT for a name that P4Info lacks, or a type that is too large; UNIMPLEMENTED for
            varbits, headers, unions, stacks and plain enums, which are not supported in digests or registers.
    """
    return _resolve(spec, info, what, iter(range(_MAX_PARTS)), 0)


def _resolve(spec: p4t.P4DataTypeSpec, info: p4t.P4TypeInfo, what: str, parts: Iterator[int], depth: int) -> DataType:
    """As `resolve_type`; each part of the type consumes one of `parts`, because nested structs multiply."""
    if depth > _MAX_DEPTH or next(parts, None) is None:
        raise invalid(f"{what}: types have more than {_MAX_PARTS} parts or are nested more than {_MAX_DEPTH} deep")
    form = spec.WhichOneof("type_spec")
    if form == "bitstring":
        bits = spec.bitstring
        if bits.HasField("bit"):
            return ScalarType("bit", bits.bit.bitwidth)
        if bits.HasField("int"):
            return ScalarType("int", bits.int.bitwidth)
        raise unimplemented(f"{what}: type varbit")
    if form == "bool":
        return ScalarType("bool", 1)
    if form == "tuple":
        return GroupType(
            "tuple", tuple(_resolve(member, info, what, parts, depth + 1) for member in spec.tuple.members)
        )
    if form == "struct":
        if spec.struct.name not in info.structs:
            raise invalid(f"{what}: P4Info does not describe struct {spec.struct.name!r}")
        members = info.structs[spec.struct.name].members
        return GroupType(
            "struct",
            tuple(_resolve(m.type_spec, info, f"{what}.{m.name}", parts, depth + 1) for m in members),
        )
    if form == "serializable_enum":
        if spec.serializable_enum.name not in info.serializable_enums:
            raise invalid(f"{what}: P4Info does not describe enum {spec.serializable_enum.name!r}")
        enum = info.serializable_enums[spec.serializable_enum.name]
        return ScalarType("enum_value", enum.underlying_type.bitwidth)
    if form == "new_type":
        if spec.new_type.name not in info.new_types:
            raise invalid(f"{what}: P4Info does not describe type {spec.new_type.name!r}")
        new_type = info.new_types[spec.new_type.name]
        if not new_type.HasField("original_type"):
            raise unimplemented(f"{what}: translated type {spec.new_type.name!r}")
        return _resolve(new_type.original_type, info, what, parts, depth + 1)
    raise unimplemented(f"{what}: type {form or '(none)'}")


def leaf_widths(data_type: DataType) -> tuple[int, ...]:
    """Return the width in bits of each leaf, in declaration order."""
    if isinstance(data_type, ScalarType):
        return (data_type.width,)
    return tuple(width for member in data_type.members for width in leaf_widths(member))


def encode_data(data_type: DataType, values: Sequence[int]) -> p4d.P4Data:
    """Return the canonical P4Data of the leaves `values` (unsigned integers, one per leaf)."""
    leaves = iter(values)
    return _encode(data_type, leaves)


def _encode(data_type: DataType, leaves: Iterator[int]) -> p4d.P4Data:
    if isinstance(data_type, GroupType):
        group = p4d.P4StructLike(members=[_encode(member, leaves) for member in data_type.members])
        return p4d.P4Data(struct=group) if data_type.form == "struct" else p4d.P4Data(tuple=group)
    value = next(leaves)
    if data_type.form == "bool":
        return p4d.P4Data(bool=bool(value))
    if data_type.form == "enum_value":
        return p4d.P4Data(enum_value=encode_unsigned(value))
    if data_type.form == "int":
        negative = value >> (data_type.width - 1) & 1
        return p4d.P4Data(bitstring=encode_signed(value - (negative << data_type.width)))
    return p4d.P4Data(bitstring=encode_unsigned(value))


def decode_data(data_type: DataType, data: p4d.P4Data, what: str) -> list[int]:
    """Return the leaves of `data` as unsigned integers.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT if the message does not have the form of the type, OUT_OF_RANGE if a value does
            not fit.
    """
    expected = data_type.form if data_type.form not in ("bit", "int") else "bitstring"
    form = data.WhichOneof("data")
    if form != expected:
        raise invalid(f"{what}: expected P4Data.{expected}, not {form or 'an unset message'}")
    if isinstance(data_type, GroupType):
        members = data.struct.members if data_type.form == "struct" else data.tuple.members
        if len(members) != len(data_type.members):
            raise invalid(f"{what}: expected {len(data_type.members)} members, not {len(members)}")
        return [
            value
            for index, (member_type, member) in enumerate(zip(data_type.members, members, strict=True))
            for value in decode_data(member_type, member, f"{what}[{index}]")
        ]
    if data_type.form == "bool":
        return [int(data.bool)]
    if data_type.form == "enum_value":
        return [decode_unsigned(data.enum_value, data_type.width, what, Code.OUT_OF_RANGE)]
    if data_type.form == "int":
        value = decode_signed(data.bitstring, data_type.width, what, Code.OUT_OF_RANGE)
        return [value & ((1 << data_type.width) - 1)]
    return [decode_unsigned(data.bitstring, data_type.width, what, Code.OUT_OF_RANGE)]
