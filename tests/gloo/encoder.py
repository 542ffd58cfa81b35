"""Makes captures of DDP jobs over gloo, message by message, with the truth of what they carry."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

import numpy as np

from gloo.ring import parts
from gloo.wire import Header, Opcode, Prefix, build_header, build_sequence, build_slot
from packets.batch import PacketBatch
from packets.decode import decode

SYN, ACK, FIN = 0x02, 0x10, 0x01


@dataclass(frozen=True)
class Traffic:
    """A job."""

    ranks: int = 3
    shapes: tuple[tuple[int, ...], ...] = ((6, 5), (6,), (4, 6), (4,))
    steps: int = 3
    layout: tuple[tuple[int, ...], ...] = ((3, 2), (1, 0))
    """Buckets from the second step on; with `unused` of all steps, and then as DDP makes them: in parameter order."""
    unused: tuple[frozenset[int], ...] | None = None
    """With find_unused_parameters: parameters that nobody uses, by step."""
    halved: bool = False
    buffers: int = 0
    """Elements of float32 buffers, broadcast in each forward pass."""
    other_group: bool = False
    ipv6: bool = False
    same_host: bool = False
    mss: int = 200
    at_once: bool = True
    """Whether two collectives are on the wire at a time."""
    close: bool = True
    seed: int = 1


@dataclass
class Sent:
    """One packet."""

    data: bytes
    ends: tuple[int, int]
    """Ranks whose captures have it."""
    carries: list[tuple[int, int, int, int]] = field(default_factory=list)
    """All-gathered bytes in it: step, bucket, first, behind the last."""
    layout: bool = False
    """Whether bytes of the prologue, the rebuilt layout or a used-map are in it."""


@dataclass
class Made:
    traffic: Traffic
    sent: list[Sent]
    initial: list[np.ndarray]
    gradients: list[list[np.ndarray | None]]

    def capture(self, rank: int) -> list[Sent]:
        return [packet for packet in self.sent if rank in packet.ends]


class _Connection:
    """Both directions of a TCP connection between two ranks."""

    def __init__(self, made: _Maker, initiator: int, listener: int, port: int) -> None:
        self.made, self.ranks = made, (initiator, listener)
        rng = made.rng
        self.ports = (rng.randrange(40000, 60000), port)
        isns = [rng.randrange(1 << 32), (1 << 32) - 700]  # one wraps
        self.next = isns
        self._send(0, b"", SYN)
        self._send(1, b"", SYN | ACK)
        self.write(0, build_sequence(initiator), [])

    def side(self, rank: int) -> int:
        return self.ranks.index(rank)

    def write(self, side: int, data: bytes, carries: Sequence[tuple[int, int, int, int]], layout: bool = False) -> None:
        """Send bytes; `carries` has step, bucket, first bucket byte, and where in `data` it is."""
        mss = self.made.traffic.mss
        for at in range(0, len(data), mss):
            piece = data[at : at + mss]
            held = []
            for step, bucket, first, where in carries:
                low, high = max(at, where), min(at + len(piece), len(data))
                if low < high:
                    held.append((step, bucket, first + low - where, first + high - where))
            self._send(side, piece, ACK, held, layout)

    def close(self) -> None:
        for side in (0, 1):
            self._send(side, b"", FIN | ACK)

    def _send(self, side: int, data: bytes, flags: int, carries=(), layout: bool = False) -> None:
        ends = (self.ranks[side], self.ranks[1 - side])
        hosts = [self.made.hosts[rank] for rank in ends]
        ports = (self.ports[side], self.ports[1 - side])
        frame = tcp_frame(*hosts, *ports, self.next[side], self.next[1 - side] if flags & ACK else 0, flags, data)
        self.made.sent.append(Sent(frame, (ends[0], ends[1]), list(carries), layout))
        self.next[side] = (self.next[side] + len(data) + bool(flags & (SYN | FIN))) % (1 << 32)


class _Group:
    """The mesh of one process group."""

    def __init__(self, made: _Maker, first_port: int) -> None:
        ranks = made.traffic.ranks
        self.made, self.tag = made, 0
        self.links = {
            frozenset((a, b)): _Connection(made, b, a, first_port + a)
            for a in range(ranks)
            for b in range(a + 1, ranks)
        }

    def slot(self, prefix: Prefix) -> int:
        slot = build_slot(prefix, self.tag)
        self.tag += 1
        return slot

    def message(self, slot: int, sender: int, receiver: int, data: bytes, carries=None, layout=False) -> Iterator[None]:
        """Announce, ask for and send one DATA message; others may go on at each ``yield``."""
        link = self.links[frozenset((sender, receiver))]
        steps = [
            (receiver, build_header(Header(Opcode.RECV_READY, slot, len(data))), b""),
            (sender, build_header(Header(Opcode.SEND_READY, slot, len(data))), b""),
        ]
        if self.made.rng.random() < 0.5:
            steps.reverse()
        steps.append((sender, build_header(Header(Opcode.DATA, slot, len(data))), data))
        for rank, header, payload in steps:
            held = [(*carries, len(header))] if carries is not None and payload else []
            link.write(link.side(rank), header + payload, held, layout)
            yield

    def broadcast(self, data: bytes, layout: bool = True) -> Iterator[None]:
        slot = self.slot(Prefix.BROADCAST)
        for receiver in range(1, self.made.traffic.ranks):
            yield from self.message(slot, 0, receiver, data, layout=layout)

    def gather_count(self, count: int) -> Iterator[None]:
        slot, ranks = self.slot(Prefix.ALLGATHER), self.made.traffic.ranks
        data = struct.pack("<q", count)
        for _ in range(ranks - 1):
            for half in (data[:4], data[4:]):
                for rank in range(ranks):
                    yield from self.message(slot, rank, (rank + 1) % ranks, half, layout=True)

    def reduce(
        self, tensors: list[np.ndarray], step: int, bucket: int, layout: bool = False
    ) -> tuple[np.ndarray, Iterator[None]]:
        """Return the reduced tensor, and what sends it."""
        ranks, slot = self.made.traffic.ranks, self.slot(Prefix.ALLREDUCE)
        size, item = tensors[0].nbytes, tensors[0].itemsize
        plans = [parts(size, item, ranks, rank) for rank in range(ranks)]
        total = np.empty_like(tensors[0])
        sums: dict[tuple[int, int], np.ndarray] = {}
        owner = _owners(size, item, ranks)
        for (start, length), last in owner.items():
            piece = slice(start // item, (start + length) // item)
            value = tensors[(last - 1) % ranks][piece].copy()
            sums[start, (last - 1) % ranks] = value
            for hop in range(2, ranks + 1):
                value = value + tensors[(last - hop) % ranks][piece]
                sums[start, (last - hop) % ranks] = value
            total[piece] = value

        def send() -> Iterator[None]:
            for number in range(max(map(len, plans))):
                for rank, plan in enumerate(plans):
                    if number >= len(plan):
                        continue
                    part = plan[number]
                    piece = slice(part.start // item, (part.start + part.length) // item)
                    data = total[piece] if part.gathers else sums[part.start, rank]
                    carries = (step, bucket, part.start) if part.gathers and bucket >= 0 else None
                    yield from self.message(slot, rank, (rank - 1) % ranks, data.tobytes(), carries, layout)

        return total, send()


def _owners(size: int, item: int, ranks: int) -> dict[tuple[int, int], int]:
    """Return the rank that reduces each segment last: the one that never passes it on unreduced."""
    found = {}
    for rank in range(ranks):
        plan = parts(size, item, ranks, rank)
        scattered = {(part.start, part.length) for part in plan if not part.gathers}
        found.update(
            {
                (part.start, part.length): rank
                for part in plan
                if part.gathers and (part.start, part.length) not in scattered
            }
        )
    return found


class _Maker:
    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.rng = random.Random(traffic.seed)
        self.sent: list[Sent] = []
        base = "fd00::a" if traffic.ipv6 else "10.1.0.10"
        self.hosts = [ip_address(base) + (0 if traffic.same_host else rank) for rank in range(traffic.ranks)]

    def together(self, *running: Iterator[None]) -> None:
        """Let collectives run at once, or one after the other."""
        waiting = list(running)
        while waiting:
            chosen = self.rng.choice(waiting) if self.traffic.at_once else waiting[0]
            if next(chosen, self) is self:
                waiting.remove(chosen)


def make(traffic: Traffic) -> Made:
    """Return the packets of a job, in order, and what is true of it."""
    made = _Maker(traffic)
    numbers = np.random.default_rng(traffic.seed)
    group = _Group(made, 30000)
    other = _Group(made, 31000) if traffic.other_group else None
    shapes, ranks = traffic.shapes, traffic.ranks
    sizes = [int(np.prod(shape)) for shape in shapes]
    initial = [numbers.standard_normal(size).astype("<f4") for size in sizes]
    buffers = np.zeros(traffic.buffers, "<f4")
    made.together(group.gather_count(len(shapes)))
    told = [number for shape in shapes for number in (*shape, *_strides(shape))]
    made.together(group.broadcast(struct.pack(f"<{len(told)}q", *told)))
    made.together(group.broadcast(np.concatenate([*initial, buffers]).tobytes()))
    gradients: list[list[np.ndarray | None]] = []
    whole = (tuple(range(len(shapes))),)
    for step in range(1, traffic.steps + 1):
        if traffic.buffers:
            made.together(group.broadcast(numbers.standard_normal(traffic.buffers).astype("<f4").tobytes(), False))
        layout = traffic.layout if traffic.unused is not None or step > 1 else whole
        kind = "<f2" if traffic.halved else "<f4"
        mine = [[(numbers.standard_normal(size) / ranks).astype(kind) for size in sizes] for _ in range(ranks)]
        unused = traffic.unused[step - 1] if traffic.unused is not None else frozenset()
        for rank in range(ranks):
            for index in unused:
                mine[rank][index][:] = 0
        found: list[np.ndarray | None] = [None] * len(shapes)
        running = []
        for number, bucket in enumerate(layout):
            total, sends = group.reduce(
                [np.concatenate([mine[r][i] for i in bucket]) for r in range(ranks)], step, number
            )
            running.append(sends)
            at = 0
            for index in bucket:
                found[index] = None if index in unused else total[at : at + sizes[index]].astype("<f4")
                at += sizes[index]
        if traffic.unused is not None:
            used = np.array([index not in unused for index in range(len(shapes))], "<i4")
            running.append(group.reduce([used] * ranks, step, -1, layout=True)[1])
        if other is not None:
            running.append(other.reduce([numbers.standard_normal(5).astype("<f4") for _ in range(ranks)], step, -1)[1])
        for at in range(0, len(running), 2):
            made.together(*running[at : at + 2])
        gradients.append(found)
        if step == 1 and traffic.unused is None:
            order = [index for bucket in traffic.layout for index in bucket]
            made.together(group.broadcast(np.array([*order, len(traffic.layout)], "<i4").tobytes()))
            made.together(group.broadcast(np.array([len(bucket) for bucket in traffic.layout], "<i4").tobytes()))
    if traffic.close:
        for one in (group, other):
            for link in one.links.values() if one is not None else ():
                link.close()
    return Made(traffic, made.sent, initial, gradients)


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [int(np.prod(shape[at + 1 :])) for at in range(len(shape))]


def tcp_frame(source, destination, source_port, destination_port, seq, ack, flags, payload: bytes) -> bytes:
    """Return an Ethernet frame with right checksums."""
    tcp = struct.pack("!HHIIBBHHH", source_port, destination_port, seq, ack, 5 << 4, flags, 65535, 0, 0) + payload
    pseudo = source.packed + destination.packed
    if source.version == 4:
        pseudo += struct.pack("!BBH", 0, 6, len(tcp))
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + source.packed + destination.packed
        ip = ip[:10] + struct.pack("!H", _checksum(ip)) + ip[12:]
    else:
        pseudo += struct.pack("!IxxxB", len(tcp), 6)
        ip = struct.pack("!IHBB", 6 << 28, len(tcp), 6, 64) + source.packed + destination.packed
    tcp = tcp[:16] + struct.pack("!H", _checksum(pseudo + tcp)) + tcp[18:]
    return bytes(12) + (b"\x08\x00" if source.version == 4 else b"\x86\xdd") + ip + tcp


def _checksum(data: bytes) -> int:
    words = np.frombuffer(data + bytes(len(data) % 2), ">u2")
    total = int(words.sum(dtype=np.int64))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def feed(decoder, captures: Sequence[Sequence[bytes]], size: int = 64) -> list:
    """Give captures to a decoder in turns, `size` packets at a time; return the steps, with their group."""
    found = []
    for packets in captures:
        decoder.expect(decode(PacketBatch.of(list(packets))))
    for at in range(0, max(map(len, captures), default=0), size):
        for number, packets in enumerate(captures):
            piece = list(packets[at : at + size])
            if piece:
                batch = PacketBatch.of(piece)
                decoder.feed(number, batch, decode(batch))
        found += list(decoder.steps())
    decoder.finish()
    return found + list(decoder.steps())
