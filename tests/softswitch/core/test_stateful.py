"""Registers, counters, digests, hashes, random numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.core import SwitchCore
from softswitch.errors import ErrorKind, SwitchError
from softswitch.hashes import crc16, crc32, crcccitt, csum16, identity, sum16, xor16
from softswitch.state import DigestField
from tests.softswitch.core_rig import load, only, pack, unpack

(READ, WRITE, ADD, SIGNED, COUNT, CRC16, CRC32, FOLDED, CHECKSUM, XOR, SAME, DRAW, REPORT) = range(13)
CELLS, SIGNED_CELLS, SEEN = "TestIngress.cells", "TestIngress.signed_cells", "TestIngress.seen"


def ask(core: SwitchCore, command: int, index: int = 0, value: int = 0, result: int = 0) -> int:
    """Return the result field of the packet that comes back."""
    _, out = only(core, pack((command, 8), (index, 8), (value, 24), (result, 32)))
    return unpack(out, 8, 8, 24, 32)[3]


def test_register_keeps_what_packets_and_controller_write() -> None:
    core = load("stateful")
    cells = core.registers[CELLS]
    assert (cells.size, cells.width) == (10, 24)
    ask(core, WRITE, 3, 0xABCDEF)
    assert cells.read(3) == 0xABCDEF
    cells.write(4, 77)
    assert ask(core, READ, 4) == 77
    assert ask(core, ADD, 3, 0x543211) == 0  # 24-bit wrap
    assert cells.read(3) == 0


def test_register_access_outside_the_array_does_nothing() -> None:
    core = load("stateful")
    core.registers[CELLS].write(9, 1)
    assert ask(core, READ, 9) == 1
    ask(core, WRITE, 10, 5)
    ask(core, WRITE, 255, 5)
    assert core.registers[CELLS].cells.tolist() == [0] * 9 + [1]
    assert ask(core, READ, 10) == 0


def test_signed_register_wraps_and_sign_extends() -> None:
    core = load("stateful")
    assert ask(core, SIGNED) == 0xFFFFFFFF
    assert ask(core, SIGNED) == 0xFFFFFFFE
    assert core.registers[SIGNED_CELLS].read(1) == 0xFFFE
    core.registers[SIGNED_CELLS].write(1, 0x8000)
    assert ask(core, SIGNED) == 0x7FFF


def test_indirect_counter_counts_packets_and_bytes() -> None:
    core = load("stateful")
    seen = core.counters[SEEN]
    assert (seen.size, seen.kind) == (10, "both")
    frame = pack((COUNT, 8), (9, 8), (0, 24), (0, 32))
    core.process(0, frame)
    core.process(0, frame + bytes(100))
    core.process(0, pack((COUNT, 8), (10, 8), (0, 24), (0, 32)))
    assert seen.read(9) == (2, 2 * 9 + 100)
    assert sum(seen.packets) == 2
    seen.write(9, 10, 1000)
    core.process(0, frame)
    assert seen.read(9) == (11, 1009)


def test_array_accesses_that_do_not_fit_are_refused() -> None:
    core = load("stateful")
    for bad in (
        lambda: core.registers[CELLS].read(10),
        lambda: core.registers[CELLS].write(-1, 0),
        lambda: core.registers[CELLS].write(0, 1 << 24),
        lambda: core.counters[SEEN].read(10),
        lambda: core.counters[SEEN].write(10, 1, 1),
    ):
        with pytest.raises(SwitchError) as caught:
            bad()
        assert caught.value.kind is ErrorKind.INVALID_ARGUMENT


def test_digest_carries_its_values_and_the_packet_goes_on() -> None:
    core = load("stateful")
    spec = core.digests["sample_t"]
    assert [field.width for field in spec.fields] == [8, 24, 9, 1]
    assert isinstance(spec.fields[0], DigestField)
    output = core.process(5, pack((REPORT, 8), (7, 8), (1001, 24), (0, 32)))
    assert output.digests == [("sample_t", (7, 1001, 5, 1))]
    assert len(output.packets) == 1
    assert core.process(5, pack((REPORT, 8), (7, 8), (1000, 24), (0, 32))).digests == [("sample_t", (7, 1000, 5, 0))]
    assert core.process(5, pack((READ, 8), (7, 8), (1000, 24), (0, 32))).digests == []


@settings(max_examples=50, deadline=None)
@given(index=st.integers(0, 255), value=st.integers(0, 0xFFFFFF))
def test_hashes_see_the_fields_in_order(index: int, value: int) -> None:
    core = HASHER
    i, v = pack((index, 8)), pack((value, 24))
    assert ask(core, CRC16, index, value) == crc16(i + v)
    assert ask(core, CRC32, index, value) == crc32(v + i)
    assert ask(core, FOLDED, index, value) == 100 + crc16(v) % 10
    assert ask(core, CHECKSUM, index, value) == csum16(v + i + v)
    assert ask(core, XOR, index, value) == xor16(v)
    assert ask(core, SAME, index, value) == value


HASHER = load("stateful")


def test_random_numbers_are_in_range_and_repeat_with_the_seed() -> None:
    core = load("stateful")
    drawn = [ask(core, DRAW) for _ in range(200)]
    assert set(drawn) == set(range(10, 21))
    core.reset()
    assert [ask(core, DRAW) for _ in range(200)] == drawn
    other = load("stateful", seed=1)
    assert [ask(other, DRAW) for _ in range(200)] != drawn


def test_reset_clears_registers_and_counters() -> None:
    core = load("stateful")
    ask(core, WRITE, 1, 1)
    ask(core, COUNT, 1)
    core.reset()
    assert core.registers[CELLS].cells.tolist() == [0] * 10
    assert core.counters[SEEN].read(1) == (0, 0)
    ask(core, WRITE, 1, 2)
    assert core.registers[CELLS].read(1) == 2


@pytest.mark.parametrize(
    ("function", "expected"),
    [(crc16, 0xBB3D), (crc32, 0xCBF43926), (crcccitt, 0x29B1), (identity, 0x3132333435363738)],
)
def test_hash_functions_give_the_catalogue_check_values(function: object, expected: int) -> None:
    """The check values of the CRC catalogue are over the ASCII digits 1 to 9."""
    assert callable(function)
    assert function(b"123456789") == expected


def naive_sum16(data: bytes) -> int:
    """RFC 1071, section 4.1: add 16-bit words, then fold the carries."""
    padded = data + b"\0" * (len(data) % 2)
    total = sum(padded[i] << 8 | padded[i + 1] for i in range(0, len(padded), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@given(data=st.one_of(st.binary(max_size=100), st.binary(max_size=9).map(lambda b: b.replace(b"\1", b"\xff\xff"))))
def test_checksum_agrees_with_the_definition(data: bytes) -> None:
    assert sum16(data) == naive_sum16(data)
    assert csum16(data) == naive_sum16(data) ^ 0xFFFF


def test_checksum_of_all_zeros_and_all_ones() -> None:
    assert (csum16(b""), csum16(bytes(10)), csum16(b"\xff" * 10)) == (0xFFFF, 0xFFFF, 0)


@given(data=st.binary(max_size=9))
def test_exclusive_or_of_words(data: bytes) -> None:
    words = [data[i : i + 2].ljust(2, b"\0") for i in range(0, len(data), 2)]
    expected = 0
    for word in words:
        expected ^= word[0] << 8 | word[1]
    assert xor16(data) == expected
