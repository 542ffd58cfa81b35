"""pcapng, read."""

from __future__ import annotations

import io
import struct

import pytest

from capture.errors import CaptureError
from capture.model import Interface, Packet
from capture.pcapng import MAX_INTERFACES
from capture.reader import CaptureReader
from tests.capture.builders import (
    block,
    enhanced,
    interface,
    obsolete,
    option,
    read,
    read_what_can_be,
    section,
    simple,
)

FRAME = bytes(range(61))  # its block needs padding
BEGIN = section() + interface()


@pytest.mark.parametrize("order", ["<", ">"])
def test_every_kind_of_packet_block(order: str) -> None:
    head = section(order) + interface(order, snaplen=40) + interface(order, link=113)
    blocks = [
        enhanced(FRAME, (1 << 32) + 5, 1, order, original=70, options=option(1, b"a comment", order)),
        simple(FRAME[:40], 61, order),
        obsolete(FRAME, 9, 0, order, original=61),
    ]
    second, third = len(head) + len(blocks[0]), len(head) + len(blocks[0]) + len(blocks[1])
    assert read(head + b"".join(blocks)) == [
        Packet(1, ((1 << 32) + 5) * 1000, FRAME, 70, 1, 113, len(head)),
        Packet(2, 0, FRAME[:40], 61, 0, 1, second),
        Packet(3, 9000, FRAME, 61, 0, 1, third),
    ]


def test_sections_of_both_orders_have_interfaces_of_their_own() -> None:
    content = b""
    for order, link in (("<", 1), (">", 113), ("<", 101)):
        content += section(order) + interface(order, link=link) + enhanced(FRAME, order=order)
    assert [(packet.number, packet.link_type) for packet in read(content)] == [(1, 1), (2, 113), (3, 101)]
    packets, error = read_what_can_be(content + section(">") + enhanced(FRAME, order=">"))
    assert len(packets) == 3
    assert error is not None
    assert "interface 0" in error.problem


def test_interfaces_are_those_of_the_section_being_read() -> None:
    names = (b"a", b"b"), (b"c",), (b"d", b"e", b"f")
    content = b""
    for section_names in names:
        content += section() + b"".join(interface(options=option(2, name)) for name in section_names)
        content += enhanced(FRAME, index=len(section_names) - 1)
    with CaptureReader(io.BytesIO(content)) as reader:
        found = [(len(reader.interfaces), reader.interfaces[packet.interface].name) for packet in reader]
    assert found == [(2, "b"), (1, "c"), (3, "f")]


@pytest.mark.parametrize(
    ("resolution", "ticks", "time_ns"),
    [
        (None, 3, 3_000),
        (0, 3, 3_000_000_000),
        (3, 3, 3_000_000),
        (6, 3, 3_000),
        (9, 3, 3),
        (12, 2_999, 2),
        (127, (1 << 64) - 1, 0),
        (0x80, 3, 3_000_000_000),
        (0x80 | 10, 1025, 1_000_976_562),
        (0x80 | 127, (1 << 64) - 1, 0),
    ],
)
@pytest.mark.parametrize("offset_s", [None, 0, 1_600_000_000, -5])
@pytest.mark.parametrize("order", ["<", ">"])
def test_time_resolution_and_offset(
    order: str, resolution: int | None, ticks: int, time_ns: int, offset_s: int | None
) -> None:
    options = b"" if resolution is None else option(9, bytes([resolution]), order)
    options += b"" if offset_s is None else option(14, struct.pack(f"{order}q", offset_s), order)
    options += option(0, b"", order) + option(9, b"\xff", order)  # nothing counts after the end of options
    (packet,) = read(section(order) + interface(order, options=options) + enhanced(FRAME, ticks, 0, order))
    assert packet.time_ns == time_ns + (offset_s or 0) * 10**9


def test_interface_names() -> None:
    names = [b"s1-eth1", "m\u00fcnchen".encode(), b"\xff", b"n" * 300]
    content = section() + b"".join(interface(options=option(2, name)) for name in names) + interface(snaplen=96)
    with CaptureReader(io.BytesIO(content)) as reader:
        assert (list(reader), reader.format) == ([], "pcapng")
        assert reader.interfaces == (
            *(Interface(name, 1, 0) for name in ("s1-eth1", "m\u00fcnchen", "\ufffd", "n" * 255)),
            Interface("", 1, 96),
        )


def test_other_blocks_are_skipped() -> None:
    others = [
        block(4, b"\x01\x00\x08\x00\x0a\x00\x00\x01name"),  # name resolution
        block(5, bytes(12)),  # interface statistics
        block(10, struct.pack("<II", 0x544C534B, 6) + b"SECRET"),  # decryption secrets
        block(0xBAD, struct.pack("<I", 32473) + b"custom"),
        block(0x80000001, b"of local use"),
        block(0x7FFFFFFF, b""),
        block(11, bytes(300_000)),  # larger than the buffer
    ]
    content = BEGIN + b"".join(enhanced(FRAME) + other for other in others) + enhanced(FRAME)
    packets = read(content)
    assert [packet.data for packet in packets] == [FRAME] * (len(others) + 1)
    for packet in packets:
        assert content[packet.offset : packet.offset + 4] == b"\x06\0\0\0"


def test_secrets_do_not_appear_in_errors() -> None:
    secret = block(10, b"SECRETSECRETSECRET", repeated=40)
    _, error = read_what_can_be(BEGIN + secret)
    assert error is not None
    assert "SECRET" not in str(error)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (enhanced(FRAME, captured=65), "65 captured bytes, but room for 64"),
        (enhanced(FRAME, captured=0xFFFFFFFF), "4294967295 captured bytes, but room for 64"),
        (enhanced(FRAME, index=1), "interface 1"),
        (enhanced(FRAME, index=0xFFFFFFFF), "interface 4294967295"),
        (obsolete(FRAME, index=1), "a Packet Block with interface 1"),
        (simple(FRAME, 65), "a Simple Packet Block with 65 captured bytes, but room for 64"),
        (block(6, bytes(16)), "an Enhanced Packet Block of 28 bytes: it must be a multiple of 4 between 32 and"),
        (block(3, b""), "a Simple Packet Block of 12 bytes"),
        (block(2, bytes(16)), "a Packet Block of 28 bytes"),
        (block(1, bytes(4)), "an Interface Description Block of 16 bytes"),
        (block(99, bytes(4), length=0), "a block of type 0x00000063 of 0 bytes"),
        (block(99, bytes(4), length=8), "of 8 bytes: it must be a multiple of 4 between 12 and 16777216"),
        (block(99, bytes(4), length=17), "of 17 bytes"),
        (block(99, bytes(4), length=(1 << 24) + 4), "of 16777220 bytes"),
        (block(99, bytes(4), length=0xFFFFFFFC), "of 4294967292 bytes"),
        (block(99, bytes(4), repeated=20), "whose length is 16 at its beginning and 20 at its end"),
        (block(99, bytes(300_000), repeated=20), "whose length is 300012 at its beginning and 20 at its end"),
        (enhanced(FRAME)[:-4] + bytes(4), "whose length is 96 at its beginning and 0 at its end"),
        (block(99, bytes(300_000))[:-1], "a block of type 0x00000063: only 300011 of 300012 bytes"),
        (block(99, bytes(300_000))[:-9], "300003 of 300012 bytes"),
        (enhanced(FRAME)[:-1], "an Enhanced Packet Block: only 95 of 96 bytes"),
        (enhanced(FRAME)[:11], "a block header: only 11 of 12 bytes"),
        (bytes(1000), "a block of type 0x00000000 of 0 bytes"),
    ],
)
def test_damage_is_named_after_the_packets_before_it(wrong: bytes, problem: str) -> None:
    packets, error = read_what_can_be(BEGIN + enhanced(FRAME) + wrong)
    assert [packet.data for packet in packets] == [FRAME]
    assert error is not None
    assert problem in error.problem
    assert (error.path, error.offset) == ("test", len(BEGIN) + 96)


@pytest.mark.parametrize(
    ("wrong", "where", "problem"),
    [
        (section(major=2), 12, "a section of pcapng version 2.0"),
        (section()[:8] + b"\x1a\x2b\x3c\x4e" + section()[12:], 8, "whose byte-order magic is 1a2b3c4e"),
        (interface(options=option(9, b"\x06\x06")), 16, "option if_tsresol of 2 bytes instead of 1"),
        (interface(options=option(14, b"\x06")), 16, "option if_tsoffset of 1 bytes instead of 8"),
        (interface(options=option(2, b"name", length=5)), 16, "option 2 of 5 bytes"),
    ],
)
def test_damage_inside_a_block(wrong: bytes, where: int, problem: str) -> None:
    packets, error = read_what_can_be(BEGIN + enhanced(FRAME) + wrong)
    assert len(packets) == 1
    assert error is not None
    assert problem in error.problem
    assert error.offset == len(BEGIN) + 96 + where


def test_simple_packet_needs_an_interface() -> None:
    _, error = read_what_can_be(section() + simple(FRAME, 61))
    assert error is not None
    assert "a Simple Packet Block with interface 0" in error.problem


def test_only_so_many_interfaces() -> None:
    content = section() + interface() * (MAX_INTERFACES + 1)
    with pytest.raises(CaptureError, match="more than 65536 interfaces"):
        read(content)
    assert read(section() + interface() * MAX_INTERFACES + enhanced(FRAME, index=MAX_INTERFACES - 1)) != []


def test_zero_length_packet_is_a_packet() -> None:
    packets = read(BEGIN + enhanced(b"") + enhanced(b"", original=60) + simple(b"", 0))
    assert [(packet.data, packet.original_length) for packet in packets] == [(b"", 0), (b"", 60), (b"", 0)]


def test_largest_block() -> None:
    data = bytes((1 << 24) - 32)
    assert read(BEGIN + enhanced(data) + enhanced(FRAME))[0].data == data
