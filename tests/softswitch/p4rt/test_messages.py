"""P4Data, controller headers and P4Info: messages against the integers and bits that they stand for."""

from __future__ import annotations

import pytest
from finsy.proto import p4d, p4i, p4r, p4t
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from softswitch.p4rt.errors import Code, P4RuntimeError
from softswitch.p4rt.p4data import decode_data, encode_data, leaf_widths, resolve_type
from softswitch.p4rt.packetio import build_packet_out, header_bytes, parse_packet_in
from softswitch.p4rt.schema import Field, Schema, Scope
from tests.softswitch.p4rt_client import IDS, load_info

TYPE_INFO = text_format.Parse(
    """
    structs { key: "outer" value {
      members { name: "flag" type_spec { bool {} } }
      members { name: "inner" type_spec { struct { name: "inner" } } }
      members { name: "pair" type_spec { tuple {
        members { bitstring { int { bitwidth: 12 } } }
        members { serializable_enum { name: "color" } } } } } } }
    structs { key: "inner" value { members { name: "port" type_spec { new_type { name: "port_t" } } } } }
    structs { key: "loop" value { members { name: "again" type_spec { struct { name: "loop" } } } } }
    serializable_enums { key: "color" value { underlying_type { bitwidth: 3 } } }
    new_types { key: "port_t" value { original_type { bitstring { bit { bitwidth: 9 } } } } }
    new_types { key: "far_t" value { translated_type { uri: "x" sdn_bitwidth: 32 } } }
    """,
    p4t.P4TypeInfo(),
)


def spec(text: str) -> p4t.P4DataTypeSpec:
    return text_format.Parse(text, p4t.P4DataTypeSpec())


OUTER = resolve_type(spec('struct { name: "outer" }'), TYPE_INFO, "outer")


def test_nested_types_flatten_in_declaration_order() -> None:
    assert leaf_widths(OUTER) == (1, 9, 12, 3)
    assert encode_data(OUTER, (1, 300, 0xD1D, 5)) == text_format.Parse(
        r"""struct { members { bool: true }
                     members { struct { members { bitstring: "\x01\x2c" } } }
            members { tuple { members { bitstring: "\xfd\x1d" } members { enum_value: "\x05" } } } }""",
        p4d.P4Data(),
    )


@given(st.tuples(*(st.integers(0, (1 << width) - 1) for width in leaf_widths(OUTER))))
def test_p4data_round_trip(leaves: tuple[int, ...]) -> None:
    assert decode_data(OUTER, encode_data(OUTER, leaves), "x") == list(leaves)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", Code.INVALID_ARGUMENT),
        ('bitstring: "1"', Code.INVALID_ARGUMENT),
        ("struct { members { bool: true } }", Code.INVALID_ARGUMENT),
        (
            r"""struct { members { bool: true } members { struct { members { bitstring: "\x02\x00" } } }
                members { tuple { members { bitstring: "1" } members { enum_value: "1" } } } }""",
            Code.OUT_OF_RANGE,
        ),
        (
            r"""struct { members { bool: true } members { struct { members { bitstring: "\x00" } } }
                members { tuple { members { bitstring: "\x08\x00" } members { enum_value: "\x01" } } } }""",
            Code.OUT_OF_RANGE,
        ),
    ],
)
def test_p4data_of_another_form_or_too_wide_is_refused(text: str, code: Code) -> None:
    with pytest.raises(P4RuntimeError, match="cell") as caught:
        decode_data(OUTER, text_format.Parse(text, p4d.P4Data()), "cell")
    assert caught.value.code is code


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bitstring { varbit { max_bitwidth: 8 } }",
        'header { name: "h" }',
        "error {}",
        'struct { name: "loop" }',
        'struct { name: "nowhere" }',
        'serializable_enum { name: "nowhere" }',
        'new_type { name: "nowhere" }',
        'new_type { name: "far_t" }',
    ],
)
def test_types_that_cannot_be_served_are_refused_by_name(text: str) -> None:
    with pytest.raises(P4RuntimeError, match="register r"):
        resolve_type(spec(text), TYPE_INFO, "register r")


IN = (Field(1, "port", 9), Field(2, "reason", 7))
OUT = (Field(4, "port", 9), Field(9, "pad", 5, padding=True), Field(2, "queue", 2))


def test_packet_in_fields_are_cut_from_the_most_significant_bit_on() -> None:
    packet = parse_packet_in(IN, bytes([0b1000_0000, 0b1_0000011]) + b"payload")
    assert packet == p4r.PacketIn(
        payload=b"payload",
        metadata=[
            p4r.PacketMetadata(metadata_id=1, value=b"\x01\x01"),
            p4r.PacketMetadata(metadata_id=2, value=b"\x03"),
        ],
    )


def test_packet_in_without_header_and_shorter_than_its_header() -> None:
    assert parse_packet_in(None, b"frame") == p4r.PacketIn(payload=b"frame")
    assert parse_packet_in(IN, b"\x00") is None
    assert parse_packet_in(IN, b"\x00\x00") is not None


def out(**values: bytes) -> p4r.PacketOut:
    ids = {field.name: field.id for field in OUT} | {"nowhere": 77}
    metadata = [p4r.PacketMetadata(metadata_id=ids[name], value=value) for name, value in values.items()]
    return p4r.PacketOut(payload=b"payload", metadata=metadata)


def test_packet_out_header_in_any_order_and_with_padding_left_out() -> None:
    expected = bytes([0b1000_0000, 0b1_00000_10]) + b"payload"
    assert header_bytes(OUT) == 2
    assert build_packet_out(OUT, out(queue=b"\x02", port=b"\x01\x01")) == expected
    assert build_packet_out(OUT, out(port=b"\x00\x01\x01", pad=b"\x00", queue=b"\x02")) == expected
    assert build_packet_out(None, p4r.PacketOut(payload=b"payload")) == b"payload"


@pytest.mark.parametrize(
    ("fields", "packet", "text"),
    [
        (OUT, out(port=b"\x01"), "queue"),
        (OUT, out(port=b"\x01", queue=b"\x04"), "queue.*2 bits"),
        (OUT, out(port=b"\x01", queue=b"\x01", nowhere=b"\x01"), "77"),
        (OUT, out(port=b"", queue=b"\x01"), "port"),
        (None, out(port=b"\x01"), "id 4"),
    ],
)
def test_packet_out_metadata_that_does_not_fit_is_refused(
    fields: tuple[Field, ...] | None, packet: p4r.PacketOut, text: str
) -> None:
    with pytest.raises(P4RuntimeError, match=text) as caught:
        build_packet_out(fields, packet)
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_packet_out_metadata_given_twice_is_refused() -> None:
    packet = out(port=b"\x01", queue=b"\x01")
    packet.metadata.append(packet.metadata[0])
    with pytest.raises(P4RuntimeError, match="twice"):
        build_packet_out(OUT, packet)


def test_schema_of_the_sample_program() -> None:
    schema = Schema.build(load_info())
    acl = schema.tables[IDS("table", "acl")]
    assert [(field.name, field.width, field.kind.value) for field in acl.fields] == [
        ("src", 32, "ternary"),
        ("protocol", 8, "optional"),
        ("ttl", 8, "range"),
    ]
    assert acl.needs_priority
    assert acl.has_direct_counter
    assert schema.tables[IDS("table", "kind")].is_const
    assert schema.tables[IDS("table", "smac")].const_default
    routes, dmac = schema.tables[IDS("table", "routes")], schema.tables[IDS("table", "dmac")]
    assert not routes.needs_priority
    assert routes.scopes[IDS("action", "forward")] is Scope.ENTRY_ONLY
    assert dmac.scopes[IDS("action", "NoAction")] is Scope.DEFAULT_ONLY
    assert schema.packet_out is not None
    assert [(field.width, field.padding) for field in schema.packet_out] == [(9, False), (7, True)]


def changed(change: str) -> p4i.P4Info:
    info = load_info()
    text_format.Merge(change, info)
    return info


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ('action_profiles { preamble { id: 1 name: "ap" } }', "action profile ap"),
        ('meters { preamble { id: 1 name: "m" } }', "meter m"),
        ('direct_meters { preamble { id: 1 name: "dm" } }', "direct meter dm"),
        ('value_sets { preamble { id: 1 name: "vs" } }', "value set vs"),
        ('externs { extern_type_name: "Hash2" instances { preamble { id: 1 } } }', "extern Hash2"),
        ('tables { preamble { name: "t" } }', "no unique id"),
        ('tables { preamble { id: 34582932 name: "t" } }', "no unique id"),
        ('tables { preamble { id: 1 name: "t" } action_refs { id: 5 } }', "action id 5"),
        ('tables { preamble { id: 1 name: "t" } action_refs { id: 21257015 scope: 7 } }', "unknown scope"),
        (
            'actions { preamble { id: 1 name: "a" } params { id: 1 name: "p" bitwidth: 65536 } }',
            "'p' has more than",
        ),
        (
            'tables { preamble { id: 1 name: "t" } match_fields { id: 1 name: "f" match_type: EXACT } }',
            "'f' has no width",
        ),
        (
            'tables { preamble { id: 1 name: "t" } match_fields { id: 1 name: "f" bitwidth: 8 } }',
            "'f' has an unknown match kind",
        ),
        ('registers { preamble { id: 1 name: "r" } }', "register r"),
    ],
)
def test_p4info_that_cannot_be_served_is_refused_by_name(change: str, text: str) -> None:
    with pytest.raises(P4RuntimeError, match=text) as caught:
        Schema.build(changed(change))
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_a_type_whose_structs_multiply_is_refused() -> None:
    """Ten members of the next struct each, sixteen deep: small in P4Info, without end when it is written out."""
    info = load_info()
    for depth in range(16):
        members = info.type_info.structs[f"s{depth}"].members
        for number in range(10):
            members.add(name=f"m{number}").type_spec.struct.name = f"s{depth + 1}"
    info.type_info.structs["s16"].members.add(name="m").type_spec.bitstring.bit.bitwidth = 8
    info.registers.add(preamble={"id": 1, "name": "r"}, size=1).type_spec.struct.name = "s0"
    with pytest.raises(P4RuntimeError, match="register r"):
        Schema.build(info)
