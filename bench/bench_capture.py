"""How fast captures are read, in both formats, and how much faster than by scapy's raw readers.

Both readers get the same file in the same run, alternately, and the best of the rounds counts. Times are CPU times, so
that other load on the machine does not count. Files are written to a temporary folder and are read from the page cache.
Run `python bench/bench_capture.py --json` for machine-readable results; `--profile` shows where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import gzip
import json
import pstats
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scapy.utils import RawPcapNgReader, RawPcapReader

from capture.reader import open_capture
from capture.writer import PcapngWriter, PcapWriter

FRAME_BYTES = (60, 1514, 9014)
START_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        format: kind of file.
        frame_bytes: size of each frame.
        packets: frames in the file.
        packets_per_s: frames read per second.
        megabytes_per_s: bytes of the (decompressed) file read per second, in 10**6.
        scapy_packets_per_s: frames that scapy's raw reader reads per second.
        ratio: ours to scapy's.
    """

    format: str
    frame_bytes: int
    packets: int
    packets_per_s: int
    megabytes_per_s: float
    scapy_packets_per_s: int
    ratio: float


def write(folder: Path, frame_bytes: int, packets: int) -> list[tuple[str, Path, int]]:
    """Write the same frames in each format; return name, file, and size before compression."""
    # Compressed, gradients are neither noise nor patterns: mantissas are random, exponents are not.
    values = np.random.default_rng(0).normal(0, 1e-3, (256, frame_bytes // 4 + 1)).astype(np.float32)
    frames = [row.tobytes()[:frame_bytes] for row in values]
    pcap, pcapng = folder / f"{frame_bytes}.pcap", folder / f"{frame_bytes}.pcapng"
    with PcapWriter(pcap) as plain, PcapngWriter(pcapng, ["s1-eth1", "s1-eth2"]) as blocks:
        for n in range(packets):
            plain.write(START_NS + n, frames[n & 255])
            blocks.write(START_NS + n, frames[n & 255], n & 1)
    zipped = pcap.with_suffix(".pcap.gz")
    with pcap.open("rb") as source, gzip.open(zipped, "wb", compresslevel=1) as target:
        shutil.copyfileobj(source, target)
    size = pcap.stat().st_size
    return [("pcap", pcap, size), ("pcapng", pcapng, pcapng.stat().st_size), ("pcap.gz", zipped, size)]


def seconds(reader: Iterable[object], expected: int) -> float:
    """Return the CPU time that `reader` takes to hand out its `expected` packets."""
    begin = time.process_time()
    count = sum(1 for _ in reader)
    elapsed = time.process_time() - begin
    if count != expected:
        raise RuntimeError(f"{count} packets instead of {expected}")
    return elapsed


def measure(kind: str, path: Path, size: int, frame_bytes: int, packets: int, rounds: int) -> Result:
    """Read `path` by both readers, `rounds` times."""
    scapy: Callable[[str], Iterable[object]] = RawPcapNgReader if kind == "pcapng" else RawPcapReader
    ours, theirs = [], []
    for _ in range(rounds):
        with open_capture(path) as capture:
            ours.append(seconds(capture, packets))
        theirs.append(seconds(scapy(str(path)), packets))
    best, other = min(ours), min(theirs)
    return Result(
        format=kind,
        frame_bytes=frame_bytes,
        packets=packets,
        packets_per_s=round(packets / best),
        megabytes_per_s=round(size / best / 1e6, 1),
        scapy_packets_per_s=round(packets / other),
        ratio=round(other / best, 2),
    )


def profile(path: Path) -> None:
    """Print where the time of reading `path` goes."""
    with cProfile.Profile() as profiler, open_capture(path) as capture:
        for _ in capture:
            pass
    pstats.Stats(profiler).sort_stats("tottime").print_stats(8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=64, help="size of each file")
    parser.add_argument("--rounds", type=int, default=3, help="how often each file is read")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--profile", action="store_true", help="print profiles instead")
    options = parser.parse_args(arguments)
    results: list[Result] = []
    for frame_bytes in FRAME_BYTES:
        packets = max(1, min(200_000, options.megabytes * 1_000_000 // frame_bytes))
        with tempfile.TemporaryDirectory() as folder:
            for kind, path, size in write(Path(folder), frame_bytes, packets):
                if options.profile:
                    print(f"{kind}, {packets} frames of {frame_bytes} bytes")
                    profile(path)
                else:
                    results.append(measure(kind, path, size, frame_bytes, packets, options.rounds))
    if options.profile:
        return
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    print(f"{'format':<8} {'bytes':>6} {'packets':>8} {'packets/s':>10} {'MB/s':>8} {'scapy p/s':>10} {'ratio':>6}")
    for r in results:
        row = f"{r.format:<8} {r.frame_bytes:>6} {r.packets:>8} {r.packets_per_s:>10} {r.megabytes_per_s:>8}"
        print(f"{row} {r.scapy_packets_per_s:>10} {r.ratio:>6}")


if __name__ == "__main__":
    main()
