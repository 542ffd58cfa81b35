"""How fast replicas become placed and checked bytes: from a frame in memory, and from a network interface.

Ratios for `bench.run`; ``python -m bench.bench_placement`` prints them.
"""

from __future__ import annotations

import time

from bench.bench_shadow import attach, make_job, make_layout, replicas
from bench.memory import Memcpy
from bench.ratios import Ratio, in_turns
from packets import compiled
from packets.batch import PacketBatch
from shadow_rx.core import ShadowCore

BATCH_BYTES = 1 << 20
"""Size of a batch: that of a block of a capture ring."""
AIMS = {1500: 0.15, 9000: 0.2}


def batches(frames: list[bytes]) -> list[PacketBatch]:
    """Return frames in batches of about `BATCH_BYTES`."""
    found: list[PacketBatch] = []
    some: list[bytes] = []
    size = 0
    for frame in frames:
        some.append(frame)
        size += len(frame)
        if size >= BATCH_BYTES:
            found.append(PacketBatch.of(some))
            some, size = [], 0
    return [*found, PacketBatch.of(some)] if some else found


class Placing:
    """A core that gets the replicas of one step after another; the optimizer is left out."""

    def __init__(self, mtu: int, megabytes: int) -> None:
        """Build the replicas of a step of a model of so many megabytes."""
        self._job, self._layout = make_job(mtu), make_layout(megabytes)
        self._core = ShadowCore(self._job, "sh0")
        attach(self._core, self._layout)
        self._batches = batches(replicas(self._job, self._layout, 1))

    def __call__(self) -> float:
        """Return the gradient bytes per second, in GB/s (10**9), of placing and checking one step."""
        epoch = self._core.group("dp0").progress.epoch
        assert epoch is not None
        # The same step again, in memory that was used before: what is measured is not the allocation.
        epoch.assembler.slot(1).reset(1, self._job.id, 0, 1)
        began = time.perf_counter()
        for batch in self._batches:
            for name, segments in self._core.segments(batch):
                self._core.group(name).arrivals.on_segments(segments, 0.0)
        seconds = time.perf_counter() - began
        assert epoch.assembler.slot(1).complete
        return self._layout.nbytes / seconds / 1e9


def measure(quick: bool) -> dict[str, Ratio]:
    """Return the figures of placing."""
    trouble = compiled.load()
    if trouble is not None:
        raise SystemExit(trouble)
    megabytes, rounds = (16, 3) if quick else (64, 9)
    memcpy = Memcpy()
    return {
        f"shadow_place_mtu{mtu}_over_memcpy": in_turns(
            Placing(mtu, megabytes), memcpy, unit="GB/s", rounds=rounds, aim=aim
        )
        for mtu, aim in AIMS.items()
    }


if __name__ == "__main__":
    for name, ratio in measure(False).items():
        print(name, ratio)
