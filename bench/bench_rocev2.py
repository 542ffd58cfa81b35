"""How fast RoCEv2 captures of NCCL all-reduces are decoded: encoded traffic in memory, one thread, CPU time.

Bytes are those of whole frames, as they are in a capture file. Run `python bench/bench_rocev2.py --json` for
machine-readable results, and with `--profile` for a table of where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from dataclasses import asdict, dataclass, replace

from capture.model import Packet
from rocev2.encode import Traffic, encode, to_packets
from rocev2.faults import lose
from rocev2.report import decode

CASES: dict[str, Traffic] = {
    "two ranks, MTU 1024": Traffic(mtu=1024),
    "two ranks, MTU 4096": Traffic(mtu=4096),
    "four ranks, two channels": Traffic(ranks=4, channels=2),
    "two ranks, 1 % lost": Traffic(mtu=1024),
    "one direction and p2p": Traffic(p2p=True),
}


@dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        case: what was decoded.
        packets: frames of the capture.
        megabytes: their bytes, in 10**6.
        seconds: CPU time, the best run.
        megabytes_per_s: frame bytes per second, in 10**6.
        packets_per_s: frames per second.
        covered: share of all reduced elements that was proven.
    """

    case: str
    packets: int
    megabytes: float
    seconds: float
    megabytes_per_s: float
    packets_per_s: float
    covered: float


def traffic_of(case: str, megabytes: float) -> tuple[Traffic, list[Packet]]:
    """Return about so many megabytes of a case's frames."""
    traffic = replace(CASES[case], buckets=(16000, 5000))
    size = sum(len(packet.data) for packet in encode(traffic).packets)
    traffic = replace(traffic, steps=max(1, round(megabytes * 1e6 / size)))
    packets = encode(traffic).packets
    if "lost" in case:
        packets = lose(packets, range(50, len(packets), 100))
    if "one direction" in case:
        packets = [packet for packet in packets if packet.source == 0]
    return traffic, to_packets(packets)


def measure(case: str, megabytes: float, runs: int) -> Result:
    """Decode a case several times; the best run counts."""
    traffic, packets = traffic_of(case, megabytes)
    total = sum(len(packet.data) for packet in packets)
    seconds = []
    covered = elements = 0
    for _ in range(runs):
        start = time.process_time()
        found = decode(packets, use_p2p=traffic.p2p, dtype=traffic.dtype, file=case)
        seconds.append(time.process_time() - start)
        covered = sum(int(item.covered.sum()) for item in found.all_reduces)
        elements = sum(traffic.buckets) * traffic.steps
    best = min(seconds)
    return Result(case, len(packets), total / 1e6, best, total / best / 1e6, len(packets) / best, covered / elements)


def profile(case: str, megabytes: float, lines: int) -> None:
    """Print where the time goes for a case."""
    traffic, packets = traffic_of(case, megabytes)
    profiler = cProfile.Profile()
    profiler.runcall(decode, packets, use_p2p=traffic.p2p, dtype=traffic.dtype, file=case)
    print(f"\n{case}")
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(lines)


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=8, help="frame bytes per case, in 10**6")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    parser.add_argument("--profile", action="store_true", help="print a profile of each case")
    options = parser.parse_args()
    if options.profile:
        for case in CASES:
            profile(case, options.megabytes, 18)
        return
    results = [measure(case, options.megabytes, options.runs) for case in CASES]
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    print(f"{'case':28}{'packets':>9}{'MB':>7}{'MB/s':>8}{'packets/s':>11}{'covered':>9}")
    for result in results:
        print(
            f"{result.case:28}{result.packets:9}{result.megabytes:7.1f}{result.megabytes_per_s:8.1f}"
            f"{result.packets_per_s:11.0f}{result.covered:9.1%}"
        )


if __name__ == "__main__":
    main()
