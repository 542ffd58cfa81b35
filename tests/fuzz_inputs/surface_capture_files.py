"""Capture files: headers, blocks, lengths, link types and packets that are damaged, read, decoded and replayed.

Whatever comes: errors are `CaptureError` and `ReplayError`; the two decoders agree; a step that is called complete is
the gradient that was sent; and memory follows what is in the file, not what it claims.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import random
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from capture.errors import CaptureError
from capture.reader import CaptureReader
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import ParamSpec, build_layout
from jobspec.model import Job
from packets.batch import PacketBatch
from packets.decode import decode_rows
from packets.headers import HEADER
from replay.errors import ReplayError
from replay.inspect import inspect_capture
from replay.run import ReplayOptions, replay
from tests.capture.builders import enhanced, interface, pcap_header, record, section, simple
from tests.fuzz_inputs.damage import damaged
from tests.packets.frames import packet
from tests.shadow_rx.wire import cut, make_job, primary_stretches, segment

NAME = "capture_files"
TEST_COUNT = 120
PER_CALL = 20
_STEPS = 3
_LINKS = {
    1: (b"", 0),
    101: (b"", 14),
    113: (b"\0\0\0\1\0\6" + bytes(8) + b"\x08\0", 14),
    276: (b"\x08\0" + bytes(18), 14),
}
_NUMBERS = (0, 1, 2, 3, 5, 6, 60, 113, 276, 1_000_000, 1 << 24, 0xFFFFFFFF, 0x0A0D0D0A, 0x1A2B3C4D, 0xA1B2C3D4)
_WORDS = [struct.pack(f"{order}I", number) for order in "<>" for number in _NUMBERS]
_WORDS += [b"\x81\x00", b"\x88\xa8", b"\x86\xdd", b"\x08\x00", b"CKMT"]


@cache
def _sent() -> tuple[Job, list[bytes], frozenset[tuple[int, str]]]:
    """A job, the frames of a few steps, and step and SHA-256 of the gradients in them."""
    job = make_job(2)
    layout = build_layout([ParamSpec(f"p{i}", (size,), DType.FLOAT32) for i, size in enumerate((70, 41, 5))], 300, 1)
    frames, truth = [], set()
    for step in range(1, _STEPS + 1):
        rng = random.Random(step)
        buckets = [rng.randbytes(bucket.nbytes) for bucket in layout.buckets]
        truth.add((step, hashlib.sha256(b"".join(buckets)).hexdigest()))
        for flow in job.flows:
            for stretch in primary_stretches(job, flow, layout, 1, 1, step, buckets):
                frames += [segment(job, part, 50000) for part in cut(stretch, itertools.repeat(300))]
    return job, frames, frozenset(truth)


def _content(rng: random.Random) -> bytes:
    """Return a capture file of any kind, damaged somewhere or nowhere."""
    link = rng.choice(list(_LINKS))
    head, drop = _LINKS[link]
    frames = [head + frame[drop:] for frame in _sent()[1]]
    for _ in range(rng.choice((0, 0, 1, 3))):
        at = rng.randrange(len(frames))
        match rng.randrange(5):
            case 0:
                frames[at] = damaged(rng, frames[at], _WORDS)
            case 1:
                del frames[at:]
                frames = frames or [b""]
            case 2:
                frames.insert(at, frames[rng.randrange(len(frames))])
            case 3:
                frames.insert(at, packet(rng, link))
            case _:
                other = rng.randrange(len(frames))
                frames[at], frames[other] = frames[other], frames[at]
    order = rng.choice("<>")
    if rng.random() < 0.5:
        original = rng.choice((None, 40, 100_000))
        units = rng.choice((5, 2_000_000))
        parts = [pcap_header(order, link=link)]
        parts += [record(frame, number, units, order, original=original) for number, frame in enumerate(frames, 1)]
    else:
        parts = [section(order), interface(order, link)]
        for number, frame in enumerate(frames):
            if rng.random() < 0.05:
                parts += [section(order), interface(order, link)]
            parts.append(simple(frame, len(frame), order) if rng.random() < 0.1 else enhanced(frame, number, 0, order))
    content = b"".join(parts)
    if rng.random() < 0.6:
        edge = rng.choice((40, 400, len(content)))
        content = damaged(rng, content[:edge], _WORDS) + content[edge:]
    if rng.random() < 0.15:
        content = gzip.compress(content, 1)
        if rng.random() < 0.5:
            content = damaged(rng, content)
    return content


def run(rng: random.Random, count: int) -> int:
    """Try `count` files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "input")
        for _ in range(count):
            content = _content(rng)
            try:
                path.write_bytes(content)
                _read(content)
                _replay(path, rng)
            except Exception as error:
                raise AssertionError(f"{type(error).__name__}: {error}: {content.hex()}") from error
    return count


def _read(content: bytes) -> None:
    """Read the file in batches and packet by packet, and decode it with both decoders."""
    packets = []
    error = None
    try:
        packets.extend(CaptureReader(io.BytesIO(content)))
    except CaptureError as caught:
        error = str(caught)
    batches, failed = _batches(content)
    assert failed == error
    assert error is not None or sum(map(len, batches)) == len(packets)


def _batches(content: bytes) -> tuple[list[PacketBatch], str | None]:
    batches: list[PacketBatch] = []
    failed = None
    try:
        for batch in CaptureReader(io.BytesIO(content)).batches():
            _decode(batch)
            batches.append(batch)
    except CaptureError as error:
        failed = str(error)
    return batches, failed


def _decode(batch: PacketBatch) -> None:
    found: list[Any] = []
    for function in (decode_rows.reference, decode_rows.compiled()):
        rows = np.zeros(len(batch), HEADER)
        function(batch.data, batch.starts, batch.lengths, batch.wire_lengths, batch.link_types, True, rows)
        found.append(rows)
    assert (found[0] == found[1]).all(), "the two decoders differ"


def _replay(path: Path, rng: random.Random) -> None:
    job, _, truth = _sent()
    try:
        report = replay([path], ReplayOptions(job if rng.random() < 0.7 else None), lambda *_: None)
    except ReplayError:
        report = None
    for step in report.steps if report is not None else ():
        if step.complete and step.group in ("dp0", f"group-{job.groups[0].id}"):
            assert (step.step, step.sha256) in truth, f"step {step.step} is called complete and is wrong"
    try:
        inspect_capture(path)
    except CaptureError:
        return
