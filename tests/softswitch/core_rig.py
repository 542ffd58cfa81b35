"""Shared by the tests of the execution core: test programs, and bit strings for packets."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from softswitch.core import SwitchCore

PROGRAMS = Path(__file__).parent / "programs"


@cache
def config(name: str) -> str:
    """Return the compiled JSON of a test program."""
    return (PROGRAMS / f"{name}.json").read_text()


def load(name: str, **options: int) -> SwitchCore:
    """Return a fresh switch that runs a test program."""
    return SwitchCore(config(name), **options)


def pack(*fields: tuple[int, int]) -> bytes:
    """Return fields, given as (value, width in bits), as bytes; the value is taken modulo 2**width."""
    value = bits = 0
    for field, width in fields:
        value = value << width | field & ((1 << width) - 1)
        bits += width
    assert bits % 8 == 0
    return value.to_bytes(bits // 8, "big")


def unpack(data: bytes, *widths: int) -> list[int]:
    """Return the fields of the given widths in bits at the beginning of `data`."""
    rest = int.from_bytes(data, "big")
    position = 8 * len(data)
    fields: list[int] = []
    for width in widths:
        position -= width
        fields.append(rest >> position & ((1 << width) - 1))
    return fields


def only(core: SwitchCore, frame: bytes, port: int = 0, now_us: int = 0) -> tuple[int, bytes]:
    """Process a frame and return the one packet that comes out."""
    packets = core.process(port, frame, now_us).packets
    assert len(packets) == 1
    return packets[0]
