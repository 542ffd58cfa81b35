"""Network namespaces with hosts around a switch, for tests with real frames; needs root, `ip` and veth."""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

_CLONE_NEWNET = 0x40000000
_ETH_P_ALL = 3
_PACKET_OUTGOING = 4
_Result = TypeVar("_Result")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)


def why_not() -> str | None:
    """Say what is missing for namespaces with veth pairs, None when they work."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("ip") is None:
        return "the ip program is not installed"
    name = f"p4rt{os.getpid()}probe"
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces: {error.stderr.strip()}"
    try:
        ip("link", "add", "probe0", "netns", name, "type", "veth", "peer", "name", "probe1", "netns", name)
    except subprocess.CalledProcessError as error:
        return f"no veth interfaces: {error.stderr.strip()}"
    finally:
        ip("netns", "delete", name)
    return None


def run_in(namespace: str, action: Callable[[], _Result]) -> _Result:
    """Run `action` in a thread that is inside the namespace; sockets made there stay there."""
    results: list[_Result] = []
    failures: list[BaseException] = []

    def enter() -> None:
        try:
            with Path(f"/var/run/netns/{namespace}").open("rb") as handle:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            results.append(action())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


class Host:
    """A namespace with one interface `eth0`, and a raw socket on it."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.raw = run_in(namespace, self._open)

    @staticmethod
    def _open() -> socket.socket:
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        raw.bind(("eth0", _ETH_P_ALL))
        return raw

    def send(self, frame: bytes) -> None:
        self.raw.send(frame)

    def receive(self, timeout_s: float = 5.0) -> bytes | None:
        """Return the next frame that came in, None when none came in time."""
        end = time.monotonic() + timeout_s
        while True:
            ready, _, _ = select.select([self.raw], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            frame, address = self.raw.recvfrom(65600)
            if address[2] != _PACKET_OUTGOING:
                return frame

    def receive_many(self, count: int) -> list[bytes | None]:
        return [self.receive() for _ in range(count)]


class Star:
    """Hosts 1..n, each on a veth pair to the namespace of the switch, where the other end is `s<number>`.

    Args:
        hosts: how many.
        mtu: of all interfaces.
    """

    def __init__(self, hosts: int, mtu: int = 1500) -> None:
        prefix = f"p4rt{os.getpid()}"
        self.switch = f"{prefix}sw"
        self.interfaces = {number: f"s{number}" for number in range(1, hosts + 1)}
        self.hosts: dict[int, Host] = {}
        self._namespaces: list[str] = []
        try:
            self._add_namespace(self.switch)
            ip("-n", self.switch, "link", "set", "lo", "up")
            names = {number: f"{prefix}h{number}" for number in self.interfaces}
            for number, name in names.items():
                self._add_namespace(name)
                # MTU before the switch starts; no IPv6, whose own packets would enter the pipeline.
                peer = ("peer", "name", self.interfaces[number], "netns", self.switch, "mtu", str(mtu))
                ip("link", "add", "eth0", "netns", name, "mtu", str(mtu), "type", "veth", *peer)
                ip("-n", name, "link", "set", "eth0", "up")
                ip("-n", self.switch, "link", "set", self.interfaces[number], "up")
            self.hosts.update((number, Host(name)) for number, name in names.items())
        except BaseException:
            self.close()
            raise

    def _add_namespace(self, name: str) -> None:
        ip("netns", "add", name)
        self._namespaces.append(name)
        script = "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ ! -e $f ] || echo 1 > $f; done"
        subprocess.run(["ip", "netns", "exec", name, "sh", "-c", script], check=True, timeout=30)

    def close(self) -> None:
        for host in self.hosts.values():
            host.raw.close()
        for name in self._namespaces:
            ip("netns", "delete", name)
        self._namespaces.clear()

    def __enter__(self) -> Star:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
