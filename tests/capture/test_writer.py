"""Capture files as the project writes them, read back by scapy and by the project."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from scapy.utils import PcapReader, RawPcapReader

from capture.reader import open_capture
from capture.writer import PcapngWriter, PcapWriter


def test_frames_and_nanoseconds_come_back(tmp_path: Path) -> None:
    frames = [b"", b"\x00" * 60, bytes(range(256)) * 40]
    times = [0, 1_700_000_000_123_456_789, (1 << 32) * 10**9 - 1]
    with PcapWriter(tmp_path / "x.pcap") as writer:
        for time_ns, frame in zip(times, frames, strict=True):
            writer.write(time_ns, frame)
    read = [(data, meta.sec * 10**9 + meta.usec) for data, meta in RawPcapReader(str(tmp_path / "x.pcap"))]
    assert read == list(zip(frames, times, strict=True))
    with PcapReader(str(tmp_path / "x.pcap")) as reader:
        assert (reader.nano, reader.linktype) == (True, 1)


def test_flushed_frames_are_on_disk_while_the_file_is_open(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(b"old content")
    writer = PcapWriter(path)
    writer.write(1, b"\x01" * 60)
    writer.flush()
    assert [data for data, _ in RawPcapReader(str(path))] == [b"\x01" * 60]
    writer.close()
    writer.close()


def test_overlong_frame_is_cut_but_its_length_is_kept(tmp_path: Path) -> None:
    with PcapWriter(tmp_path / "x.pcap") as writer:
        writer.write(0, bytes(300_000))
    content = (tmp_path / "x.pcap").read_bytes()
    assert struct.unpack_from("<II", content, 24 + 8) == (262144, 300_000)
    assert len(content) == 24 + 16 + 262144


def test_directory_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PcapWriter(tmp_path / "nowhere" / "x.pcap")


def test_original_length_of_a_part(tmp_path: Path) -> None:
    with PcapWriter(tmp_path / "x.pcap") as pcap, PcapngWriter(tmp_path / "x.pcapng", ["a"]) as pcapng:
        pcap.write(1, b"\x01" * 60, original_length=9000)
        pcapng.write(1, b"\x01" * 60, original_length=9000)
    for name in ("x.pcap", "x.pcapng"):
        with open_capture(tmp_path / name) as reader:
            assert [(len(packet.data), packet.original_length) for packet in reader] == [(60, 9000)]


def test_interfaces_of_pcapng(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    names = ["s1-eth1", "m\u00fcnchen", ""]
    with PcapngWriter(path, names) as writer:
        for number in (2, 0, 1):
            writer.write(10 + number, bytes([number]) * (60 + number), number)
        writer.write(13, bytes(300_000), 1)
    with open_capture(path) as reader:
        packets = list(reader)
        assert [interface.name for interface in reader.interfaces] == names
    assert [(p.interface, p.time_ns, p.data) for p in packets[:3]] == [
        (number, 10 + number, bytes([number]) * (60 + number)) for number in (2, 0, 1)
    ]
    assert (len(packets[3].data), packets[3].original_length) == (262144, 300_000)


def test_pcapng_is_flushed_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    path.write_bytes(b"old content" * 100)
    writer = PcapngWriter(path, ["a"])
    writer.write(1, b"\x01" * 60)
    writer.flush()
    with open_capture(path) as reader:
        assert [packet.data for packet in reader] == [b"\x01" * 60]
    writer.close()
    writer.close()


def test_pcapng_of_wrong_interfaces_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    with pytest.raises(ValueError, match="needs at least one interface"):
        PcapngWriter(path, [])
    with pytest.raises(ValueError, match="70000 bytes, more than 65535"):
        PcapngWriter(path, ["n" * 70_000])
    assert not path.exists()
    with PcapngWriter(path, ["a", "b"]) as writer:
        for number in (-1, 2):
            with pytest.raises(ValueError, match=f"interface {number} of 2"):
                writer.write(1, b"", number)
