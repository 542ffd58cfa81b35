"""Files of any size and any claim, read by a process that may use little memory: packets, an error, nothing else."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.capture.builders import block, enhanced, interface, option, pcap_header, record, section

# Beside what the interpreter has mapped; the largest packet passes through four buffers of 16 MiB.
LIMIT_BYTES = 112 << 20
HUGE_BYTES = 10 << 30
PROGRAM = f"""
import resource, sys
from capture.errors import CaptureError
from capture.reader import open_capture
limit = {LIMIT_BYTES} + resource.getpagesize() * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
count = octets = 0
error = "no error"
try:
    with open_capture(sys.argv[1]) as reader:
        for packet in reader:
            count += 1
            octets += len(packet.data)
except CaptureError as caught:
    error = f"at byte {{caught.offset}}: {{caught.problem}}"
print(count, octets, error)
"""
FRAME = bytes(range(60))
PCAP = pcap_header() + record(FRAME)
PCAPNG = section() + interface() + enhanced(FRAME)


def run(path: Path) -> tuple[int, int, str]:
    """Read `path` within the limit; return number of packets, of their bytes, and the error."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    count, octets, error = done.stdout.rstrip("\n").split(" ", 2)
    return int(count), int(octets), error


@pytest.mark.parametrize(
    ("content", "packets", "error"),
    [
        (b"", 0, "at byte 0: "),
        (PCAP, 1, f"at byte {len(PCAP)}: a hole of zeros"),
        (PCAP + record(b"", captured=3 << 30), 1, f"at byte {len(PCAP)}: a packet of {3 << 30} captured bytes"),
        (PCAP + record(b"", captured=1 << 24), 2, f"at byte {len(PCAP) + 16 + (1 << 24)}: a hole of zeros"),
        (PCAPNG, 1, f"at byte {len(PCAPNG)}: a block of type 0x00000000 of 0 bytes"),
        (PCAPNG + block(6, b"", length=1 << 24)[:8], 1, "length is 16777216 at its beginning and 0 at its end"),
        (PCAPNG + block(99, b"", length=1 << 24)[:8], 1, "length is 16777216 at its beginning and 0 at its end"),
        (PCAPNG + block(99, b"", length=0xFFFFFFFC)[:8], 1, "of 4294967292 bytes"),
    ],
)
def test_ten_gigabytes_of_nothing(tmp_path: Path, content: bytes, packets: int, error: str) -> None:
    path = tmp_path / "sparse"
    path.write_bytes(content)
    try:
        os.truncate(path, HUGE_BYTES)
    except OSError:
        pytest.skip("the file system of the temporary folder has no files of 10 GB")
    count, _, found = run(path)
    assert (count, error in found) == (packets, True), found


def one_member(head: bytes, repeated: bytes, times: int) -> bytes:
    """Return a gzip file of `head` and `times` of `repeated`, which takes no time to make; its checksum is missing."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    begin = deflate.compress(head) + deflate.flush(zlib.Z_FULL_FLUSH)
    # After a full flush nothing refers to what came before, so the same bytes mean the same again.
    again = deflate.compress(repeated) + deflate.flush(zlib.Z_FULL_FLUSH)
    return gzip.compress(b"")[:10] + begin + again * times


@pytest.mark.parametrize(
    ("head", "repeated", "times", "expected"),
    [
        (pcap_header(), record(bytes(1500)) * 1000, 300, (300_000, 450_000_000)),
        (pcap_header(), record(bytes(1 << 24)), 40, (40, 40 << 24)),
        (section() + interface(), enhanced(bytes(1500)) * 1000, 200, (200_000, 300_000_000)),
        (section() + interface(), block(10, bytes(1 << 20)) * 10, 40, (0, 0)),
        (section(), interface(options=option(2, b"n" * 60_000)) * 100, 40, (0, 0)),
    ],
    ids=["pcap", "large packets", "pcapng", "skipped blocks", "interfaces with long names"],
)
def test_gzip_that_expands_to_more_than_the_memory(
    tmp_path: Path, head: bytes, repeated: bytes, times: int, expected: tuple[int, int]
) -> None:
    size = len(head) + len(repeated) * times
    assert size > LIMIT_BYTES
    path = tmp_path / "bomb.gz"
    path.write_bytes(one_member(head, repeated, times))
    error = f"at byte {size}: nothing more can be read, because the gzip data ends early"
    assert run(path) == (*expected, f"{error} (offset in the decompressed data)")


def test_limit_is_one() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM.replace("count = octets", f"bytes({2 * LIMIT_BYTES})\ncount = octets"),
            "x",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "MemoryError" in done.stderr
