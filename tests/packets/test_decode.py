"""The two decoders of headers against each other, and against packets whose headers are known."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packets import compiled, reference
from packets.batch import PacketBatch
from packets.checksum import internet_checksum
from packets.decode import decode, decode_rows
from packets.headers import HEADER, Checksum, Headers, Kind, LinkType
from tests.packets.frames import hostile, packet, tcp


def both(batch: PacketBatch) -> tuple[Headers, Headers]:
    arguments = batch.data, batch.starts, batch.lengths, batch.wire_lengths, batch.link_types
    found = []
    for function in (reference.decode, decode_rows.compiled()):
        rows: Any = np.zeros(len(batch), HEADER)
        function(*arguments, True, rows)
        found.append(rows)
    return found[0], found[1]


def same(batch: PacketBatch) -> Headers:
    slow, fast = both(batch)
    for number in np.flatnonzero(slow != fast):
        start, size = int(batch.starts[number]), int(batch.lengths[number])
        names = [name for name in HEADER.names or () if slow[number][name] != fast[number][name]]
        raise AssertionError(
            f"{names} differ: {slow[number]} {fast[number]} link {batch.link_types[number]} wire "
            f"{batch.wire_lengths[number]} {bytes(batch.data[start : start + size]).hex()}"
        )
    return slow


def batch_of(seed: int, count: int) -> PacketBatch:
    rng = random.Random(seed)
    frames, wires, links = zip(*(hostile(rng) for _ in range(count)), strict=True)
    batch = PacketBatch.of(list(frames), 1, list(wires))
    return PacketBatch(batch.data, batch.starts, batch.lengths, batch.wire_lengths, batch.times_ns,
                       np.array(links, np.uint16))  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_kernel_equals_reference_on_hostile_packets(seed: int) -> None:
    rows = same(batch_of(seed, 3000))
    assert set(rows["kind"]) == set(range(8)), "every kind occurs"
    assert set(rows["checksum"]) == set(range(5)), "every state of a checksum occurs"
    assert rows["vlan_depth"].max() >= 5


@settings(deadline=None, max_examples=60)
@given(
    st.binary(max_size=200),
    st.sampled_from((0, 1, 12, 101, 113, 228, 229, 276)),
    st.integers(0, 300),
    st.integers(0, 3),
)
def test_kernel_equals_reference_on_any_bytes(data: bytes, link_type: int, wire: int, lead: int) -> None:
    batch = PacketBatch.of([b"\xee" * lead, data], link_type, [lead, wire])
    same(batch)


def test_positions_outside_of_the_block_are_refused() -> None:
    batch = PacketBatch.of([b"\0" * 60] * 3)
    starts = np.array([-1, 150, 120], np.int64)
    moved = PacketBatch(batch.data, starts, batch.lengths, batch.wire_lengths, batch.times_ns, batch.link_types)
    assert same(moved)["kind"].tolist() == [Kind.MALFORMED, Kind.MALFORMED, Kind.OTHER]


@pytest.mark.parametrize("link_type", [0, 1, 12, 101, 108, 113, 228, 229, 276])
def test_link_types(link_type: int) -> None:
    rng = random.Random(link_type)
    rows = decode(PacketBatch.of([packet(rng, link_type) for _ in range(300)], link_type))
    assert np.count_nonzero(rows["kind"] == Kind.TCP) > 100
    tcp = rows[(rows["kind"] == Kind.TCP) & (rows["short"] == 0)]
    assert set(tcp["checksum"]) == {Checksum.OK, Checksum.PARTIAL}
    assert set(tcp["source_port"]) == {4000}


def test_length_0_takes_the_captured_length_and_large_segments_are_summed() -> None:
    rng = random.Random(1)
    source, destination = rng.randbytes(4), rng.randbytes(4)
    frames = []
    for size, partial in ((70_000, False), (200_001, False), (200_000, True)):
        segment = tcp(rng.randbytes(size), source, destination, rng, partial)
        header = struct.pack("!BBHHHBBH", 0x45, 0, 0, 1, 0x4000, 64, 6, 0) + source + destination
        header = header[:10] + struct.pack("!H", internet_checksum(header)) + header[12:]
        frames.append(bytes(12) + b"\x08\x00" + header + segment)
    rows = same(PacketBatch.of(frames))
    assert rows["payload_length"].tolist() == [70_000, 200_001, 200_000]
    assert rows["checksum"].tolist() == [Checksum.OK, Checksum.OK, Checksum.PARTIAL]
    assert set(rows["ip_checksum"]) == {Checksum.OK}


def test_flipped_bits_are_bad_not_partial() -> None:
    rng = random.Random(2)
    source, destination = rng.randbytes(4), rng.randbytes(4)
    segment = tcp(rng.randbytes(1000), source, destination, rng)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 1, 0x4000, 64, 6, 0) + source + destination
    frames = []
    for place in range(len(segment)):
        damaged = bytearray(header + segment)
        damaged[20 + place] ^= 1 << rng.randrange(8)
        frames.append(bytes(damaged))
    rows = same(PacketBatch.of(frames, LinkType.RAW))
    assert set(rows["checksum"][rows["kind"] == Kind.TCP]) == {Checksum.BAD}


def test_the_mode_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKMATE_KERNELS", "quick")
    with pytest.raises(ValueError, match="auto, compiled, reference"):
        compiled.mode()


def test_the_program_refuses_an_unknown_mode() -> None:
    program = "import checkmate.cli; checkmate.cli.main(['--help'])"
    environment = {**os.environ, "CHECKMATE_KERNELS": "quick"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "CHECKMATE_KERNELS" in done.stderr
    assert "Traceback" not in done.stderr


SWITCHING = """
import sys
from packets import compiled
from packets.batch import PacketBatch
from packets.decode import decode, decode_rows
compiled.LOAD_AFTER_BYTES = 1000
first = decode(PacketBatch.of([bytes(60)] * 10))
assert "numba" not in sys.modules and decode_rows._run is decode_rows.reference
decode(PacketBatch.of([bytes(60)] * 10))
assert compiled.load() is None, compiled.notice()
assert decode_rows._run is not decode_rows.reference
assert (decode(PacketBatch.of([bytes(60)] * 10)) == first).all()
"""
WITHOUT = """
import sys
sys.modules["numba"] = None
from packets import compiled
from packets.batch import PacketBatch
from packets.decode import decode
rows = decode(PacketBatch.of([bytes(60)] * 10))
assert len(rows) == 10
assert "plain Python" in compiled.notice(), compiled.notice()
"""


@pytest.mark.parametrize(("program", "mode"), [(SWITCHING, "auto"), (WITHOUT, "compiled")])
def test_kernels_are_loaded_by_volume_and_the_reference_runs_without_numba(program: str, mode: str) -> None:
    environment = {**os.environ, "CHECKMATE_KERNELS": mode}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
