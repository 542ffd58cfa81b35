"""The Wireshark dissector: at one with the frame format, and run by tshark over streams cut in any way."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from capture.reader import open_capture
from capture.writer import PcapWriter
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import FIELDS, HEADER_BYTES, FrameHeader, crc32c
from checkmate_common.stream.ring import Phase
from tools import dissector

TSHARK = shutil.which("tshark")
needs_tshark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")
SHOWN = (
    "job", "group", "epoch", "channel", "step", "layout_version", "bucket", "phase", "hop", "chunk", "rank", "dtype",
    "element_offset", "payload_bytes",
)  # fmt: skip


def frame(number: int, size: int) -> tuple[FrameHeader, bytes]:
    """Return a header whose fields all differ, and its payload of `size` bytes."""
    payload = bytes((number * 7 + i) % 251 for i in range(size))
    header = FrameHeader(
        job=7 + number,
        group=3,
        epoch=70000 + number,
        channel=2,
        step=(1 << 33) + number,
        layout_version=number + 1,
        bucket=5 + number,
        phase=Phase(number % 2),
        hop=number % 3,
        chunk=number % 4,
        rank=(number + 1) % 4,
        dtype=DType.FLOAT32 if number % 2 else DType.BFLOAT16,
        element_offset=(1 << 40) + number,
        payload_bytes=size,
        payload_crc=crc32c(payload),
    )
    return header, payload


FRAMES = [frame(number, size) for number, size in enumerate((4000, 0, 8, 64, 2960, 12, 30000, 4))]
STREAM = b"".join(header.pack() + payload for header, payload in FRAMES)


def capture(path: Path, pieces: list[tuple[int, bytes]], port: int = 4000, syn: bool = True) -> Path:
    """Write a connection that carries `pieces` (position in the stream, bytes) in this order."""
    isn = 0xFFFFF000
    head = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(src="10.0.0.1", dst="10.0.0.2", tos=12)
    segments = [TCP(sport=50000, dport=port, seq=isn, flags="S")] + [
        TCP(sport=50000, dport=port, seq=(isn + 1 + at) % 2**32, ack=1, flags="A") / Raw(data) for at, data in pieces
    ]
    with PcapWriter(path) as writer:
        for number, segment in enumerate(segments[not syn :]):
            writer.write(10**18 + number, bytes(head / segment))
    return path


def cut(stream: bytes, sizes: list[int], begin: int = 0) -> list[tuple[int, bytes]]:
    """Cut a stream from position `begin` on into pieces of `sizes`, over and over."""
    pieces, at = [], begin
    while at < len(stream):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append((at, stream[at : at + size]))
        at += size
    return pieces


def shown(path: Path, *options: str) -> list[dict[str, int]]:
    """Return the fields of every frame that tshark sees all of."""
    names = [f"checkmate.{name}" for name in (*SHOWN, "whole")]
    rows = tshark(path, *options, "-T", "fields", *(word for name in names for word in ("-e", name)))
    found = []
    for row in rows:
        columns = [column.split(",") if column else [] for column in row.split("\t")]
        assert len({len(column) for column in columns}) == 1, row
        for *values, whole in zip(*columns, strict=True):
            if whole in ("1", "True"):
                found.append(dict(zip(SHOWN, map(int, values), strict=True)))
    return found


def tshark(path: Path, *options: str) -> list[str]:
    assert TSHARK is not None
    done = subprocess.run(
        [TSHARK, "-X", f"lua_script:{dissector.SCRIPT}", "-n", "-r", str(path), *options],
        capture_output=True,
        text=True,
        timeout=60,
        # No settings of whoever runs the test.
        env={**os.environ, "HOME": str(path.parent), "XDG_CONFIG_HOME": str(path.parent)},
        check=True,
    )
    assert "Lua" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def fields_of(header: FrameHeader) -> dict[str, int]:
    return {name: int(getattr(header, name)) for name in SHOWN}


EXPECTED = [fields_of(header) for header, _ in FRAMES]


def test_the_script_is_what_the_format_asks_for() -> None:
    assert dissector.main(["--check"]) == 0


def test_a_stale_script_is_noticed_and_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = dissector.SCRIPT.read_text()
    stale = tmp_path / "checkmate.lua"
    stale.write_text(text.replace("local VERSION = 1", "local VERSION = 9"))
    monkeypatch.setattr(dissector, "SCRIPT", stale)
    assert dissector.main(["--check"]) == 1
    assert dissector.main([]) == 0
    assert stale.read_text() == text
    stale.write_text(text.replace(dissector.END, ""))
    with pytest.raises(ValueError, match="are not there once each"):
        dissector.main([])


def test_the_field_table_is_the_header() -> None:
    assert struct.calcsize("!" + "".join(code for _, code in FIELDS)) == HEADER_BYTES
    header, _ = FRAMES[0]
    values = struct.unpack("!" + "".join(code for _, code in FIELDS), header.pack())
    named = {name: value for (name, _), value in zip(FIELDS, values, strict=True)}
    assert {name: named[name] for name in SHOWN} == fields_of(header)


@needs_tshark
@pytest.mark.parametrize(
    "sizes",
    [[len(STREAM)], [1460], [100, 7, 1460, 63, 64, 65, 1], [8948], [4064, 64]],
    ids=lambda sizes: str(sizes[:3]),
)
def test_frames_are_put_together_from_any_segments(sizes: list[int], tmp_path: Path) -> None:
    assert shown(capture(tmp_path / "x.pcap", cut(STREAM, sizes))) == EXPECTED


@needs_tshark
def test_other_ports_repetitions_and_another_order(tmp_path: Path) -> None:
    pieces = cut(STREAM, [1000])
    pieces[3], pieces[5] = pieces[5], pieces[3]
    pieces.insert(9, pieces[7])
    assert shown(capture(tmp_path / "x.pcap", pieces, port=20003), "-o", "tcp.reassemble_out_of_order:TRUE") == EXPECTED


@needs_tshark
def test_a_capture_that_begins_anywhere(tmp_path: Path) -> None:
    begins = random.Random(1).sample(range(1, 4000), 8)
    for begin in [1, 63, 4063, *begins]:
        found = shown(capture(tmp_path / f"{begin}.pcap", cut(STREAM, [1460], begin), syn=False))
        assert found == EXPECTED[1:], begin


@needs_tshark
def test_after_a_gap_it_goes_on_at_the_next_frame(tmp_path: Path) -> None:
    pieces = [piece for piece in cut(STREAM, [1460]) if piece[0] != 5 * 1460]
    lost = range(5 * 1460, 6 * 1460)
    ends, at = [], 0
    for _, payload in FRAMES:
        ends.append((at, at + HEADER_BYTES + len(payload)))
        at = ends[-1][1]
    whole = [
        fields for fields, (begin, end) in zip(EXPECTED, ends, strict=True) if end <= lost.start or begin >= lost.stop
    ]
    assert shown(capture(tmp_path / "x.pcap", pieces)) == whole


@needs_tshark
def test_a_segment_that_the_snapshot_length_cut_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    path = capture(tmp_path / "x.pcap", cut(STREAM, [5000]))
    cut_path = tmp_path / "cut.pcap"
    with open_capture(path) as read, PcapWriter(cut_path) as writer:
        for packet in read:
            writer.write(packet.time_ns, packet.data[:200], packet.original_length)
    assert shown(cut_path) == []
    [begun] = tshark(cut_path, "-Y", "checkmate.whole == 0", "-T", "fields", "-e", "checkmate.step")
    assert begun == str(FRAMES[0][0].step)


@needs_tshark
def test_a_header_with_a_wrong_crc_is_none(tmp_path: Path) -> None:
    stream = bytearray(STREAM)
    stream[HEADER_BYTES + 4000 + 30] ^= 1  # in the second frame's header
    assert shown(capture(tmp_path / "x.pcap", cut(bytes(stream), [1460]))) == EXPECTED[:1] + EXPECTED[2:]


@needs_tshark
def test_payloads_are_checked_on_request(tmp_path: Path) -> None:
    header, payload = FRAMES[4]
    wrong = replace(header, payload_crc=header.payload_crc ^ 1)
    path = capture(tmp_path / "x.pcap", cut(header.pack() + payload + wrong.pack() + payload, [700]))
    told = ("-T", "fields", "-e", "checkmate.payload_crc_ok", "-Y", "checkmate")
    assert "".join(tshark(path, *told)).strip() == ""
    on = ("-o", "checkmate.payload_crc:TRUE")
    rows = ",".join(row for row in tshark(path, *on, *told) if row)
    assert rows in ("1,0", "True,False")
    expert = tshark(path, *on, "-T", "fields", "-e", "_ws.expert.message", "-Y", "checkmate.payload_crc.wrong")
    assert any("Payload CRC32C is wrong" in row for row in expert)


@needs_tshark
def test_the_packet_list_says_what_it_is(tmp_path: Path) -> None:
    rows = tshark(capture(tmp_path / "x.pcap", cut(STREAM, [len(STREAM)])), "-Y", "checkmate")
    assert "CKMT" in rows[0]
    assert f"step {(1 << 33) + 1} bucket 6 all gather hop 1 chunk 1 rank 2" in rows[0]
    assert f"[{(1 << 40) + 3}, {(1 << 40) + 3 + 16}) float32" in rows[0]


@needs_tshark
def test_other_traffic_is_left_alone(tmp_path: Path) -> None:
    pieces = cut(b"GET / HTTP/1.1\r\nHost: CKMT\r\n\r\n" + b"CKMT" * 40, [50])
    assert shown(capture(tmp_path / "x.pcap", pieces)) == []
    assert tshark(tmp_path / "x.pcap", "-Y", "checkmate") == []
