"""Replaying a capture of our own traffic, `checkmate replay --no-records` as a function, over a copy of memory.

The capture is of a shadow node's port, in the page cache; bytes are those of the file. ``python -m bench.bench_replay``
prints where the time goes.
"""

from __future__ import annotations

import cProfile
import pstats
import tempfile
import time
from pathlib import Path

from bench.bench_shadow import make_job, make_layout, replicas
from bench.memory import Memcpy
from bench.ratios import Ratio, in_turns
from capture.writer import PcapWriter
from packets import compiled
from replay.run import ReplayOptions, replay

AIMS = {1500: 0.05, 9000: 0.08}


def measure(quick: bool) -> dict[str, Ratio]:
    """Return the figures: captured bytes a second, by MTU."""
    compiled.load()
    found: dict[str, Ratio] = {}
    for mtu, aim in AIMS.items():
        with tempfile.TemporaryDirectory() as folder:
            replaying = _Replaying(Path(folder), mtu, 4 if quick else 16)
            found[f"replay_mtu{mtu}_over_memcpy"] = in_turns(
                replaying, Memcpy(), unit="GB/s", rounds=3 if quick else 9, aim=aim
            )
    return found


class _Replaying:
    """A capture of some steps of a model."""

    STEPS = 24

    def __init__(self, folder: Path, mtu: int, megabytes: int) -> None:
        job, layout = make_job(mtu), make_layout(megabytes)
        self.path = folder / f"{mtu}.pcap"
        count = 0
        with PcapWriter(self.path) as writer:
            for step in range(1, self.STEPS + 1):
                for frame in replicas(job, layout, step):
                    writer.write(count * 1000, frame)
                    count += 1

    def __call__(self) -> float:
        """Return captured bytes per second, in GB/s."""
        began = time.perf_counter()
        report = replay([self.path], ReplayOptions(), lambda *_: None)
        seconds = time.perf_counter() - began
        assert report.complete
        assert len(report.steps) == self.STEPS
        return self.path.stat().st_size / seconds / 1e9


def _profile() -> None:
    compiled.load()
    for mtu in AIMS:
        with tempfile.TemporaryDirectory() as folder:
            replaying = _Replaying(Path(folder), mtu, 16)
            print(f"MTU {mtu}: {replaying():.3f} GB/s")
            profiler = cProfile.Profile()
            profiler.runcall(replaying)
            pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    _profile()
