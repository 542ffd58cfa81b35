"""Decoding two ranks' captures of NCCL all-reduces, from batches in memory to reduced tensors, over a copy of memory.

Bytes are those of whole frames, as they are in a capture file. ``python -m bench.bench_rocev2`` prints where the time
goes.
"""

from __future__ import annotations

import cProfile
import itertools
import pstats
import time

from bench.memory import Memcpy
from bench.ratios import Ratio, in_turns
from packets import compiled
from packets.batch import PacketBatch
from rocev2.encode import Traffic, encode
from rocev2.report import decode

_MTUS = (1024, 4096)
_BATCH_BYTES = 4 << 20  # as a capture file is read


def measure(quick: bool) -> dict[str, Ratio]:
    """Return the figures: captured bytes a second, by path MTU."""
    compiled.load()
    return {
        f"rocev2_decode_mtu{mtu}_over_memcpy": in_turns(
            _Decoding(mtu, 3 if quick else 12), Memcpy(), unit="GB/s", rounds=3 if quick else 9, aim=0.05
        )
        for mtu in _MTUS
    }


class _Decoding:
    def __init__(self, mtu: int, all_reduces: int) -> None:
        capture = encode(Traffic(mtu=mtu, buckets=(262000,), steps=all_reduces))
        frames = [packet.data for packet in capture.packets]
        self._bytes = sum(map(len, frames))
        self._tensors = capture.tensors
        count = _BATCH_BYTES * len(frames) // self._bytes
        self._batches = [PacketBatch.of(frames[at : at + count]) for at in range(0, len(frames), count)]

    def __call__(self) -> float:
        began = time.perf_counter()
        found = decode(self._batches, use_p2p=False, dtype="float32", file="bench")
        seconds = time.perf_counter() - began
        assert all(
            item is not None and item.data == tensor
            for item, tensor in itertools.zip_longest(found.all_reduces, self._tensors)
        )
        return self._bytes / seconds / 1e9


def _profile() -> None:
    compiled.load()
    for mtu in _MTUS:
        decoding = _Decoding(mtu, 12)
        decoding()
        profiler = cProfile.Profile()
        profiler.runcall(decoding)
        print(f"MTU {mtu}")
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    _profile()
