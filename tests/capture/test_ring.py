"""Live capture through rings, over veth pairs in namespaces of their own."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from capture.ring import PacketRing, RingBlock, RingReader
from capture.walk import walk_block
from packets.batch import PacketBatch
from packets.decode import decode
from packets.headers import Checksum, Kind
from tests.softswitch.netns import Star, run_in, why_not

netns = [pytest.mark.netns, pytest.mark.skipif(why_not() is not None, reason=f"{why_not()}")]


def frames_of(batch: PacketBatch) -> list[bytes]:
    return [
        bytes(batch.data[start : start + size])
        for start, size in zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True)
    ]


def made_block(rng: random.Random, frames: list[tuple[bytes, int, int, int]]) -> tuple[bytearray, int]:
    """A block as the kernel writes it: frames with packet type, status and VLAN tag."""
    block = bytearray(rng.randbytes(1 << 16))
    at = first = 48
    for number, (frame, kind, status, tag) in enumerate(frames):
        mac = 88
        step = (mac + len(frame) + 7) // 8 * 8 if number + 1 < len(frames) else 0
        struct.pack_into("=IIIIIIHHIIH", block, at, step, number, number * 7, len(frame), len(frame) + number, status,
                         mac, mac + 14, 0, tag & 0xFFFF, tag >> 16)  # fmt: skip
        block[at + 58] = kind
        block[at + mac : at + mac + len(frame)] = frame
        at += step
    return block, first


@pytest.mark.parametrize("seed", range(20))
def test_the_walk_equals_its_reference(seed: int) -> None:
    rng = random.Random(seed)
    sizes, kinds, states = (5, 14, 60, 900), (0, 0, 3, 4), (1, 0x11, 0x51)
    frames = [
        (rng.randbytes(rng.choice(sizes)), rng.choice(kinds), rng.choice(states), rng.getrandbits(32))
        for _ in range(20)
    ]
    block, first = made_block(rng, frames)
    count = len(frames)
    if seed % 2:
        for _ in range(3):
            block[rng.randrange(48, 6000)] = rng.getrandbits(8)
        count = rng.randrange(40)
    results = []
    for walk in (walk_block.reference, walk_block.compiled()):
        data = np.frombuffer(bytearray(block), np.uint8)
        columns = [np.zeros(count, kind) for kind in (np.int64, np.int32, np.int64, np.int64)]
        found = walk(data, first, count, True, *columns)  # type: ignore[arg-type]
        results.append((found, bytes(data), *(column.tolist() for column in columns)))
    assert results[0] == results[1]
    if not seed % 2:
        wanted = []
        for frame, kind, status, tag in frames:
            vlan = struct.pack("!HH", tag >> 16 if status & 0x40 else 0x8100, tag & 0xFFFF)
            inserted = status & 0x10 and len(frame) >= 12
            wanted += [frame[:12] + vlan + frame[12:] if inserted else frame] if kind != 4 else []
        found, data, starts, lengths, *_ = results[0]
        assert [data[s : s + n] for s, n in zip(starts[:found], lengths[:found], strict=True)] == wanted


@pytest.fixture
def star() -> Iterator[Star]:
    with Star(2) as star:
        yield star


def collect(reader: RingReader, count: int) -> dict[str, list[bytes]]:
    """Return the frames of each interface once there are `count`."""
    found: dict[str, list[bytes]] = {}
    timer = threading.Timer(20, reader.stop)
    timer.start()
    for ring, block in reader.blocks():
        assert isinstance(block, RingBlock), block
        found.setdefault(ring.name, []).extend(frames_of(block.batch))
        block.release()
        if sum(map(len, found.values())) >= count:
            reader.stop()
    timer.cancel()
    return found


class TestVeth:
    pytestmark = netns

    def test_frames_of_both_interfaces_arrive_and_own_ones_do_not(self, star: Star) -> None:
        rings = [run_in(star.switch, lambda name=name: PacketRing(name)) for name in ("s1", "s2")]  # type: ignore[misc]
        reader = RingReader(rings)
        rng = random.Random(1)
        sent = {
            n: [bytes(12) + b"\x88\xb5" + rng.randbytes(rng.randrange(46, 1400)) for _ in range(300)] for n in (1, 2)
        }
        own = run_in(star.switch, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        own.bind(("s1", 0))
        for one, other in zip(sent[1], sent[2], strict=True):
            star.hosts[1].send(one)
            star.hosts[2].send(other)
            own.send(bytes(60))
        own.close()
        found = collect(reader, 600)
        assert found == {"s1": sent[1], "s2": sent[2]}
        assert [ring.dropped() for ring in rings] == [0, 0]
        reader.close()

    def test_a_vlan_tag_that_the_kernel_took_out_is_there_again(self, star: Star) -> None:
        reader = RingReader([run_in(star.switch, lambda: PacketRing("s1"))])
        tagged = bytes(12) + b"\x81\x00\x20\x05" + b"\x81\x00\x00\x07" + b"\x88\xb5" + bytes(range(60))
        service = bytes(12) + b"\x88\xa8\x00\x09" + b"\x88\xb5" + bytes(60)
        star.hosts[1].send(tagged)
        star.hosts[1].send(service)
        assert collect(reader, 2) == {"s1": [tagged, service]}
        reader.close()

    def test_segments_of_64_kib_arrive_whole(self, star: Star) -> None:
        namespace, switch = star.hosts[1].namespace, star.switch
        subprocess.run(["ip", "-n", namespace, "address", "add", "10.9.0.1/24", "dev", "eth0"], check=True)
        subprocess.run(["ip", "-n", switch, "address", "add", "10.9.0.2/24", "dev", "s1"], check=True)
        ring = run_in(switch, lambda: PacketRing("s1"))
        reader = RingReader([ring])
        server = run_in(switch, lambda: socket.create_server(("10.9.0.2", 7000)))
        client = run_in(namespace, lambda: socket.create_connection(("10.9.0.2", 7000)))
        data = random.Random(2).randbytes(3_000_000)
        accepted, _ = server.accept()
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        got, largest = bytearray(), 0
        while len(got) < len(data):
            got += accepted.recv(1 << 20)
        sender.join()
        assert bytes(got) == data
        reader.stop()
        stream: dict[int, bytes] = {}
        states = set()
        for _, block in reader.blocks():
            assert isinstance(block, RingBlock), block
            rows = decode(block.batch)
            for row in rows[(rows["kind"] == Kind.TCP) & (rows["destination_port"] == 7000)]:
                start, size = int(row["payload"]), int(row["payload_length"])
                stream[int(row["seq"])] = bytes(block.batch.data[start : start + size])
                largest = max(largest, size)
                states.add(int(row["checksum"]))
            block.release()
        position, rebuilt = (min(seq for seq, part in stream.items() if part)), bytearray()
        while stream.get(position):
            rebuilt += stream[position]
            position = (position + len(stream[position])) % (1 << 32)
        assert bytes(rebuilt) == data
        assert largest > 9000, "segmentation offload made larger packets than the MTU"
        assert states <= {Checksum.OK, Checksum.PARTIAL}
        for each in (accepted, client, server, reader):
            each.close()  # type: ignore[attr-defined]

    def test_a_full_ring_drops_and_tells(self, star: Star) -> None:
        ring = run_in(star.switch, lambda: PacketRing("s1", block_bytes=1 << 16, blocks=2))
        reader = RingReader([ring])
        for _ in range(400):
            star.hosts[1].send(bytes(12) + b"\x88\xb5" + bytes(1400))
        reader.stop()
        kept = sum(len(block.batch) for _, block in reader.blocks() if isinstance(block, RingBlock))
        assert 0 < kept < 400
        assert kept + ring.dropped() == 400
        reader.close()

    def test_stop_ends_it_while_frames_rush_in_and_an_interface_that_goes_down_is_told(self, star: Star) -> None:
        rings = [run_in(star.switch, lambda name=name: PacketRing(name)) for name in ("s1", "s2")]  # type: ignore[misc]
        reader = RingReader(rings)
        done = threading.Event()

        def flood() -> None:
            while not done.is_set():
                star.hosts[1].send(bytes(1400))

        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            failures = {}
            for ring, block in reader.blocks():
                if isinstance(block, OSError):
                    failures[ring.name] = block
                    reader.stop()
                    continue
                block.release()
                if not failures:
                    subprocess.run(["ip", "-n", star.switch, "link", "set", "s2", "down"], check=True)
            assert failures.keys() == {"s2"}
        finally:
            done.set()
            flooding.join()
            reader.close()
