"""Classic pcap, read."""

from __future__ import annotations

import io

import pytest

from capture.errors import CaptureError
from capture.model import Packet
from capture.reader import CaptureReader
from tests.capture.builders import MICRO, NANO, pcap_header, read, read_what_can_be, record

FRAME = bytes(range(60))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "unit_ns"), [(MICRO, 1000), (NANO, 1)])
def test_both_orders_and_both_units(order: str, magic: int, unit_ns: int) -> None:
    content = pcap_header(order, magic, link=113) + record(FRAME, 5, 999_999, order, original=1500)
    content += record(b"", 0xFFFFFFFF, 7, order)
    assert read(content) == [
        Packet(1, 5 * 10**9 + 999_999 * unit_ns, FRAME, 1500, 0, 113, 24),
        Packet(2, 0xFFFFFFFF * 10**9 + 7 * unit_ns, b"", 0, 0, 113, 24 + 16 + 60),
    ]


def test_no_packets_is_no_error() -> None:
    assert read(pcap_header()) == []


def test_link_type_without_the_length_of_the_frame_check_sequence() -> None:
    content = pcap_header(link=1 | 0x04000000 | 0x40000000) + record(FRAME)
    assert [packet.link_type for packet in read(content)] == [1]


def test_packets_longer_than_the_file_headers_snaplen_are_read() -> None:
    assert len(read(pcap_header(snaplen=10) + record(FRAME))[0].data) == 60


def test_zero_length_packet_is_a_packet() -> None:
    packets = read(pcap_header() + record(b"", original=0) + record(b"", original=60) + record(FRAME))
    assert [(len(packet.data), packet.original_length) for packet in packets] == [(0, 0), (0, 60), (60, 60)]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (record(FRAME, captured=0xFFFFFFFF), "a packet of 4294967295 captured bytes, more than 16777216"),
        (record(FRAME, captured=(1 << 24) + 1), "more than 16777216"),
        (bytes(16), "a hole of zeros"),
        (record(FRAME, captured=61), "packet 2: only 76 of 77 bytes"),
        (record(FRAME)[:15], "header of packet 2: only 15 of 16 bytes"),
        (b"\x01", "header of packet 2: only 1 of 16 bytes"),
    ],
)
def test_damage_is_named_after_the_packets_before_it(wrong: bytes, problem: str) -> None:
    packets, error = read_what_can_be(pcap_header() + record(FRAME) + wrong)
    assert [packet.data for packet in packets] == [FRAME]
    assert error is not None
    assert problem in error.problem
    assert (error.path, error.offset) == ("test", 24 + 76)
    assert str(error) == f"test: at byte 100: {error.problem}; {error.fix}"


def test_odd_packets_are_read_and_counted() -> None:
    """Others write a trailer that the wire's length leaves out, or nanoseconds under the magic of microseconds."""
    content = pcap_header() + record(FRAME, original=59) + record(FRAME, units=1_000_000) + record(FRAME)
    reader = CaptureReader(io.BytesIO(content))
    packets = list(reader)
    assert [packet.data for packet in packets] == [FRAME] * 3
    assert [packet.time_ns for packet in packets] == [1_000_000_000, 2_000_000_000, 1_000_000_000]
    assert list(reader.oddities.values()) == [1, 1]
    assert not CaptureReader(io.BytesIO(pcap_header() + record(FRAME))).oddities


def test_largest_packet() -> None:
    data = bytes(1 << 24)
    assert read(pcap_header() + record(data) + record(FRAME))[0].data == data


@pytest.mark.parametrize("length", [4, 5, 23])
def test_cut_file_header(length: int) -> None:
    with pytest.raises(CaptureError, match=f"ends inside the pcap file header: only {length} of 24 bytes"):
        read(pcap_header()[:length])


def test_versions_with_other_record_headers_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"at byte 4: pcap version 2\.3"):
        read(pcap_header(minor=3) + record(FRAME))
