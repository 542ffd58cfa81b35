"""Capture of replicas from network interfaces, in a thread that feeds the node in batches."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Sequence

import scapy.layers.l2  # noqa: F401 - tells the socket what Ethernet is
from scapy.arch.linux import L2ListenSocket

from shadow_rx.node import ShadowNode

RECEIVE_BUFFER_BYTES = 64 << 20
"""Socket buffer: what arrives while an optimizer step is applied waits here."""
_BATCH = 256
"""Most frames that are handed to the node at a time."""
_SO_RCVBUFFORCE = 33
"""Of asm-generic/socket.h: SO_RCVBUF beyond net.core.rmem_max, for CAP_NET_ADMIN."""
_SOL_PACKET = 263
_PACKET_STATISTICS = 6
"""packet(7): frames seen and dropped since the option was last read."""


class LiveCapture:
    """Captures until it is stopped, from one interface or from several.

    A packet socket sees frames before the kernel's own IP, so the replica address needs not belong to the
    node (it must not, or the kernel would answer each replica with a reset).

    A node that is attached to a switch and to its standby captures on both: a replica has its position in it, so it
    does not matter which way it came, nor in which order.

    Attributes:
        error: which interfaces were given up by and by and why (they vanished or were set down), None while none was.
    """

    def __init__(self, node: ShadowNode, interfaces: Sequence[str]) -> None:
        """Open a promiscuous packet socket on each interface; frames that arrive from now on are captured.

        Raises:
            OSError: no such interface, or no permission (CAP_NET_RAW).
        """
        self._node = node
        self._sockets: dict[int, L2ListenSocket] = {}
        self._names: dict[int, str] = {}
        try:
            for interface in interfaces:
                self._open(interface)
        except BaseException:
            self._close_sockets()
            raise
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="shadow-capture", daemon=True)
        self.error: str | None = None

    def start(self) -> None:
        """Start to feed the node."""
        self._thread.start()

    def stop(self) -> None:
        """Hand over what was captured so far, then stop; also before `start`."""
        os.write(self._wake_write, b"x")
        if self._thread.ident is not None:
            self._thread.join()
        self._close_sockets()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _open(self, interface: str) -> None:
        wire = L2ListenSocket(iface=interface, promisc=True)
        descriptor = wire.ins.fileno()
        self._sockets[descriptor], self._names[descriptor] = wire, interface
        try:
            wire.ins.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        except PermissionError:
            wire.ins.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        wire.ins.setblocking(False)

    def _close_sockets(self) -> None:
        for wire in self._sockets.values():
            wire.close()

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in self._sockets:
            poll.register(descriptor, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        working = set(self._sockets)
        stopping = False
        while not stopping and working:
            stopping = any(descriptor == self._wake_read for descriptor, _ in poll.poll())
            # What was captured before `stop` is handed over too, also where poll did not name its socket.
            for descriptor in sorted(working):
                try:
                    while self._take_batch(self._sockets[descriptor]):
                        continue
                except OSError as error:
                    poll.unregister(descriptor)
                    working.remove(descriptor)
                    trouble = f"interface {self._names[descriptor]}: {error}"
                    self.error = f"{self.error}; {trouble}" if self.error else trouble

    def _take_batch(self, wire: L2ListenSocket) -> int:
        """Hand at most one batch to the node; return how many frames it had."""
        frames: list[bytes] = []
        while len(frames) < _BATCH:
            try:
                _, frame, _ = wire.recv_raw()
            except BlockingIOError:
                break
            if frame:
                frames.append(frame)
        if frames:
            self._node.on_frames(frames)
        # Frames that the kernel dropped since the last call, for want of buffer space.
        dropped = int(struct.unpack("II", wire.ins.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[1])
        if dropped:
            self._node.count_kernel_drops(dropped)
        return len(frames)
