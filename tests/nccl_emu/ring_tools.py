"""Rings in memory for the tests: layouts, jobs, byte pipes, and the reference sum."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from checkmate_common.recovery.tensors import TORCH_DTYPES
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import Bucket, Layout, ParamSpec, Slot
from checkmate_common.stream.ring import Phase, chunk_range
from checkmate_common.stream.schedule import step_plan
from jobspec.model import Job
from nccl_emu.ring.ring_runner import RingPlace, RingRunner

PRIMARY = 3


def make_layout(sizes: Sequence[tuple[int, DType]], version: int = 1) -> Layout:
    slots = tuple(Slot(ParamSpec(f"p{index}", (size,), dtype), index, 0) for index, (size, dtype) in enumerate(sizes))
    return Layout(version, tuple(Bucket(i, dtype, size) for i, (size, dtype) in enumerate(sizes)), slots)


def make_ring(
    ring_size: int, channels: int, layout: Layout, frame_payload: int = 4096, epoch: int = 1
) -> list[RingRunner]:
    flows = tuple(range(channels))
    return [
        RingRunner(RingPlace(5, 2, epoch, rank, ring_size, channels, frame_payload, PRIMARY, flows), layout)
        for rank in range(ring_size)
    ]


def make_buckets(ring_size: int, layout: Layout, rng: random.Random) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    return [
        [torch.randn(bucket.elements, generator=generator).to(TORCH_DTYPES[bucket.dtype]) for bucket in layout.buckets]
        for _ in range(ring_size)
    ]


def reference(buckets: list[list[torch.Tensor]], layout: Layout, channels: int) -> list[torch.Tensor]:
    """Sum in the ring's order: chunk c starts at rank c, each next rank adds what it receives to its own."""
    size = len(buckets)
    result = [torch.empty_like(tensor) for tensor in buckets[0]]
    for bucket in layout.buckets:
        for channel in range(channels):
            for chunk in range(size):
                part = slice(*chunk_range(bucket.elements, channels, channel, size, chunk))
                total = buckets[chunk][bucket.index][part].clone()
                for hop in range(1, size):
                    total = buckets[(chunk + hop) % size][bucket.index][part] + total
                result[bucket.index][part] = total
    return result


class Pipes:
    """Byte pipes from every rank to its successor; delivers pieces of random sizes in random order."""

    def __init__(self, runners: list[RingRunner], rng: random.Random) -> None:
        self.runners = runners
        self.rng = rng
        channels = runners[0].place.channels
        self.pipes = {(rank, c): bytearray() for rank in range(len(runners)) for c in range(channels)}
        self.tagged = 0
        self.total = 0

    def collect(self) -> None:
        for rank, channel in self.pipes:
            while (write := self.runners[rank].next_write(channel)) is not None:
                assert write.channel == channel
                assert write.dscp in (0, PRIMARY)
                self.pipes[rank, channel] += write.data
                self.total += len(write.data)
                self.tagged += len(write.data) if write.dscp == PRIMARY else 0

    def deliver_one(self) -> bool:
        self.collect()
        waiting = [key for key, pipe in self.pipes.items() if pipe]
        if not waiting:
            return False
        rank, channel = self.rng.choice(waiting)
        pipe = self.pipes[rank, channel]
        size = min(len(pipe), self.rng.choice((1, 7, 64, 65, 1460, 100_000)))
        self.runners[(rank + 1) % len(self.runners)].feed(channel, bytes(pipe[:size]))
        del pipe[:size]
        return True

    def run(self) -> None:
        while self.deliver_one():
            pass
        assert all(runner.done for runner in self.runners)


def make_job(ranks: int, channels: int = 1, mtu: int = 1500, frame_payload: int = 4096, **fields: object) -> Job:
    hosts = [
        {"name": f"r{i}", "port": i + 1, "mac": f"02:00:00:00:01:{i:02x}", "ip": f"10.0.0.{10 + i}"}
        for i in range(ranks)
    ]
    shadow = {"name": "sh0", "port": ranks + 1, "mac": "02:00:00:00:02:00", "ip": "10.0.1.100"}
    group = {"name": "dp0", "ring": [h["name"] for h in hosts], "channels": channels, "shadows": ["sh0"]}
    return Job.model_validate(
        {
            "version": 1,
            "name": "test",
            "switch": {"ports": ranks + 1},
            "network": {"mtu": mtu},
            "hosts": hosts,
            "shadows": [shadow],
            "groups": [group],
            "framing": {"payload_bytes": frame_payload},
            **fields,
        }
    )


def hop_frames(job: Job, layout: Layout, hop: int) -> int:
    """Count the frames of one all-gather hop of a step, over all flows."""
    plans = [step_plan(flow.shape, layout) for flow in job.flows]
    return sum(len(plan.frames_of(b.index, Phase.ALL_GATHER, hop)) for plan in plans for b in layout.buckets)
