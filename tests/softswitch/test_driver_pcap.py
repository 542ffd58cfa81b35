"""Capture files, read back by scapy."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from scapy.utils import PcapReader, RawPcapReader

from softswitch.pcap import PcapWriter


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
