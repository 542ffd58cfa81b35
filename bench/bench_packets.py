"""Decoding of packet headers, TCP checksum of every byte included, and scans of capture files: GB/s and packets/s."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from capture.reader import open_capture
from packets.batch import PacketBatch
from packets.decode import decode_rows
from packets.headers import HEADER, Checksum
from packets.segment import Segment, TcpFlags
from packets.template import FrameTemplate

_BYTES = 16 << 20
_ROUNDS = 9


def best(action: Callable[[], object]) -> float:
    """Return the processor seconds of the quickest of some rounds."""
    times = []
    for _ in range(_ROUNDS):
        begin = time.thread_time()
        action()
        times.append(time.thread_time() - begin)
    return min(times)


def read(path: Path) -> int:
    with open_capture(path) as reader:
        return sum(map(len, reader.batches()))


def main() -> None:
    template = FrameTemplate("02:00:00:00:00:01", "02:00:00:00:00:02", "10.0.0.1", "10.0.0.2")
    for mtu in (1500, 9000, 64000):
        data = random.Random(mtu).randbytes(mtu - 40)
        count = _BYTES // mtu
        frames = [template.build(Segment(1, 2, n * len(data), 3, TcpFlags.ACK, 100, data)) for n in range(count)]
        batch = PacketBatch.of(frames)
        for name, function in (("compiled", decode_rows.compiled()), ("reference", decode_rows.reference)):
            rows = np.zeros(count, HEADER)

            columns = batch.data, batch.starts, batch.lengths, batch.wire_lengths, batch.link_types
            seconds = best(partial(function, *columns, True, rows))
            assert (rows["checksum"] == Checksum.OK).all()
            speed = f"{batch.data.size / seconds / 1e9:6.2f} GB/s {count / seconds / 1e6:6.3f} million packets/s"
            print(f"MTU {mtu:5} decode, {name:9}: {speed}")
        head = struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1)
        content = head + b"".join(struct.pack("<IIII", 1, n, len(f), len(f)) + f for n, f in enumerate(frames))
        with TemporaryDirectory() as folder:
            path = Path(folder, "x.pcap")
            path.write_bytes(content)
            seconds = best(partial(read, path))
        print(f"MTU {mtu:5} pcap to batches    : {len(content) / seconds / 1e9:6.2f} GB/s")


if __name__ == "__main__":
    main()
