"""A seeded, impaired wire in memory between the nodes of a ring."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

import torch

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import Layout, ParamSpec, build_layout
from jobspec.model import Job
from nccl_emu.ring.rank_node import RankNode
from nccl_emu.tcp import TcpConfig

DELAY = 0.001
Impairment = Callable[[bytes], list[tuple[float, bytes]]]
"""From a frame to its copies on the wire, each with its delay in seconds."""


def float_layout(*sizes: int) -> Layout:
    return build_layout([ParamSpec(f"p{i}", (n,), DType.FLOAT32) for i, n in enumerate(sizes)], bucket_bytes=1)


def whole_buckets(layout: Layout, ranks: int, seed: int) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    """Return buckets of small whole numbers (whose sums are exact in any order) and their sums."""
    generator = torch.Generator().manual_seed(seed)
    buckets = [
        [torch.randint(-9, 10, (b.elements,), generator=generator).float() for b in layout.buckets]
        for _ in range(ranks)
    ]
    return buckets, [torch.stack(parts).sum(0) for parts in zip(*buckets, strict=True)]


class Wire:
    """Delivers every frame to every other rank (a hub), after what `impair` did to it."""

    def __init__(self, job: Job, tcp: TcpConfig | None = None) -> None:
        group = job.groups[0]
        self.job = job
        self.nodes = [RankNode(job, group, rank, tcp) for rank in range(len(group.ring))]
        self.now = 0.0
        self.impair: Impairment = lambda frame: [(DELAY, frame)]
        self.seen: list[bytes] = []
        self._queue: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def connect(self, epoch: int, first_step: int, layout: Layout, seed: int = 0) -> None:
        for rank, node in enumerate(self.nodes):
            node.connect(epoch, first_step, layout, self.now, random.Random(f"{seed} {epoch} {rank}"))
        for node in self.nodes:
            node.open(self.now)

    def collect(self) -> None:
        for rank, node in enumerate(self.nodes):
            for frame in node.take_frames():
                self.seen.append(frame)
                for delay, copy in self.impair(frame):
                    self.inject(copy, delay, sender=rank)

    def inject(self, frame: bytes, delay: float = DELAY, sender: int = -1) -> None:
        for rank in range(len(self.nodes)):
            if rank != sender:
                self._count += 1
                heapq.heappush(self._queue, (self.now + delay, self._count, rank, frame))

    def run(self, until: Callable[[], bool], seconds: float = 600.0) -> None:
        """Let time pass until the condition holds; fails after so many seconds of the wire's time."""
        end = self.now + seconds
        self.collect()
        while not until():
            assert self._next_event(end), [node.waits_for() for node in self.nodes]

    def run_for(self, seconds: float) -> None:
        end = self.now + seconds
        self.collect()
        while self._next_event(end):
            pass
        self.now = end

    def _next_event(self, end: float) -> bool:
        """Handle the nearest timer or arrival, where there is one until `end`."""
        timers = [
            (timer, -1, rank, b"") for rank, node in enumerate(self.nodes) if (timer := node.next_timer()) is not None
        ]
        time, number, rank, frame = min([*timers, *self._queue[:1]], default=(math.inf, 0, 0, b""))
        if time > end:
            return False
        self.now = max(self.now, time)
        if number < 0:
            self.nodes[rank].on_timer(self.now)
        else:
            heapq.heappop(self._queue)
            self.nodes[rank].on_frame(frame, self.now)
        self.collect()
        return True

    def connected(self) -> bool:
        return all(node.connected for node in self.nodes)

    def all_reduce(self, step: int, layout: Layout, seed: int = 0) -> None:
        """Run one step and check the result on every rank."""
        buckets, goal = whole_buckets(layout, len(self.nodes), seed)
        for node, own in zip(self.nodes, buckets, strict=True):
            node.start_all_reduce(step, own, self.now)
        self.run(lambda: all(node.done for node in self.nodes) or any(node.error for node in self.nodes))
        assert [node.error for node in self.nodes] == [None] * len(self.nodes)
        for own in buckets:
            assert all(torch.equal(tensor, total) for tensor, total in zip(own, goal, strict=True))


def lossy(rng: random.Random, loss: float, duplicate: float, reorder: float, corrupt: float) -> Impairment:
    """Return an impairment with a probability a frame for each kind of fault."""

    def impair(frame: bytes) -> list[tuple[float, bytes]]:
        copies = []
        for _ in range(2 if rng.random() < duplicate else 1):
            if rng.random() < loss:
                continue
            delay = DELAY * (1 + 10 * rng.random()) if rng.random() < reorder else DELAY
            if rng.random() < corrupt:
                bit = rng.randrange(8 * len(frame))
                changed = bytearray(frame)
                changed[bit >> 3] ^= 1 << (bit & 7)
                copies.append((delay, bytes(changed)))
            else:
                copies.append((delay, frame))
        return copies

    return impair
