"""How fast captures of our own traffic are replayed: MB/s of capture file, by MTU, with and without finding streams.

One thread. A capture of replicas of a synthetic model is written first, then replayed from frame headers alone (no
optimizer). Run `python bench/bench_replay.py`; `--profile` shows where the time goes, `--json` is for machines.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.bench_shadow import make_job, make_layout, replicas
from capture.reader import open_capture
from capture.writer import PcapWriter
from replay.run import ReplayOptions, replay
from replay.survey import Survey


@dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        case: what was done.
        mtu: largest IP packet in bytes.
        file_bytes: size of the capture.
        packets: packets in it.
        seconds: CPU time.
        megabytes_per_s: capture bytes per second, in 10**6.
    """

    case: str
    mtu: int
    file_bytes: int
    packets: int
    seconds: float
    megabytes_per_s: float


def write_capture(path: Path, mtu: int, megabytes: int, steps: int) -> int:
    """Write `steps` steps of a model of so many megabytes as a shadow's port sees them; return the packets."""
    job, layout = make_job(mtu), make_layout(megabytes)
    count = 0
    with PcapWriter(path) as writer:
        for step in range(1, steps + 1):
            for frame in replicas(job, layout, step):
                writer.write(count * 1000, frame)
                count += 1
    return count


def measure(path: Path, mtu: int, packets: int, steps: int) -> list[Result]:
    size = path.stat().st_size
    found: list[Result] = []

    def note(case: str, begin: float) -> None:
        seconds = time.process_time() - begin
        found.append(Result(case, mtu, size, packets, seconds, size / seconds / 1e6))

    begin = time.process_time()
    with open_capture(path) as reader:
        for _ in reader:
            pass
    note("read the file", begin)
    begin = time.process_time()
    with open_capture(path) as reader:
        Survey().read(reader)
    note("find streams", begin)
    begin = time.process_time()
    report = replay([path], ReplayOptions(), lambda *_: None)
    note("replay", begin)
    if not report.complete or len(report.steps) != steps:
        raise SystemExit("the replay is not complete")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=8, help="size of the gradient")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--mtu", type=int, action="append", help="by default 1500 and 9000")
    parser.add_argument("--profile", action="store_true", help="show the functions that take the most time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        for mtu in options.mtu or (1500, 9000):
            path = Path(folder) / f"{mtu}.pcap"
            packets = write_capture(path, mtu, options.megabytes, options.steps)
            results += measure(path, mtu, packets, options.steps)
            if options.profile:
                profile = cProfile.Profile()
                profile.runcall(replay, [path], ReplayOptions(), lambda *_: None)
                print(f"MTU {mtu}:")
                pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(15)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    for result in results:
        print(
            f"MTU {result.mtu:5}  {result.case:14} {result.megabytes_per_s:8.1f} MB/s  "
            f"{result.packets / result.seconds / 1e3:7.1f} thousand packets/s"
        )


if __name__ == "__main__":
    main()
