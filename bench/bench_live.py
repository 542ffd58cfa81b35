"""How fast replicas on a network interface become placed and checked bytes, over a reader of the same ring that counts.

A process sends one step again and again through a veth pair, in a network namespace of its own (needs root), as fast as
the reader takes it; another thread than the sender's reads the ring. `bench.run` has the figure.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from bench.bench_shadow import attach, make_job, make_layout, replicas
from bench.ratios import Ratio, in_turns
from capture.ring import PacketRing
from packets import compiled
from packets.batch import PacketBatch
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode

MTU = 1500
AHEAD_BYTES = 16 << 20
"""Most bytes that are sent and not yet taken: a quarter of the ring."""
_GROUP = 64
"""Packets of one system call."""
_NUMBER = struct.Struct("=q")


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Mmsghdr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p), ("name_length", ctypes.c_uint32), ("vectors", ctypes.POINTER(_Iovec)),
        ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int), ("sent", ctypes.c_uint32),
    )  # fmt: skip


class Sender:
    """A process that sends frames whenever it is told to, and never more than `AHEAD_BYTES` ahead of the reader."""

    def __init__(self, interface: str, frames: Sequence[bytes]) -> None:
        """Fork it."""
        self._told, tell = os.pipe()
        self._tell = tell
        self._child = os.fork()
        if not self._child:
            try:
                os.close(tell)
                _send_forever(interface, frames, self._told)
            finally:
                os._exit(0)

    def taken(self, nbytes: int) -> None:
        """Tell how many bytes more were read; 0 begins another round."""
        os.write(self._tell, _NUMBER.pack(nbytes))

    def close(self) -> None:
        """End it."""
        os.close(self._tell)
        os.waitpid(self._child, 0)


def _send_forever(interface: str, frames: Sequence[bytes], told: int) -> None:
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind((interface, 0))
    memory = ctypes.create_string_buffer(b"".join(frames))
    vectors = (_Iovec * len(frames))()
    messages = (_Mmsghdr * len(frames))()
    at = ctypes.addressof(memory)
    for vector, message, frame in zip(vectors, messages, frames, strict=True):
        vector.base, vector.length = at, len(frame)
        message.vectors, message.count = ctypes.pointer(vector), 1
        at += len(frame)
    send = ctypes.CDLL(None, use_errno=True).sendmmsg
    while head := os.read(told, _NUMBER.size):
        assert head == _NUMBER.pack(0)
        ahead = first = 0
        while first < len(frames):
            while ahead > AHEAD_BYTES:
                ahead -= _NUMBER.unpack(os.read(told, _NUMBER.size))[0]
            count = send(wire.fileno(), ctypes.byref(messages[first]), min(_GROUP, len(frames) - first), 0)
            if count < 0:
                raise OSError(ctypes.get_errno(), "sendmmsg")
            ahead += sum(len(frame) for frame in frames[first : first + count])
            first += count
        while ahead > 0:
            ahead -= _NUMBER.unpack(os.read(told, _NUMBER.size))[0]


class Live:
    """The two readers of one ring."""

    def __init__(self, megabytes: int) -> None:
        """Open the ring, and prepare the replicas of a step of so many MiB of gradient."""
        self._job, self._layout = make_job(MTU), make_layout(megabytes)
        core = ShadowCore(self._job, "sh0")
        attach(core, self._layout)
        epoch = core.group("dp0").progress.epoch
        assert epoch is not None
        self._slot = epoch.assembler.slot(1)
        self._node = ShadowNode(core, time.monotonic)
        frames = replicas(self._job, self._layout, 1)
        self._packets = len(frames)
        self._ring = PacketRing("bench1")
        self._sender = Sender("bench0", frames)

    def count(self) -> float:
        """Return the gradient bytes per second, in GB/s (10**9), that a reader gets which only counts."""
        return self._read(len)

    def place(self) -> float:
        """Return the same of a shadow node, whose bytes are placed and checked."""
        self._slot.reset(1, self._job.id, 0, 1)
        rate = self._read(self._node.on_batch)
        assert self._slot.complete
        return rate

    def _read(self, take: Callable[[PacketBatch], object]) -> float:
        began = time.perf_counter()
        self._sender.taken(0)
        left = self._packets
        while left > 0:
            block = self._ring.take()
            if block is None:
                select.select([self._ring], [], [])
                continue
            take(block.batch)
            left -= len(block.batch)
            self._sender.taken(int(block.batch.lengths.sum()))
            block.release()
        seconds = time.perf_counter() - began
        assert not self._ring.dropped(), "the kernel dropped packets"
        return self._layout.nbytes / seconds / 1e9

    def close(self) -> None:
        """End the sender."""
        self._sender.close()
        self._ring.close()


def measure(quick: bool) -> dict[str, Ratio]:
    """Return the figure; none where there are no namespaces."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return {}
    command = ["unshare", "--net", sys.executable, "-m", "bench.bench_live", *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(done.stderr)
    return {name: Ratio(**values) for name, values in json.loads(done.stdout).items()}


def main() -> None:
    """Measure in the present namespace and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    # Or the kernel's own packets would be among those that are counted.
    subprocess.run(["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"], check=True)
    for command in ("link add bench0 type veth peer name bench1", "link set bench0 up", "link set bench1 up"):
        subprocess.run(["ip", *command.split()], check=True)
    trouble = compiled.load()
    if trouble is not None:
        raise SystemExit(trouble)
    live = Live(16 if quick else 64)
    try:
        ratio = in_turns(live.place, live.count, unit="GB/s", rounds=3 if quick else 9, aim=0.7)
    finally:
        live.close()
    print(json.dumps({f"shadow_live_mtu{MTU}_over_ring_reader": asdict(ratio)}))


if __name__ == "__main__":
    main()
