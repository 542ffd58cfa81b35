"""An encoder of NCCL's all-reduce traffic over RoCEv2: captures of one's own making, with the truth about them.

It writes what the captures show that the decoder was built on: control writes, LL data writes, acknowledgements, p2p
messages, other collectives; with any number of ranks, channels and buckets. `rocev2.faults` damages the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.model import LINKTYPE_ETHERNET, Packet
from rocev2.connection import Connection, Sent
from rocev2.control import VERSIONS
from rocev2.dtypes import canonical, itemsize, numpy_dtype
from rocev2.errors import RoceError
from rocev2.frames import Endpoint, frame
from rocev2.protocols import LL, STEPS
from rocev2.shape import GRAINS, loops, sent_chunk


@dataclass(frozen=True, slots=True)
class Traffic:
    """What to encode.

    Raises:
        RoceError: a value makes no sense.
    """

    ranks: int = 2
    channels: int = 1
    dtype: str = "float32"
    buckets: tuple[int, ...] = (5000,)
    """Elements of each bucket; one all-reduce each."""
    steps: int = 1
    """How often all buckets are reduced."""
    seed: int = 1
    """Seed of the gradients."""
    mtu: int = 1024
    ipv6: bool = True
    vlans: tuple[int, ...] = ()
    first_psn: int = 0
    """PSN at which every queue pair starts; near 2^24 it wraps."""
    late_sizes: bool = False
    """Whether messages beyond 8 KiB are followed by an empty one with their size (adaptive routing)."""
    split: bool = False
    """Whether NICs send each packet of a message without immediate as a message of its own."""
    prologue: tuple[int, ...] = ()
    """Elements of broadcasts from rank 0 before the first all-reduce."""
    p2p: bool = False
    """Whether rank 0 sends, after each all-reduce, its chunk 1 again as a plain message (two ranks)."""
    grain: int = GRAINS[0]
    """Chunk alignment in data bytes; see `rocev2.shape`."""
    forward_again: bool = False
    """Whether each rank forwards, at the end of a loop, also the chunk that it received last (as FlowCheck's NCCL)."""
    control: str = "2.18"
    """Layout of control writes; see `rocev2.control`."""

    def __post_init__(self) -> None:
        """Check every field."""
        canonical(self.dtype)
        if self.ranks < 2:
            raise RoceError("ranks", self.ranks, "make no ring", "give at least 2")
        if self.channels < 1:
            raise RoceError("channels", self.channels, "carry nothing", "give at least 1")
        if self.mtu not in (256, 512, 1024, 2048, 4096):
            raise RoceError("mtu", self.mtu, "is no path MTU of RoCEv2", "use 256, 512, 1024, 2048 or 4096")
        if not all(count > 0 for count in (*self.buckets, *self.prologue)):
            raise RoceError("buckets", self.buckets, "hold an empty one", "give at least 1 element each")
        if self.grain not in GRAINS:
            raise RoceError("grain", self.grain, "is no alignment of NCCL's", f"use one of {GRAINS}")
        if self.control not in VERSIONS:
            raise RoceError("control", self.control, "is no layout of control writes", f"use one of {VERSIONS}")
        if self.p2p and self.ranks != 2:
            raise RoceError("p2p", self.p2p, "is made for two ranks", "set ranks to 2")


@dataclass(frozen=True, slots=True)
class Shown:
    """Reduced bytes that a packet carries."""

    all_reduce: int
    start: int
    """First byte in the tensor."""
    stop: int
    """Byte after the last."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A frame and the truth about it."""

    data: bytes
    sent: Sent
    source: int
    """Rank of the sender."""
    shown: Shown | None = None
    """The part of a reduced tensor in it: all-gather data and p2p messages only."""
    p2p: bool = False


@dataclass(slots=True)
class Capture:
    """Encoded traffic and what a perfect decoder finds in it."""

    traffic: Traffic
    packets: list[Encoded] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    """Little-endian bytes of each reduced tensor, in order of time."""


def to_packets(frames: Sequence[Encoded], first_time_ns: int = 0) -> list[Packet]:
    """Return frames as captured packets, one microsecond apart."""
    return [
        Packet(number, first_time_ns + number * 1000, entry.data, len(entry.data), 0, LINKTYPE_ETHERNET, 0)
        for number, entry in enumerate(frames, 1)
    ]


def add(left: NDArray[Any], right: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return the elementwise sum in the type itself; bfloat16 is given as its bits and rounded to nearest even."""
    if canonical(dtype) != "bfloat16":
        with np.errstate(over="ignore"):
            total: NDArray[Any] = (left + right).astype(left.dtype)
            return total
    wide = (left.astype("<u4") << 16).view("<f4") + (right.astype("<u4") << 16).view("<f4")
    bits = wide.view("<u4")
    rounded: NDArray[Any] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return rounded


def gradients(traffic: Traffic, rng: np.random.Generator, elements: int) -> list[NDArray[Any]]:
    """Return one tensor per rank."""
    kind = numpy_dtype(canonical(traffic.dtype))
    if canonical(traffic.dtype) == "bfloat16":
        return [
            (rng.standard_normal(elements, np.float32).view("<u4") >> 16).astype(kind) for _ in range(traffic.ranks)
        ]
    if kind[1] == "f":
        return [rng.standard_normal(elements).astype(kind) for _ in range(traffic.ranks)]
    top = min(1 << 20, int(np.iinfo(kind).max) // traffic.ranks)
    return [rng.integers(0, top, elements).astype(kind) for _ in range(traffic.ranks)]


def encode(traffic: Traffic) -> Capture:
    """Return the traffic of all links of the ring, in an order that its causality allows."""
    return _Encoder(traffic).run()


class _Encoder:
    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.capture = Capture(traffic)
        self.rng = np.random.default_rng(traffic.seed)
        self.hosts = [self._host(rank) for rank in range(traffic.ranks)]
        self.rows = [
            [
                Connection(
                    rank,
                    channel,
                    rank,
                    traffic.mtu,
                    traffic.first_psn,
                    traffic.late_sizes,
                    traffic.split,
                    traffic.control,
                )
                for channel in range(traffic.channels)
            ]
            for rank in range(traffic.ranks)
        ]
        self.plain = Connection(0, traffic.channels, 0, traffic.mtu, traffic.first_psn, False, False, traffic.control)

    def run(self) -> Capture:
        for elements in self.traffic.prologue:
            self._broadcast(elements)
        for _ in range(self.traffic.steps):
            for elements in self.traffic.buckets:
                self._all_reduce(elements)
        return self.capture

    def _host(self, rank: int) -> Endpoint:
        mac = bytes((2, 0, 0, 0, rank >> 8, rank & 255))
        if self.traffic.ipv6:
            return Endpoint(mac, bytes.fromhex("fe80000000000000") + bytes(6) + rank.to_bytes(2, "big"))
        return Endpoint(mac, bytes((10, 0, rank >> 8, rank & 255)))

    def _emit(self, sender: int, receiver: int, sent: Sent, shown: Shown | None = None, p2p: bool = False) -> None:
        data = frame(self.hosts[sender], self.hosts[receiver], sent.udp_source, sent.packet, vlans=self.traffic.vlans)
        self.capture.packets.append(Encoded(data, sent, sender, shown, p2p))

    def _announce(self, connection: Connection) -> None:
        """Let the receiver announce the buffer of the next step, and the sender acknowledge it."""
        sender = connection.sender
        receiver = (sender + 1) % self.traffic.ranks
        self._emit(receiver, sender, connection.control())
        self._emit(sender, receiver, connection.acknowledge_control())

    def _announce_all(self, steps: int) -> None:
        """Let every rank announce the buffers of the next steps, as soon as it knows of the all-reduce."""
        for row in self.rows:
            for connection in row:
                for _ in range(steps):
                    self._announce(connection)

    def _broadcast(self, elements: int) -> None:
        """Send a tensor from rank 0 along the ring, on channel 0."""
        size = itemsize(canonical(self.traffic.dtype))
        data = self.rng.bytes(elements * size)
        most = LL.slot_bytes // LL.line_bytes * LL.line_data
        for start in range(0, len(data), most):
            for rank in range(self.traffic.ranks - 1):
                connection = self.rows[rank][0]
                self._announce(connection)
                for sent, _ in connection.data(data[start : start + most]):
                    self._emit(rank, rank + 1, sent)
                self._emit(rank + 1, rank, connection.acknowledge_data())

    def _all_reduce(self, elements: int) -> None:
        traffic = self.traffic
        dtype = canonical(traffic.dtype) or ""
        size = itemsize(dtype)
        values = gradients(traffic, self.rng, elements)
        partial = [value.tobytes() for value in values]
        number = len(self.capture.tensors)
        reduced = bytearray(elements * size)
        for start, shape in loops(elements * size, traffic.ranks, traffic.channels, traffic.grain):
            carried: dict[tuple[int, int], bytes] = {}
            steps = 2 * traffic.ranks - 2 + traffic.forward_again
            self._announce_all(min(STEPS, steps))
            for step in range(steps):
                queues = []
                for rank in range(traffic.ranks):
                    for channel in range(traffic.channels):
                        chunk = sent_chunk(rank, step, traffic.ranks)
                        low = start + shape.start(chunk, channel)
                        high = low + shape.size(chunk, channel)
                        own = partial[rank][low:high]
                        data = self._outgoing(carried.get((rank, channel)), own, step, dtype)
                        if step == traffic.ranks - 1:
                            reduced[low:high] = data
                        gather = low if step >= traffic.ranks - 1 else None
                        queues.append((rank, channel, data, gather))
                if step + STEPS < steps:
                    self._announce_all(1)
                carried = {((rank + 1) % traffic.ranks, channel): data for rank, channel, data, _ in queues}
                self._step(queues, number)
        self.capture.tensors.append(bytes(reduced))
        if traffic.p2p:
            self._p2p(number, bytes(reduced), elements * size)

    def _outgoing(self, carried: bytes | None, own: bytes, step: int, dtype: str) -> bytes:
        """Return what a rank sends: its own, the sum of what it received and its own, or what it received."""
        if step == 0 or carried is None:
            return own
        if step >= self.traffic.ranks:
            return carried
        kind = numpy_dtype(dtype)
        return add(np.frombuffer(carried, kind), np.frombuffer(own, kind), dtype).tobytes()

    def _step(self, queues: list[tuple[int, int, bytes, int | None]], number: int) -> None:
        """Send one step of all ranks and channels, packet by packet in turn."""
        streams = []
        for rank, channel, data, gather in queues:
            connection = self.rows[rank][channel]
            streams.append((rank, connection, data, gather, iter(connection.data(data))))
        while streams:
            left = []
            for rank, connection, data, gather, packets in streams:
                receiver = (rank + 1) % self.traffic.ranks
                item = next(packets, None)
                if item is None:
                    self._emit(receiver, rank, connection.acknowledge_data())
                    continue
                sent, (low, high) = item
                high = min(high, len(data))
                shown = Shown(number, gather + low, gather + high) if gather is not None and high > low else None
                self._emit(rank, receiver, sent, shown)
                left.append((rank, connection, data, gather, packets))
            streams = left

    def _p2p(self, number: int, reduced: bytes, total: int) -> None:
        """Send chunk 1 of every channel from rank 0 to rank 1 as one plain message."""
        start, shape = loops(total, 2, self.traffic.channels, self.traffic.grain)[-1]
        low, high = start + shape.start(1, 0), start + shape.rest
        if high == low:
            return
        for sent, (first, last) in self.plain.plain(reduced[low:high]):
            self._emit(0, 1, sent, Shown(number, low + first, low + last), p2p=True)
