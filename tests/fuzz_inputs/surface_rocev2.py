"""RoCEv2 captures: packets in any order, lost, doubled, cut, damaged, signed again, others' between them."""

from __future__ import annotations

import random
import struct
import time
from dataclasses import dataclass
from functools import cache

import numpy as np

from capture.model import Packet
from rocev2.control import VERSIONS
from rocev2.encode import Capture, Encoded, Traffic, encode
from rocev2.faults import duplicate, lose
from rocev2.frames import Endpoint, Transport, frame
from rocev2.icrc import icrc_bytes
from rocev2.opcodes import KNOWN
from rocev2.report import AllReduce, DecodedCapture, decode
from tests.fuzz_inputs.damage import damaged

NAME = "rocev2"
TEST_COUNT = 60
_MOST_SECONDS = 10.0
_MOST_GROWTH = 64
"""Bytes of tensors for each byte of the capture."""
_TRAFFICS = 24
_LIKE_A_CHUNK = 1024  # elements
_ATOMICS = frozenset(opcode for opcode in KNOWN if opcode & 0x1F in (0x12, 0x13, 0x14))


@dataclass(frozen=True)
class Input:
    """Packets, and whether what they carry is still what was encoded."""

    packets: list[bytes]
    honest: bool
    what: tuple[str, ...]


def run(rng: random.Random, count: int) -> int:
    """Try `count` captures."""
    for _ in range(count):
        seed = rng.getrandbits(64)
        try:
            _try(random.Random(seed))
        except Exception as error:
            raise AssertionError(f"_try(random.Random({seed})): {type(error).__name__}: {error}") from error
    return count


def _try(rng: random.Random) -> None:
    capture = _captures(rng.randrange(_TRAFFICS))
    case = _damage(rng, capture)
    packets = [
        Packet(number, number * 1000, data, _length(rng, data), 0, rng.choice((1,) * 50 + (113, 127)), 0)
        for number, data in enumerate(case.packets, 1)
    ]
    known = capture.traffic.buckets if rng.random() < 0.5 else None
    began = time.process_time()
    found = decode(packets, use_p2p=rng.random() < 0.5, dtype="float32", file="x", bucket_elements=known)
    seconds = time.process_time() - began
    what = f"{capture.traffic} after {', '.join(case.what)}"
    assert seconds < _MOST_SECONDS, f"{seconds:.1f} s for {what}"
    given = sum(map(len, case.packets))
    assert sum(len(item.data) for item in found.all_reduces) <= _MOST_GROWTH * given, f"too large: {what}"
    if case.honest:
        _check(capture, found, what, known is not None)


def _check(capture: Capture, found: DecodedCapture, what: str, sizes_known: bool) -> None:
    """Assert that all that is covered is right, and in the right order.

    Where ranks forward once more, or a broadcast looks like a chunk, and what shows it is lost, an incomplete tensor
    may be another one than it seems. A complete one may not. From one direction between two ranks any broadcast looks
    like a chunk of an all-reduce with another size than the buckets have.
    """
    traffic = capture.traffic
    any_chunk = bool(traffic.prologue) and traffic.ranks == 2 and not sizes_known
    # A larger broadcast is cut, and a part of it may be as large as a chunk.
    like_a_chunk = any(count >= _LIKE_A_CHUNK for count in traffic.prologue)
    deceptive = traffic.forward_again or like_a_chunk or any_chunk
    left = iter(capture.tensors)
    for item in found.all_reduces:
        if deceptive and not item.complete:
            continue
        assert any(_agrees(item, tensor) for tensor in left), f"all-reduce {item.index} is none of the truth: {what}"


def _agrees(item: AllReduce, tensor: bytes) -> bool:
    padded = tensor + bytes(-len(tensor) % 8)
    if len(item.data) not in (len(tensor), len(padded)):
        return False
    expected = np.frombuffer(padded[: len(item.data)], "<u4")
    return bool((item.to_numpy().view("<u4") == expected)[item.covered].all())


def _length(rng: random.Random, data: bytes) -> int:
    return len(data) + (rng.randrange(1, 2000) if rng.random() < 0.001 else 0)


@cache
def _captures(number: int) -> Capture:
    """Return one of a few captures of every kind."""
    rng = random.Random(number)
    ranks = rng.choice((2, 2, 2, 3, 4))
    late = rng.random() < 0.3
    sizes = (rng.randint(1, 200), rng.randint(200, 3000), 1024 * ranks, 2048 * ranks)
    return encode(
        Traffic(
            ranks=ranks,
            channels=rng.choice((1, 1, 2)),
            buckets=tuple(rng.choice(sizes) for _ in range(rng.randint(1, 3))),
            steps=rng.randint(1, 2),
            seed=number,
            mtu=rng.choice((1024, 4096)),
            ipv6=rng.random() < 0.5,
            vlans=rng.choice(((), (), (5,), (100, 7))),
            first_psn=rng.choice((0, (1 << 24) - 5)),
            late_sizes=late,
            split=late and rng.random() < 0.5,
            prologue=rng.choice(((), (), (8, 1500), (_LIKE_A_CHUNK,), (_LIKE_A_CHUNK, 8), (1000, 2, 8))),
            p2p=ranks == 2 and rng.random() < 0.4,
            forward_again=rng.random() < 0.2,
            control=rng.choice(VERSIONS),
        )
    )


def _damage(rng: random.Random, capture: Capture) -> Input:
    packets: list[Encoded] = list(capture.packets)
    what: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.choice(_ORDER)
        what.append(kind)
        packets = _reordered(rng, packets, kind) or packets
    frames = [packet.data for packet in packets]
    honest = True
    for _ in range(rng.choice((0, 1, 1, 2))):
        kind = rng.choice(("damage", "cut", "foreign", "sign"))
        what.append(kind)
        if kind == "foreign":
            for _ in range(rng.randint(1, 20)):
                frames.insert(rng.randrange(len(frames) + 1), _foreign(rng))
        for _ in range(rng.randint(1, 6) if kind != "foreign" else 0):
            at = rng.randrange(len(frames))
            if kind == "damage":
                frames[at] = damaged(rng, frames[at])
            elif kind == "cut":
                frames[at] = frames[at][: rng.randrange(len(frames[at]) + 1)]
            else:
                frames[at] = _signed(rng, frames[at])
                honest = False
    return Input(frames, honest, tuple(what))


_ORDER = ("swap", "shuffle", "lose", "burst", "message", "one way", "early end", "late start", "double", "skew")


def _reordered(rng: random.Random, packets: list[Encoded], kind: str) -> list[Encoded]:
    count = len(packets)
    start = rng.randrange(count)
    match kind:
        case "swap":
            for _ in range(rng.choice((1, 1, 5))):
                other = rng.randrange(count)
                packets[start], packets[other] = packets[other], packets[start]
            return packets
        case "shuffle":
            return rng.sample(packets, count)
        case "lose":
            return lose(packets, rng.sample(range(count), min(count, rng.choice((1, 1, 2, 5, 12)))))
        case "burst":
            return lose(packets, range(start, start + rng.randint(1, 60)))
        case "message":
            queue_pair = packets[start].sent.packet.dest_qp
            places = [n for n in range(start, count) if packets[n].sent.packet.dest_qp == queue_pair]
            return lose(packets, places[: rng.choice((2, 10, 20, count))])
        case "one way":
            source = rng.choice(packets).source
            return [packet for packet in packets if packet.source == source]
        case "early end":
            return packets[: start + 1]
        case "late start":
            return packets[start:]
        case "double":
            return duplicate(packets, rng.sample(range(count), min(count, 5)), rng.randint(1, 300))
        case _:
            source, late = rng.choice(packets).source, rng.randint(1, count)
            places = [place + late * (packet.source == source) for place, packet in enumerate(packets)]
            return [packets[place] for place in sorted(range(count), key=places.__getitem__)]


def _foreign(rng: random.Random) -> bytes:
    """Return a packet that is not of the ring: of other hosts, or no RoCEv2 at all."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.randrange(200))
    source, destination = (Endpoint(bytes(6), bytes((192, 168, rng.randrange(2), rng.randrange(4)))) for _ in range(2))
    payload = rng.choice((b"", rng.randbytes(rng.choice((4, 32, 64, 1024))), struct.pack("<II", 7, 1) * 128))
    opcode = rng.choice(sorted(KNOWN.keys() - _ATOMICS))
    packet = Transport(opcode, rng.randrange(8), rng.getrandbits(24), payload, rng.getrandbits(40), 9, len(payload))
    return frame(source, destination, 4242, packet)


def _signed(rng: random.Random, data: bytes) -> bytes:
    """Return a frame with fields above UDP changed, and a right iCRC."""
    kind = data.find(b"\x86\xdd", 12, 24), data.find(b"\x08\x00", 12, 24)
    network = (kind[0], 40) if kind[0] >= 0 else (kind[1], 20)
    if network[0] < 0 or len(data) < network[0] + 2 + network[1] + 8 + 16:
        return data
    start = network[0] + 2
    udp = start + network[1]
    body = bytearray(data[udp + 8 : -4])
    for _ in range(rng.randint(1, 3)):
        at = rng.choice((0, 1, 5, 6, 7, 9, 10, 11, rng.randrange(len(body)), min(len(body) - 1, rng.randrange(12, 32))))
        body[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256), body[at] ^ 1))
    head, ports = data[start:udp], data[udp : udp + 8]
    return data[: udp + 8] + bytes(body) + icrc_bytes(head, ports, bytes(body))
