"""Properties of the readers over captures of every kind, whole and damaged."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tracemalloc
import zlib
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from capture.errors import CaptureError
from capture.model import Packet
from capture.reader import CaptureReader, open_capture
from capture.writer import PcapngWriter, PcapWriter
from tests.capture.builders import enhanced, in_pieces, interface, pcap_header, read, read_what_can_be, record, section
from tests.capture.make_corpus import CORPUS
from tests.capture.strategies import CAPTURES, FRAMES, Made, damaged

MEMORY_BYTES = 4 << 20
CLAIMS_16_MIB = [
    pcap_header() + record(b"x", captured=1 << 24),
    section() + interface() + enhanced(b"x")[:4] + (1 << 24).to_bytes(4, "little") + bytes(100),
]


@given(CAPTURES)
def test_whole_capture_is_read_exactly(made: Made) -> None:
    assert read(made.content) == made.packets


@given(CAPTURES, st.integers(0, 9))
def test_gzip_of_any_level_is_the_same(made: Made, level: int) -> None:
    assert read(gzip.compress(made.content, level)) == made.packets


@given(st.data(), CAPTURES, st.lists(st.integers(1, 100), min_size=1, max_size=5))
def test_result_does_not_depend_on_the_pieces(data: st.DataObject, made: Made, sizes: list[int]) -> None:
    content = gzip.compress(made.content) if data.draw(st.booleans()) else made.content
    content, _ = data.draw(damaged(content) | st.just((content, 0)))
    packets, error = read_what_can_be(content)
    found: list[Packet] = []
    again = None
    try:
        for packet in CaptureReader(in_pieces(content, sizes), "test"):
            found.append(packet)
    except CaptureError as caught:
        again = caught
    assert found == packets
    assert str(again) == str(error)


@given(st.data(), CAPTURES)
@settings(max_examples=400)
def test_damage_ends_in_packets_and_a_capture_error(data: st.DataObject, made: Made) -> None:
    content, first = data.draw(damaged(made.content))
    packets, error = read_what_can_be(content)
    whole = sum(end <= first for end in made.ends)
    assert packets[:whole] == made.packets[:whole]
    for earlier, later in pairwise(packets):
        assert earlier.offset + len(earlier.data) < later.offset
        assert later.number == earlier.number + 1
    for packet in packets:
        assert packet.data in content[packet.offset :]
    if error is not None:
        assert 0 <= error.offset <= len(content)
        assert error.offset >= (packets[-1].offset if packets else 0)


@given(st.data(), CAPTURES)
def test_cut_anywhere_keeps_every_whole_packet(data: st.DataObject, made: Made) -> None:
    length = data.draw(st.integers(0, len(made.content)))
    packets, error = read_what_can_be(made.content[:length])
    whole = sum(end <= length for end in made.ends)
    assert packets == made.packets[:whole]
    if error is None:
        # Then this is where a record or block ended: what comes next makes the capture whole again.
        assert read(made.content[:length]) == packets
    else:
        assert "the file ends inside" in error.problem or "the file is empty" in error.problem
        assert (made.ends[whole - 1] if whole else 0) <= error.offset <= length


@given(st.data(), CAPTURES, st.integers(0, 9))
def test_damaged_gzip_gives_all_that_zlib_can_get_out_of_it(data: st.DataObject, made: Made, level: int) -> None:
    content, _ = data.draw(damaged(gzip.compress(made.content, level), 1))
    packets, error = read_what_can_be(content)
    if not content.startswith(b"\x1f\x8b"):
        assert packets == []
        return
    inflater, available = zlib.decompressobj(31), b""
    try:
        for index in range(len(content)):
            if inflater.eof:
                return  # the damage made a second member: covered by what follows for the first alone
            available += inflater.decompress(content[index : index + 1])
    except zlib.error:
        pass
    else:
        if inflater.eof:
            return
    expected, _ = read_what_can_be(available)
    assert packets == expected
    assert error is not None


@given(st.binary(max_size=300))
@example(bytes(24))
def test_anything_else_is_refused(content: bytes) -> None:
    packets, error = read_what_can_be(content)
    assert (packets, error is not None) == ([], True)


@given(st.data(), CAPTURES)
@settings(max_examples=60)
def test_memory_does_not_follow_claims(data: st.DataObject, made: Made) -> None:
    content, _ = data.draw(damaged(made.content) | st.sampled_from(CLAIMS_16_MIB).map(lambda claim: (claim, 0)))
    tracemalloc.start()
    try:
        read_what_can_be(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES


def test_memory_does_not_follow_the_number_of_pieces() -> None:
    content = pcap_header() + record(bytes(1 << 18))
    stream = in_pieces(content, [2])
    tracemalloc.start()
    try:
        assert len(list(CaptureReader(stream))) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(content)


@given(st.lists(st.tuples(st.integers(1, (1 << 32) * 10**9 - 1), FRAMES, st.integers(0, 3), st.integers(0, 5000))))
def test_what_was_written_is_read(items: list[tuple[int, bytes, int, int]]) -> None:
    with TemporaryDirectory() as folder:
        pcap, pcapng = Path(folder, "x.pcap"), Path(folder, "x.pcapng")
        with PcapWriter(pcap) as plain, PcapngWriter(pcapng, ["a", "b", "c", "d"]) as blocks:
            for time_ns, frame, index, more in items:
                original = len(frame) + more if more else None
                plain.write(time_ns, frame, original)
                blocks.write(time_ns, frame, index, original)
        for path in (pcap, pcapng):
            with open_capture(path) as reader:
                found = [(p.time_ns, p.data, p.interface, p.original_length, p.link_type) for p in reader]
            assert found == [
                (time_ns, frame, index if path is pcapng else 0, len(frame) + more, 1)
                for time_ns, frame, index, more in items
            ]


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed")
def test_atheris_finds_nothing_at_once(tmp_path: Path) -> None:
    words = ["-m", "tests.capture.fuzz_atheris", "-runs=3000", "-seed=1", f"-artifact_prefix={tmp_path}/"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, *words, str(tmp_path), str(CORPUS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=root,
    )
    assert done.returncode == 0, done.stderr
    assert "Done 3000 runs" in done.stderr
