"""Opening captures: what kind it is, where it comes from, gzip, and how far reading is."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import subprocess
import sys
import zlib
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from capture.errors import CaptureError
from capture.model import Packet, make_packet
from capture.reader import CaptureReader, open_capture
from tests.capture.builders import enhanced, in_pieces, interface, pcap_header, read, read_what_can_be, record, section

RANDOM = random.Random(4)
FRAMES = [RANDOM.randbytes(length) for length in (60, 0, 1514, 9014, 61) * 20]
PCAP = pcap_header() + b"".join(record(frame, n) for n, frame in enumerate(FRAMES, 1))
PCAPNG = section() + interface() + b"".join(enhanced(frame) for frame in FRAMES)


@pytest.mark.parametrize(("content", "kind"), [(PCAP, "pcap"), (PCAPNG, "pcapng")])
@pytest.mark.parametrize("zipped", [False, True])
def test_from_a_file(tmp_path: Path, content: bytes, kind: str, zipped: bool) -> None:
    path = tmp_path / "no-extension"
    path.write_bytes(gzip.compress(content) if zipped else content)
    with open_capture(path) as reader:
        assert (reader.format, reader.size) == (kind, path.stat().st_size)
        assert [packet.data for packet in reader] == FRAMES
        assert reader.bytes_read == reader.size
    with open_capture(str(path)) as reader:
        assert list(reader) == read(content)


def test_progress_grows_to_the_size(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(PCAP + b"".join(record(bytes(1 << 20), n) for n in range(12)))
    with open_capture(path) as reader:
        seen = [reader.bytes_read for _ in reader]
    assert seen == sorted(seen)
    assert len(set(seen)) > 2
    assert 0 < seen[0] < seen[-1] == path.stat().st_size


@pytest.mark.parametrize("content", [PCAP, PCAPNG])
def test_from_standard_input(content: bytes) -> None:
    program = (
        "from capture.reader import open_capture\n"
        "with open_capture('-') as reader: print(reader.size, len(list(reader)), flush=True)\n"
        "try: list(open_capture('-'))\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=content, capture_output=True, check=True, timeout=60)
    first, second = done.stdout.decode().splitlines()
    assert first == f"None {len(FRAMES)}"
    assert second == "standard input: at byte 0: the file is empty; capture again"


def test_packets_of_a_live_pipe_are_not_held_back() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering=0) as target:
        target.write(pcap_header() + record(b"first", 1))
        with CaptureReader(source) as reader:
            packets = iter(reader)
            assert next(packets).data == b"first"
            target.write(record(b"second", 2)[:-2])
            target.write(record(b"second", 2)[-2:])
            assert next(packets).data == b"second"
            target.close()
            assert list(packets) == []
        assert not source.closed, "only files that were opened here are closed"


@pytest.mark.parametrize("content", [PCAP, PCAPNG, gzip.compress(PCAP), gzip.compress(PCAPNG)])
@pytest.mark.parametrize("sizes", [[1], [7], [3, 16, 1, 4000]])
def test_pieces_of_any_size(content: bytes, sizes: list[int]) -> None:
    with CaptureReader(in_pieces(content, sizes)) as reader:
        assert [packet.data for packet in reader] == FRAMES
        assert (reader.size, reader.bytes_read) == (None, len(content))


def test_stream_is_read_from_its_present_position() -> None:
    stream = io.BytesIO(b"before" + PCAP)
    stream.seek(6)
    with CaptureReader(stream) as reader:
        assert next(iter(reader)).offset == 24
    assert not stream.closed


def test_gzip_with_several_members_and_padding() -> None:
    middle = len(PCAP) // 2
    members = [gzip.compress(part) for part in (PCAP[:middle], b"", PCAP[middle:])]
    assert read(members[0] + members[1] + members[2] + bytes(70_000)) == read(PCAP)
    assert read(members[0] + bytes(512) + members[2]) == read(PCAP)


def test_gzip_that_expands_a_thousandfold() -> None:
    content = pcap_header() + record(bytes(3_000_000)) * 3
    assert [len(packet.data) for packet in read(gzip.compress(content))] == [3_000_000] * 3


@pytest.mark.parametrize("content", [PCAP, PCAPNG])
@pytest.mark.parametrize("level", [0, 6])
def test_truncated_gzip_gives_what_zlib_can_get_out_of_it(content: bytes, level: int) -> None:
    whole = gzip.compress(content, level)
    for length in RANDOM.sample(range(200, len(whole)), 30):
        available = zlib.decompressobj(31).decompress(whole[:length])
        expected, _ = read_what_can_be(available)
        packets, error = read_what_can_be(whole[:length])
        assert packets == expected
        assert error is not None
        assert "the gzip data ends early" in error.problem
        assert error.offset <= len(available)


def test_truncated_gzip_gives_what_is_still_inside_zlib() -> None:
    # One byte stands for a thousand here, and the end of a piece of output falls inside what one symbol stands for.
    whole = gzip.compress(pcap_header() + record(bytes(70), 1) * 1000)
    for length in range(30, len(whole)):
        available = zlib.decompressobj(31).decompress(whole[:length])
        assert len(read_what_can_be(whole[:length])[0]) == max(0, len(available) - 24) // 86


def test_damaged_gzip_gives_the_packets_before_the_damage() -> None:
    # Fixed compressible content, one block: what follows the damage is garbage or an error.
    content = pcap_header() + b"".join(record(bytes([n]) * 200, n + 1) for n in range(100))
    whole = bytearray(gzip.compress(content))
    whole[-8] ^= 0xFF  # the checksum
    packets, error = read_what_can_be(bytes(whole))
    assert packets == read(content)
    assert error is not None
    assert "incorrect data check" in error.problem
    assert error.offset == len(content)
    packets, error = read_what_can_be(gzip.compress(content) + b"something else")
    assert packets == read(content)
    assert error is not None
    assert "the gzip data is damaged" in error.problem


def test_offsets_of_gzip_are_those_of_the_decompressed_data() -> None:
    _, error = read_what_can_be(gzip.compress(pcap_header() + record(b"x", captured=9)))
    assert error is not None
    assert error.offset == 24
    assert "(offset in the decompressed data)" in error.problem


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "at byte 0: the file is empty"),
        (gzip.compress(b""), "at byte 0: the file is empty"),
        (b"\n\r", "ends inside the file header: only 2 of 4 bytes"),
        (b"\x1f", "ends inside the file header: only 1 of 4 bytes"),
        (b"\x1f\x8b", "the gzip data ends early"),
        (b"\x1f\x8b\xff\xff\xff\xff", "the gzip data is damaged"),
        (bytes.fromhex("a1b2cd34") + bytes(20), "a 'modified' pcap file (Kuznetzov's"),
        (bytes.fromhex("34cdb2a1") + bytes(20), "a 'modified' pcap file (Kuznetzov's"),
        (bytes.fromhex("ac01001c") + bytes(20), "an IXIA pcap file"),
        (b"snoop\0\0\0", "a snoop file"),
        (b"GMBU....", "Network Monitor"),
        (b"RTSS....", "Network Monitor"),
        (b"\x28\xb5\x2f\xfd....", "zstd -d"),
        (b"\x04\x22\x4d\x18....", "lz4-compressed"),
        (b"\xfd7zXZ\0", "xz-compressed"),
        (b"BZh91AY", "bzip2-compressed"),
        (b"PK\x03\x04....", "a zip archive"),
        (gzip.compress(gzip.compress(PCAP)), "gzip-compressed twice"),
        (b"<html>", "3c68746d"),
        (bytes(100), "00000000"),
    ],
)
def test_what_is_no_capture(content: bytes, message: str) -> None:
    packets, error = read_what_can_be(content)
    assert packets == []
    assert message in str(error)


def test_refused_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(b"<html>")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CaptureError, match=r"x\.pcap: at byte 0: "):
        open_capture(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_missing_file_and_folder_are_os_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_capture(tmp_path / "x.pcap")
    with pytest.raises(IsADirectoryError):
        open_capture(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=f"it is a {kind}; .* as -"):
        open_capture(tmp_path / "pipe" if kind == "pipe" else Path("/dev/zero"))


def test_second_loop_goes_on_and_a_closed_reader_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(PCAP)
    with open_capture(path) as reader:
        for packet in reader:
            if packet.number == 10:
                break
        assert [packet.number for packet in reader] == list(range(11, len(FRAMES) + 1))
        assert list(reader) == []
    with pytest.raises(ValueError, match="the capture was closed"):
        iter(reader)
    reader.close()


def test_error_says_everything_and_can_be_pickled() -> None:
    error = CaptureError("x.pcap", 24, "a hole", "fill it")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "x.pcap: at byte 24: a hole; fill it"
    assert (again.path, again.offset, again.problem, again.fix) == ("x.pcap", 24, "a hole", "fill it")


def test_packets_that_were_read_are_packets() -> None:
    values = (1, 2, b"3", 4, 5, 6, 7)
    made = make_packet(*values)
    assert type(made) is Packet
    assert made == Packet(*values)
    assert hash(made) == hash(Packet(*values))
    assert tuple(getattr(made, field.name) for field in fields(made)) == values
    assert replace(made, number=9) == Packet(9, *values[1:])
    with pytest.raises(FrozenInstanceError):
        made.number = 3  # type: ignore[misc]
