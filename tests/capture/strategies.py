"""Captures of every kind with what is in them, and damage done to them, for property tests."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import strategies as st

from capture.model import Packet
from tests.capture.builders import (
    MICRO,
    NANO,
    block,
    enhanced,
    interface,
    obsolete,
    option,
    pcap_header,
    record,
    section,
    simple,
)

U32 = st.integers(0, 0xFFFFFFFF)
FRAMES = st.binary(max_size=80) | st.integers(0, 3000).map(lambda length: bytes([length & 255]) * length)
SKIPPED = (4, 5, 10, 0xBAD, 0x7FFFFFFF)
# Numbers that sit on the edges of the checks.
EDGES = st.sampled_from([0, 1, 3, 4, 8, 12, 16, 28, 32, 1 << 24, (1 << 24) + 4, 0x7FFFFFFF, 0xFFFFFFFC, 0xFFFFFFFF])


@dataclass(frozen=True)
class Made:
    """A whole capture."""

    content: bytes
    packets: list[Packet]
    """What a reader must find."""
    ends: list[int]
    """Offset of the end of each packet's record or block."""


@st.composite
def pcaps(draw: st.DrawFn) -> Made:
    """Captures in classic pcap."""
    order, magic = draw(st.sampled_from("<>")), draw(st.sampled_from([MICRO, NANO]))
    link = draw(st.sampled_from([1, 113, 0xFFFF]))
    unit_ns = 1000 if magic == MICRO else 1
    content, packets, ends = pcap_header(order, magic, link), [], []
    for number, data in enumerate(draw(st.lists(FRAMES, max_size=8)), 1):
        seconds, units = draw(st.integers(1, 0xFFFFFFFF)), draw(st.integers(0, 10**9 // unit_ns - 1))
        original = draw(st.integers(len(data), 0xFFFFFFFF))
        time_ns = seconds * 10**9 + units * unit_ns
        packets.append(Packet(number, time_ns, data, original, 0, link, len(content)))
        content += record(data, seconds, units, order, original=original)
        ends.append(len(content))
    return Made(content, packets, ends)


@st.composite
def pcapngs(draw: st.DrawFn, max_sections: int = 3, skipped: tuple[int, ...] = SKIPPED) -> Made:
    """Captures in pcapng, with blocks of the `skipped` kinds in between, whose content is arbitrary."""
    content, packets, ends = b"", [], []
    for _ in range(draw(st.integers(1, max_sections))):
        order = draw(st.sampled_from("<>"))
        comment = draw(st.none() | st.binary(max_size=9))
        content += section(order, options=b"" if comment is None else option(1, comment, order))
        known: list[tuple[int, int, int, int]] = []
        for what in draw(st.lists(st.sampled_from("IIEEEEESOX"), max_size=10)):
            begin, number = len(content), len(packets) + 1
            if what == "I":
                link, snaplen = draw(st.sampled_from([1, 113])), draw(st.sampled_from([0, 50, 262144]))
                power, offset_s = draw(st.sampled_from([0, 3, 6, 9])), draw(st.integers(-(1 << 40), 1 << 40))
                options = option(2, b"eth0", order) + option(9, bytes([power]), order)
                options += option(14, struct.pack(f"{order}q", offset_s), order)
                content += interface(order, link, snaplen, options)
                known.append((link, snaplen, 10 ** (9 - power), offset_s * 10**9))
                continue
            if what == "X" or not known:
                kind = draw(st.sampled_from(skipped))
                content += block(kind, draw(st.binary(max_size=90)), order)
                continue
            data, ticks = draw(FRAMES), draw(st.integers(0, (1 << 64) - 1))
            index = 0 if what == "S" else draw(st.integers(0, len(known) - 1))
            link, snaplen, unit_ns, offset_ns = known[index]
            if what == "S":
                original = len(data)
                data = data[:snaplen] if snaplen else data
                content += simple(data, original, order)
                packets.append(Packet(number, 0, data, original, 0, link, begin))
            else:
                original = draw(st.integers(len(data), 0xFFFFFFFF))
                limit = (1 << 63) - 1
                time_ns = max(-limit, min(limit, ticks * unit_ns + offset_ns))
                make = enhanced if what == "E" else obsolete
                content += make(data, ticks, index, order, original=original)
                packets.append(Packet(number, time_ns, data, original, index, link, begin))
            ends.append(len(content))
    return Made(content, packets, ends)


CAPTURES = pcaps() | pcapngs()


@st.composite
def damaged(draw: st.DrawFn, content: bytes, times: int = 3) -> tuple[bytes, int]:
    """`content` with bytes changed, cut off, taken out, put in, or repeated; and where the first change is."""
    first = len(content)
    for _ in range(draw(st.integers(1, times))):
        at = draw(st.integers(0, len(content)))
        first = min(first, at)
        match draw(st.sampled_from(["bit", "word", "cut", "delete", "insert", "repeat", "hole"])):
            case "bit" if at < len(content):
                content = content[:at] + bytes([content[at] ^ 1 << draw(st.integers(0, 7))]) + content[at + 1 :]
            case "word":
                word = draw(EDGES | U32).to_bytes(4, draw(st.sampled_from(["little", "big"])))
                content = content[:at] + word + content[at + 4 :]
            case "cut":
                content = content[:at]
            case "delete":
                content = content[:at] + content[at + draw(st.integers(1, 40)) :]
            case "insert":
                content = content[:at] + draw(st.binary(max_size=40)) + content[at:]
            case "repeat":
                begin = draw(st.integers(0, at))
                content = content[:at] + content[begin:]
            case "hole":
                content = content[:at] + bytes(draw(st.integers(1, 200))) + content[at:]
    return content, first
