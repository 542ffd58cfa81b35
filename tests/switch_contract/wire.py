"""The cables of a switch under test: veth pairs in a namespace, and raw sockets at their far ends."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
from collections.abc import Iterable
from itertools import count
from types import TracebackType
from typing import Protocol

from tests.softswitch.netns import ip, run_in

MTU = 9000
RECEIVE_S = 5.0
"""How long a frame may take through the switch before it counts as lost."""

_ETH_P_ALL = 0x0003
_SOL_PACKET = 263
_PACKET_AUXDATA = 8
_PACKET_IGNORE_OUTGOING = 23
_VLAN_VALID, _VLAN_TPID_VALID = 1 << 4, 1 << 6
_AUXDATA = struct.Struct("=IIIHHHH")  # struct tpacket_auxdata of <linux/if_packet.h>
_BUFFER_BYTES = 4 << 20
_SERIAL = count()


class Cables(Protocol):
    """What connects the test with the ports of a switch; frames that leave one port come in their order."""

    def send(self, port: int, frame: bytes) -> None:
        """Send a frame into `port`."""

    def receive(self, port: int) -> bytes:
        """Return the next frame that left `port`; LookupError when none comes."""

    def carries(self, frame: bytes) -> bool:
        """Return whether a frame gets from end to end."""


class Wire:
    """A namespace with a veth pair `s<port>` - `h<port>` for each port; the switch runs in it."""

    def __init__(self, ports: Iterable[int]) -> None:
        self.namespace = f"ckwire{os.getpid()}n{next(_SERIAL)}"
        self.interfaces = {port: f"s{port}" for port in ports}
        self._sockets: dict[int, socket.socket] = {}
        ip("netns", "add", self.namespace)
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        # The kernel's own IPv6 packets would enter the pipeline. The MTU is set before the switch starts: it
        # measures it once.
        script = "for f in default all; do echo 1 > /proc/sys/net/ipv6/conf/$f/disable_ipv6; done"
        inside = ["ip", "netns", "exec", self.namespace]
        subprocess.run([*inside, "sh", "-c", f"[ ! -d /proc/sys/net/ipv6 ] || {{ {script}; }}"], check=True, timeout=30)
        ip("-n", self.namespace, "link", "set", "lo", "up")
        for port, near in self.interfaces.items():
            pair = (near, "mtu", str(MTU), "type", "veth", "peer", "name", f"h{port}", "mtu", str(MTU))
            ip("-n", self.namespace, "link", "add", *pair)
            for end in (near, f"h{port}"):
                ip("-n", self.namespace, "link", "set", end, "up")
        run_in(self.namespace, self._open)

    def _open(self) -> None:
        for port in self.interfaces:
            raw = self._sockets[port] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            raw.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
            raw.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            raw.bind((f"h{port}", _ETH_P_ALL))
            raw.setblocking(False)

    def send(self, port: int, frame: bytes) -> None:
        """Send a frame into `port`."""
        self._sockets[port].send(frame)

    def receive(self, port: int) -> bytes:
        """Return the next frame that left `port`; LookupError when none comes in time."""
        raw = self._sockets[port]
        while True:
            try:
                frame, control, _, _ = raw.recvmsg(1 << 16, 128)
            except BlockingIOError:
                if not select.select([raw], [], [], RECEIVE_S)[0]:
                    raise LookupError(f"nothing left port {port} in {RECEIVE_S:g} s") from None
                continue
            return _with_vlan_tag(frame, control)

    def carries(self, frame: bytes) -> bool:
        """Return whether a frame gets through the kernel."""
        return fits(frame)

    def close(self) -> None:
        for raw in self._sockets.values():
            raw.close()
        self._sockets.clear()
        ip("netns", "delete", self.namespace)

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fits(frame: bytes) -> bool:
    """Return whether Linux brings a frame to a packet socket at the other end of a veth pair.

    It needs a whole Ethernet header, and drops a VLAN tag without a type and a byte pair behind it (skb_vlan_untag()
    in net/core/skbuff.c).
    """
    return len(frame) >= (20 if frame[12:14] in (b"\x81\x00", b"\x88\xa8") else 14)


def _with_vlan_tag(frame: bytes, control: list[tuple[int, int, bytes]]) -> bytes:
    """Put the outer VLAN tag back, which the kernel hands over beside the frame (packet(7), PACKET_AUXDATA)."""
    for level, kind, data in control:
        if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
            status, _, _, _, _, tci, tpid = _AUXDATA.unpack_from(data)
            if status & _VLAN_VALID:
                kind_of_tag = tpid if status & _VLAN_TPID_VALID else 0x8100
                return frame[:12] + struct.pack("!HH", kind_of_tag, tci) + frame[12:]
    return frame
