"""Two network namespaces and a veth pair: the kernel's TCP in one, an endpoint on raw frames in the other."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nccl_emu.tcp import Segment, TcpEndpoint
from packets.frame import parse_frame
from packets.template import FrameTemplate, PacketError

OUR_MAC, KERNEL_MAC = "02:00:00:00:77:01", "02:00:00:00:77:02"
OUR_IP, KERNEL_IP = "10.77.0.1", "10.77.0.2"
_ETH_P_IP = 0x0800
_CLONE_NEWNET = 0x40000000
_OFFLOADS = ("tx", "rx", "sg", "tso", "gso", "gro")


def missing() -> str | None:
    """Return why the test bed cannot be made here, None when it can."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("ip", "ethtool"):
        if shutil.which(tool) is None:
            return f"needs the program {tool}"
    probe = f"ckprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not available: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class KernelNet:
    """The two namespaces. Our end has no IP address: its kernel neither answers nor resets anything."""

    def __init__(self, mtu: int) -> None:
        self.ours, self.kernels = (f"ck{os.getpid()}{side}" for side in "ab")
        self.mtu = mtu

    def __enter__(self) -> KernelNet:
        with contextlib.ExitStack() as undo:
            for name in (self.ours, self.kernels):
                _run("ip", "netns", "add", name)
                undo.callback(_run, "ip", "netns", "del", name)
            ends = ((self.ours, "ours", OUR_MAC), (self.kernels, "kernel", KERNEL_MAC))
            peer = ("peer", "name", "kernel", "netns", self.kernels, "address", KERNEL_MAC)
            head = ("ip", "link", "add", "ours", "netns", self.ours, "address", OUR_MAC)
            _run(*head, "type", "veth", *peer)
            for namespace, device, _ in ends:
                inside = ("ip", "netns", "exec", namespace)
                _run(*inside, "sh", "-c", f"echo 1 > /proc/sys/net/ipv6/conf/{device}/disable_ipv6")
                _run("ip", "-n", namespace, "link", "set", device, "mtu", str(self.mtu))
                for feature in _OFFLOADS:
                    _run(*inside, "ethtool", "-K", device, feature, "off")
                _run("ip", "-n", namespace, "link", "set", device, "up")
            _run("ip", "-n", self.kernels, "address", "add", f"{KERNEL_IP}/24", "dev", "kernel")
            neighbour = ("neigh", "add", OUR_IP, "lladdr", OUR_MAC, "dev", "kernel")
            _run("ip", "-n", self.kernels, *neighbour)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @contextlib.contextmanager
    def inside(self, namespace: str) -> Iterator[None]:
        """Make sockets in `namespace`: they stay there."""
        with Path("/proc/self/ns/net").open("rb") as home, Path("/run/netns", namespace).open("rb") as there:
            _setns(there.fileno())
            try:
                yield
            finally:
                _setns(home.fileno())

    def packet_socket(self) -> socket.socket:
        """Return a raw socket on our end of the veth pair."""
        with self.inside(self.ours):
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP))
        raw.bind(("ours", _ETH_P_IP))
        raw.setblocking(False)
        return raw

    def kernel_socket(self) -> socket.socket:
        """Return a TCP socket of the kernel's namespace."""
        with self.inside(self.kernels):
            kernel = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # Defaults differ from machine to machine, and BBR repairs badly without SACK, which we lack.
        kernel.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        kernel.settimeout(10)
        return kernel


class RawDriver:
    """Puts an endpoint on a packet socket; may lose frames that it sends and receives."""

    def __init__(
        self, net: KernelNet, endpoint: TcpEndpoint, *, loss: tuple[float, float] = (0.0, 0.0), seed: int = 0
    ) -> None:
        self.endpoint = endpoint
        self.sent: list[tuple[float, Segment]] = []
        self.lost = [0, 0]
        self.bad_checksums = 0
        self._raw = net.packet_socket()
        self._template = FrameTemplate(OUR_MAC, KERNEL_MAC, OUR_IP, KERNEL_IP)
        self._loss = loss
        self._rng = random.Random(seed)
        self._ident = 0

    def close(self) -> None:
        """Close the packet socket."""
        self._raw.close()

    def run(self, done: Callable[[], bool], work: Callable[[], None] = lambda: None, limit: float = 30.0) -> None:
        """Run the endpoint, and `work` at every turn, until `done`."""
        end = time.monotonic() + limit
        while True:
            work()
            self._flush()
            if done():
                return
            now = time.monotonic()
            stats = self.endpoint.stats
            assert now < end, f"not done after {limit} s: {self.endpoint.state} {stats}"
            timer = self.endpoint.next_timer()
            pause = 0.01 if timer is None else min(max(timer - now, 0.0), 0.01)
            if select.select([self._raw], [], [], pause)[0]:
                self._receive()
            self.endpoint.on_timer(time.monotonic())

    def _dropped(self, direction: int) -> bool:
        dropped = self._rng.random() < self._loss[direction]
        self.lost[direction] += dropped
        return dropped

    def _flush(self) -> None:
        now = time.monotonic()
        for segment in self.endpoint.take_output(now):
            self.sent.append((now, segment))
            self._ident = (self._ident + 1) & 0xFFFF
            if not self._dropped(0):
                self._raw.send(self._template.build(segment, self._ident))

    def _receive(self) -> None:
        for _ in range(32):
            try:
                frame = self._raw.recv(65536)
            except BlockingIOError:
                return
            try:
                parsed = parse_frame(frame)
            except PacketError:
                continue
            if parsed is None or parsed.dst_ip != OUR_IP:
                continue
            self.bad_checksums += not parsed.checksums_ok
            if parsed.checksums_ok and not self._dropped(1):
                self.endpoint.on_segment(parsed.segment, time.monotonic())
