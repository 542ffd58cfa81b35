"""Captures of DDP jobs over gloo: packets lost, moved, doubled and forged. What is given is the truth."""

from __future__ import annotations

import random
from functools import cache
from ipaddress import IPv4Address, IPv6Address

from gloo.decoder import Decoder
from packets.batch import PacketBatch
from packets.decode import decode
from tests.fuzz_inputs.damage import damaged
from tests.gloo.encoder import Made, Traffic, feed, make, tcp_frame
from tests.gloo.test_decode import check

NAME = "gloo"
TEST_COUNT = 40
PER_CALL = 20
_SHAPES = ((9, 5), (9,), (6, 9))
_JOBS = (
    Traffic(ranks=2, shapes=_SHAPES, layout=((2, 1), (0,)), steps=2, mss=150),
    Traffic(ranks=3, shapes=_SHAPES, layout=((2, 1), (0,)), steps=2, mss=400, other_group=True),
    Traffic(ranks=4, shapes=_SHAPES, layout=((1, 2), (0,)), steps=2, unused=(frozenset(), frozenset({0}))),
    Traffic(ranks=3, shapes=_SHAPES, layout=((2, 1), (0,)), steps=2, halved=True, ipv6=True, close=False),
)
_NUMBERS = (0, 1, 2, 3, 48, 52, 1 << 40, 1 << 63, 4 << 56 | 3 << 24, 6 << 56 | 1 << 24)
_WORDS = [number.to_bytes(8, "little") for number in _NUMBERS]


def run(rng: random.Random, count: int) -> int:
    """Try `count` captures."""
    for _ in range(count):
        job = _made(rng.randrange(len(_JOBS)))
        ranks = rng.sample(range(job.traffic.ranks), rng.randint(1, job.traffic.ranks))
        captures = [[packet.data for packet in job.capture(rank)] for rank in ranks]
        forged = rng.random() < 0.5
        for packets in captures:
            (_forge if forged else _disturb)(rng, packets)
        decoder = Decoder(window=rng.choice((1 << 14, 1 << 17, 1 << 29)))
        steps = feed(decoder, captures, rng.choice((20, 100, 1000)))
        held = sum(flow.stream.nbytes for flow in decoder.intake.flows)
        assert held < 256 << 20, f"{held} bytes are held"
        if not forged:
            check(job, steps, complete=False)
    return count


@cache
def _made(number: int) -> Made:
    return make(_JOBS[number])


def _disturb(rng: random.Random, packets: list[bytes]) -> None:
    """Lose, double and move packets, and cut the capture."""
    for _ in range(rng.choice((0, 1, 3, 30))):
        at = rng.randrange(len(packets))
        match rng.randrange(3):
            case 0:
                del packets[at]
            case 1:
                packets.insert(rng.randrange(at, len(packets)), packets[at])
            case _:
                packets.insert(min(len(packets), at + rng.randint(1, 5)), packets.pop(at))
    if rng.random() < 0.2:
        del packets[rng.randrange(1, len(packets)) :]
    if rng.random() < 0.2:
        del packets[: rng.randrange(len(packets))]


def _forge(rng: random.Random, packets: list[bytes]) -> None:
    """Change payloads, flags and positions of some packets, with right checksums."""
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(packets))
        (header,) = decode(PacketBatch.of([packets[at]]))
        start = int(header["payload"])
        payload = damaged(rng, packets[at][start : start + int(header["payload_length"])], _WORDS)[:1400]
        jump = rng.choice((0, 0, 0, 1, -1, 1 << 16, 1 << 31, rng.randrange(1 << 32)))
        flags = int(header["flags"]) ^ rng.choice((0, 0, 0, 1, 2, 4))
        ends = [_address(header, end) for end in ("source", "destination")]
        seq = (int(header["seq"]) + jump) % (1 << 32)
        ports = (int(header["source_port"]), int(header["destination_port"]))
        packets[at] = tcp_frame(*ends, *ports, seq, int(header["ack"]), flags, payload)


def _address(header, end: str):
    number = int(header[f"{end}_high"]) << 64 | int(header[f"{end}_low"])
    return IPv4Address(number) if header["ip_version"] == 4 else IPv6Address(number)
